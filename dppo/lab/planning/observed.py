"""Groups of completions and timed steps in the records of a run or of a pilot."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dppo.errors import ConfigError
from dppo.lab.planning.costs import Figures, Timed, fitted, free_tokens, with_noise
from dppo.lab.planning.workload import DOUBLINGS, Groups, longest_curve
from dppo.lab.runs.ceilings import CeilingRow, run_ceilings
from dppo.lab.runs.folder import COMPLETIONS_FILE, METRICS_FILE, PROMPTS_FILE, STOCK, TOTALS
from dppo.lab.runs.reader import Log, RunRecord, number, sequence
from dppo.rng import Purpose, generator

MOST = 1024
"""Groups used: the latest, since a policy moves on."""
RESAMPLED = 16
"""Fewest timed steps that are resampled: fewer could not tell fixed seconds from those of tokens, so noise alone is."""
GENERATIONS = 8
"""TRL's default of ``num_generations``."""
SECONDS, ROLLOUTS, ROLLOUT_TOKENS, _ = TOTALS.values()
NEEDED = ("step", SECONDS, ROLLOUTS, ROLLOUT_TOKENS, "time/rollout", "time/forward_backward", "rows/tokens")
"""Figures that a log needs to be a timed step."""
LENGTHS = ("num_tokens", ROLLOUTS, ROLLOUT_TOKENS, "completions/max_length", "rows/padded_tokens")
"""Figures that a log needs for lengths."""
WHOLE = 0.05
"""How far from whole the right completions of a group may be, by its mean reward, which was rounded."""
COLUMNS = ("right_Q", "size_Q", "right_tokens_Q", "wrong_tokens_Q", "weight_Q", "prompt_Q")
"""Fields of ``Groups`` in the order of what is collected of each."""
Curve = tuple[float, ...]
"""Expected longest of 1, 2, 4, ..."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """Groups and timed steps."""

    groups: Groups
    timed: tuple[Timed, ...]
    processes: int
    ceilings: tuple[CeilingRow, ...]
    """Of both levels where the records have them: what was found when prompts came back."""
    notes: tuple[str, ...] = ()

    def figures(self, limit: float) -> Figures:
        """Workload and costs as measured; ``limit`` is the most tokens of a completion."""
        workload = self.groups.workload(self.groups.weight_Q, limit)
        costs = fitted(self.timed, self.processes)
        free_tokens(self.timed, costs)
        return Figures(workload=workload, costs=costs)

    def resampled(self, limit: float) -> list[Figures]:
        """The same in resamples of prompts and of timed steps or, where these are few, of their noise.

        In a resample tokens may cost nothing: where timings are that noisy, an interval has to say so.
        """
        rng = generator(0, Purpose.CHECK, len(self.timed), 8)
        found, fit = [], fitted(self.timed, self.processes)
        for weight_Q in self.groups.resampled():
            if len(self.timed) < RESAMPLED:
                timed = with_noise(self.timed, fit, rng)
            else:
                timed = [self.timed[place] for place in rng.integers(len(self.timed), size=len(self.timed))]
            workload = self.groups.workload(weight_Q, limit)
            found.append(Figures(workload=workload, costs=fitted(timed, self.processes)))
        return found


def observed_run(run: RunRecord) -> Observed:
    """Groups and timed steps in the records of a run."""
    timed = timed_steps(run)
    if not timed:
        raise ConfigError(
            f"{run.folder} has no timed steps: {METRICS_FILE} needs two records with time/*, rows/* and total/*, "
            "as dppo train writes. Try --pilot 32"
        )
    processes = number(run.environment.get("processes", 1))
    notes = [*run.notes]
    if run.config.get("layout") == "padded":
        notes.append("The run padded what it forwarded: a token in rows is taken to cost what its tokens did.")
    if len({each.layout for each in timed}) == 1:
        notes.append(
            f"Steps of one layout were timed ({timed[0].layout}): a token in the other is taken to cost the same."
        )
    return Observed(
        groups=groups_of(run),
        timed=timed,
        processes=max(int(processes), 1) if math.isfinite(processes) else 1,
        ceilings=run_ceilings([run]),
        notes=tuple(notes),
    )


def timed_steps(run: RunRecord) -> tuple[Timed, ...]:
    """The steps between logs, each the mean of those since the log before; the first log, of warm-up, is left out."""
    logs = [log for log in run.logs if all(math.isfinite(number(log.get(name))) for name in NEEDED)]
    layout = "padded" if run.method == STOCK else "rows"
    return tuple(_timed(before, after, layout) for before, after in pairwise(logs) if after["step"] > before["step"])


def _timed(before: Log, after: Log, layout: str) -> Timed:
    steps = after["step"] - before["step"]
    seconds, completions, generated = (
        max(number(after.get(name, 0.0)) - number(before.get(name, 0.0)), 0.0) / steps
        for name in (SECONDS, ROLLOUTS, ROLLOUT_TOKENS)
    )
    rollout, reward, prune, log_probs, passes = (
        max(number(after.get(f"time/{phase}", 0.0)), 0.0)
        for phase in ("rollout", "reward", "prune", "log_probs", "forward_backward")
    )
    update = log_probs + passes
    return Timed(
        layout=layout,
        generated=generated,
        completions=completions,
        forwarded=after["rows/tokens"],
        rollout=rollout,
        reward=reward + prune,
        update=update,
        rest=max(seconds - rollout - reward - prune - update, 0.0),
        steps=steps,
    )


def groups_of(run: RunRecord) -> Groups:
    """The latest groups of a run: right completions of each, and lengths by outcome where these are known.

    Of groups whose completions were not recorded, lengths are known where all are right, or all wrong. A reward above
    the middle of those that were seen is right; with more than two rewards only recorded completions count.
    """
    rewards = {reward for line in run.completions if math.isfinite(reward := number(line.reward))}
    size = int(number(run.config.get("num_generations", GENERATIONS)))
    low, high = span = _span(run, rewards, size)
    recorded = _by_outcome(run, (low + high) / 2) if high > low else {}
    rows = list(_of_prompts(run, size, span, recorded)) if high > low and len(rewards) < 3 else []
    rows = rows or [(*found, 1.0, number(place[1])) for place, found in recorded.items()]
    if not rows:
        raise ConfigError(
            f"{run.folder} has no groups: {PROMPTS_FILE} and {COMPLETIONS_FILE} are missing or empty, which dppo train "
            "writes, or rewards outside of [0, 1] came without completions. Try dppo plan CONFIG.yaml --pilot 32"
        )
    columns = dict(zip(COLUMNS, np.array(rows[-MOST:], dtype=float).T, strict=True))
    return Groups(**columns, **_lengths(run))


Place = tuple[int, int | None, int]
"""Step, row of the dataset and group of some completions."""
Found = tuple[float, float, float, float]
"""Right completions of a group, all of them, tokens of the right and of the wrong ones."""


def _span(run: RunRecord, rewards: Set[float], size: int) -> tuple[float, float]:
    """The lowest and the highest reward; twice the same where too few were recorded to tell.

    Where no two were recorded they are taken to be 0 and 1, or -1 and 1 where means of groups of ``size`` are those.
    """
    if len(rewards) > 1:
        return min(rewards), max(rewards)
    means = [mean for line in run.prompts for each in sequence(line.mean_reward) if math.isfinite(mean := number(each))]
    seen = {0.0, 1.0, *rewards, *means}
    most = max(map(abs, seen))
    low = -most if min(seen) < 0 else 0.0
    if low == 0 and most == 1:
        return 0.0, 1.0
    counts = [(mean - low) / (most - low) * size for mean in means]
    return (low, most) if all(abs(count - round(count)) < WHOLE for count in counts) else (0.0, 0.0)


def _by_outcome(run: RunRecord, middle: float) -> dict[Place, Found]:
    """Recorded completions of each group."""
    groups: dict[Place, list[tuple[bool, float]]] = defaultdict(list)
    for line in run.completions:
        if math.isfinite(reward := number(line.reward)):
            groups[line.step, line.row, line.group].append((reward > middle, number(line.tokens)))
    return {
        place: (
            sum(right for right, _ in made),
            len(made),
            sum(tokens for right, tokens in made if right),
            sum(tokens for right, tokens in made if not right),
        )
        for place, made in groups.items()
    }


def _of_prompts(
    run: RunRecord, size: int, span: tuple[float, float], recorded: Mapping[Place, Found]
) -> Iterable[tuple[float, ...]]:
    """A row of ``Groups`` for each prompt that was rolled out, from what was recorded of every generation."""
    known = {place[:2]: found for place, found in recorded.items()}
    for line in run.prompts:
        rows, means, probs = (sequence(column) for column in (line.rows, line.mean_reward, line.probability))
        tokens = sequence(line.tokens) or [None] * len(rows)
        for row, mean, prob, length in zip(rows, means, probs, tokens, strict=False):
            if not (math.isfinite(number(mean)) and 0 < number(prob) <= 1):
                continue
            right = min(max(round((mean - span[0]) / (span[1] - span[0]) * size), 0), size)
            found, total = known.get((line.step, row)), size * number(length)
            tokens = {size: (total, 0.0), 0: (0.0, total)}.get(right, (math.nan, math.nan))
            if found is not None and found[1] == size:
                tokens = found[2:]
            yield (right, size, *tokens, 1 / prob, number(row))


def _lengths(run: RunRecord) -> dict[str, Any]:
    """Fields of ``Groups`` that have mean tokens and the longest of many, of prompts and of completions.

    Prompts are what is left of all tokens, and the longest of a generation what is left of its padding.
    """
    logs = [log for log in run.logs if all(math.isfinite(number(log.get(name))) for name in LENGTHS)]
    pairs = [(one, two) for one, two in pairwise(logs) if two[ROLLOUTS] > one[ROLLOUTS] and two["step"] > one["step"]]
    if not pairs:
        raise ConfigError(f"{run.folder}: {METRICS_FILE} needs two records with {', '.join(LENGTHS)}. Try --pilot 32")
    made, tokens, both = (
        np.array([two[name] - one[name] for one, two in pairs]) for name in (ROLLOUTS, ROLLOUT_TOKENS, "num_tokens")
    )
    prompt, mean = max((both - tokens).sum() / made.sum(), 1.0), max(tokens.sum() / made.sum(), 1.0)
    steps = np.array([two["step"] - one["step"] for one, two in pairs])
    longest = float(np.mean([two["completions/max_length"] for _, two in pairs]))
    kept = np.array([number(two.get("prune/kept_share", 1.0)) for _, two in pairs]) * made / steps
    padded = np.array([two["rows/padded_tokens"] for _, two in pairs])
    widest = float(np.median(padded[kept > 0] / kept[kept > 0])) - longest if (kept > 0).any() else prompt
    count = float((made / steps).mean())
    size = max(int(number(run.config.get("num_generations", GENERATIONS))), 1)
    lengths = np.array([number(line.tokens) for line in run.completions])
    seen = lengths[np.isfinite(lengths)]
    of_completions = longest_curve(seen) if len(seen) >= count else _line(mean, max(longest, mean), count)
    of_prompts = _line(prompt, max(widest, prompt), count / size)
    means = {"prompt_tokens": float(prompt), "tokens": float(mean)}
    return means | {"longest_prompt": of_prompts, "longest_completion": of_completions}


def _line(mean: float, longest: float, count: float) -> Curve:
    """Longest of 1, 2, 4, ... on a straight line from the mean to the longest of ``count``, flat beyond."""
    doublings = max(math.log2(max(count, 2.0)), 1.0)
    return tuple(float(mean + (longest - mean) * min(place / doublings, 1.0)) for place in range(DOUBLINGS))
