"""What pruning would have saved in a run whose log is there: ``dppo plan --log FILE``.

Groups are not in a log, but the mean reward and the share of silent groups are, and the two give a Beta
distribution of pass rates. Everything else is the plan's own computation, at the log's seconds and lengths.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaln
from scipy.stats import beta as beta_distribution

from answer_judge.statistics import Estimate
from dppo.pruning.ceiling import rates_to
from dppo.rng import Purpose, generator
from dppo_lab.planning.advice import COMPLETIONS, PROMPTS, Level
from dppo_lab.planning.costs import Costs
from dppo_lab.planning.figures import Figures, gain, interval, seconds_of
from dppo_lab.planning.logs import SECONDS, Row, RunLog, finite
from dppo_lab.planning.records import Option, Step
from dppo_lab.planning.workload import RESAMPLES, Kind, Workload, log_normal_curve

KINDS = 24
"""Pass rates that a Beta distribution is cut into."""
GROUP = 8
"""Completions of a group where neither the log nor the command says."""
REACH = (0.25, 0.9)
"""Share of a step for log-probabilities, reference and update, as users of verl log it, where a log does not say."""
SILENT = (0.3, 0.8)
"""Share of groups of equal rewards, as papers report it, where a log does not say."""
PHASES = ("old", "reference", "update")
ALL_SILENT = 1 - 1e-3
"""Share of silent groups from which a log holds no signal."""
PER_STEP = 64
"""Prompts of a step: shares of seconds do not depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """What pruning would have saved of each step, as shares of its seconds."""

    source: str
    phases: Mapping[str, float]
    """Share of a step by phase; empty where the log has no seconds of phases."""
    seconds: float | None
    """Of a step; None where the log does not say."""
    flat: Estimate
    """Share of silent groups."""
    pass_rate: float
    saved: Mapping[str, Estimate]
    """By what is done: seconds saved over those of the step, at equal noise; 0 where it would not pay. Without exact
    skipping where the run, one of ours, has skipped already."""
    rates: Mapping[str, float]
    """The rate that is best, by what is done."""
    unknown: tuple[str, ...]
    """What the log does not tell, a sentence each."""


def plan_log(log: RunLog, *, generations: int | None = None) -> LogPlan:
    """The plan of a log; ``generations`` are the completions of a group where the log does not show them."""
    steps, kl = log.steps, finite(log.steps, "kl")
    group, said = _group_of(steps, generations)
    unknown = [*said, *_missing(steps)]
    rng = generator(0, Purpose.CHECK, len(steps), 9)
    drawn = _resamples(steps, rng)
    worlds = [_world(steps, group, None), *(_world(each, group, rng) for each in drawn)]
    scaled, told = _scaled(steps, group)
    unknown += told
    step = Step(prompts=PER_STEP, generations=group, every=bool(kl) and max(map(abs, kl)) > 0, scaled=scaled)
    if step.every:
        unknown.append(
            "The run has a KL term, so that completions without an advantage have a gradient too: nothing is skipped "
            "exactly, and how little these weigh is not in the log. Completions are taken to weigh by their advantage."
        )
    if not finite(steps, "highest"):
        rewards = "Whether rewards are 0 or 1: the mean reward is taken for the pass rate."
        if not 0 <= np.mean(finite(steps, "reward") or [0.0]) <= 1:
            rewards = "Rewards go beyond 0 to 1, so they are no pass rates: those are taken from the silent groups."
        unknown.append(rewards)
    if any(finite(steps, "dropped")):
        unknown.append("The run has dropped completions already: what is said is over the same run without that.")
    if any(finite(steps, "cut")):
        unknown.append("The run has cut tokens already, so that dropped completions would save less than is said.")
    levels = {"completions": COMPLETIONS, "prompts": PROMPTS}
    if any(finite(steps, "asked_less")):
        del levels["prompts"]
        unknown.append("The run has pruned prompts already, and what more of that would save is not in the log.")
    saved, rates = dict[str, Estimate](), dict[str, float]()
    if step.every or all(kept == 1 for kept in finite(steps, "kept")):
        saved["exact skipping"] = interval([_saved_exactly(world.figures, step) for world in worlds])
    for name, level in levels.items():
        rates[name], saved[name] = _best(level, worlds, step)
    whole = [value for each in steps if math.isfinite(value := _whole(each))]
    return LogPlan(
        source=f"{log.kind}, {len(steps)} steps, groups of {group}",
        phases=_phases(steps),
        seconds=float(np.mean(whole)) if whole else None,
        flat=interval([world.flat for world in worlds]),
        pass_rate=worlds[0].pass_rate,
        saved=saved,
        rates=rates,
        unknown=tuple(unknown),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The log, or a resample of its steps."""

    figures: Figures
    flat: float
    """Share of silent groups: those of equal rewards."""
    pass_rate: float


def _world(steps: Sequence[Row], group: int, rng: Any) -> World:
    """What some steps say.

    Means over steps; what is not in the log is the middle of what others report, or anything of it by ``rng``.
    """

    def mean(name: str, otherwise: float) -> float:
        values = finite(steps, name)
        return float(np.mean(values)) if values else otherwise

    def any_of(ends: tuple[float, float]) -> float:
        return sum(ends) / 2 if rng is None else float(rng.uniform(*ends))

    low, high = min(mean("lowest", 0.0), 0.0), max(mean("highest", 1.0), 1.0)
    pass_rate = (mean("reward", 0.5) - low) / (high - low)
    pass_rate = min(max(pass_rate, 1e-3), 1 - 1e-3) if 0 <= pass_rate <= 1 else 0.5  # else a reward is no pass rate
    flat = min(max(mean("flat", any_of(_silent(steps))), 0.0), ALL_SILENT)
    tokens = max(mean("prompt", 1.0), 1.0), max(mean("response", 1.0), 1.0)
    rollout, reach = mean("rollout", math.nan), _reach(steps)
    if math.isnan(reach):
        share = any_of(REACH)
        rollout, reach, rest = 0.95 * (1 - share), share, 0.05 * (1 - share)
    else:
        rest = max(mean("whole", rollout + reach) - rollout - reach, 0.0)
    rates = pass_rates(pass_rate, flat, group)
    kept = max(mean("kept", 1.0), 1e-3)  # a log of ours, of a run that skips what has no gradient
    figures = figures_of(rates, (rollout, reach, rest), tokens, completions=PER_STEP * group, forwarded=kept)
    return World(figures=figures, flat=flat, pass_rate=pass_rate)


def figures_of(
    rates: Sequence[float],
    seconds: tuple[float, float, float],
    tokens: tuple[float, float],
    *,
    completions: float,
    forwarded: float = 1.0,
) -> Figures:
    """What a plan is computed from, for a step whose seconds go by tokens.

    ``rates`` are equally likely pass rates of prompts, ``seconds`` those of the rollout, of all that forwards
    completions and of the rest of a step, ``tokens`` the mean of a prompt and of a completion, >= 1. The step makes so
    many ``completions`` and forwards a share of them, in (0, 1].
    """
    (rollout, reach, rest), (prompt, response) = seconds, tokens
    share = 1 / len(rates)
    kinds = [Kind(share=share, pass_rate=rate, right_tokens=response, wrong_tokens=response) for rate in rates]
    workload = Workload(
        kinds=tuple(kinds),
        prompt_tokens=prompt,
        longest_prompt=log_normal_curve(prompt, 0.5),
        longest_completion=log_normal_curve(response, 0.5),
    )
    costs = Costs(
        rollout_token=rollout / (completions * response),
        row_token=reach / (forwarded * completions * (response + prompt - 1)),
        padded_token=0.0,
        rest=rest,
    )
    return Figures(workload=workload, costs=costs)


def pass_rates(mean: float, flat: float, group: int) -> list[float]:
    """``KINDS`` equally likely pass rates of the Beta distribution with this mean and share of groups all alike.

    ``mean`` is in (0, 1), ``flat`` the share of groups of ``group`` >= 2 that are all right or all wrong, in [0, 1).
    """

    def share(log_strength: float) -> float:
        a, b = mean * math.exp(log_strength), (1 - mean) * math.exp(log_strength)
        return math.exp(betaln(a + group, b) - betaln(a, b)) + math.exp(betaln(a, b + group) - betaln(a, b))

    weakest, strongest = math.log(1e-3), math.log(1e4)  # the share only falls with the strength
    wanted = min(max(flat, share(strongest)), share(weakest))
    root: Any = brentq(lambda log_strength: share(log_strength) - wanted, weakest, strongest, xtol=1e-12)
    strength = math.exp(root)
    place = (np.arange(KINDS) + 0.5) / KINDS
    return beta_distribution.ppf(place, mean * strength, (1 - mean) * strength).clip(0.0, 1.0).tolist()


PACKED = Option(name="packed", layout="packed")
"""As the run forwarded: each completion with a copy of its prompt, and only those with a gradient."""
EVERYTHING = replace(PACKED, forwarded="all")


def _saved_exactly(figures: Figures, step: Step) -> float:
    """Share of a step's seconds that skipping what has no gradient saves."""
    return 1 - seconds_of(figures, step, PACKED, 1).total / seconds_of(figures, step, EVERYTHING, 1).total


def _best(level: Level, worlds: Sequence[World], step: Step) -> tuple[float, Estimate]:
    """The rate of a level that gains most over exact skipping, and what it saves of a step so taken; 0 for none."""
    level = replace(level, base=PACKED)

    def gained(world: World, rate: float) -> float:
        return gain(world.figures, step, level.at(rate), 1, PACKED)

    best = max(rates_to(level.auto.largest), key=lambda rate: gained(worlds[0], rate))
    if gained(worlds[0], best) <= 1 or worlds[0].flat >= ALL_SILENT:  # without a signal nothing says what to prune
        return 0.0, Estimate(0.0, 0.0, 0.0)
    return best, interval([1 - 1 / max(gained(world, best), 1e-9) for world in worlds])


def _resamples(steps: Sequence[Row], rng: Any) -> list[list[Row]]:
    """Resamples of blocks of neighbouring steps: these are alike."""
    length = max(1, round(len(steps) ** 0.5))
    count = math.ceil(len(steps) / length)
    starts = rng.integers(0, len(steps) - length + 1, size=(RESAMPLES, count))
    return [[steps[first + k] for first in row for k in range(length)] for row in starts.tolist()]


def _group_of(steps: Sequence[Row], asked: int | None) -> tuple[int, list[str]]:
    """Completions of a group: as asked, or from the largest advantage over the deviation, ``(n - 1) / sqrt(n)``."""
    if asked is not None:
        return asked, []
    largest = max(finite(steps, "advantage"), default=0.0)
    size = ((largest + math.sqrt(largest**2 + 4)) / 2) ** 2
    if size > 2.5 and abs(size - round(size)) < min(0.02 * size, 0.1):
        return round(size), [
            f"How many completions a group has: {round(size)} by the largest advantage (--generations N)."
        ]
    return GROUP, [f"How many completions a group has: {GROUP} are assumed. Say --generations N."]


def _scaled(steps: Sequence[Row], group: int) -> tuple[Literal["none", "group"], list[str]]:
    """What advantages are divided by. Without that none is above 1 where rewards are 0 or 1."""
    largest = max(finite(steps, "advantage"), default=math.nan)
    if largest <= 1 and group > 2:
        return "none", []
    unsaid = "Whether advantages are divided by the deviation of their group: taken to be, as TRL and verl do it."
    return "group", [unsaid] if math.isnan(largest) else []


def _missing(steps: Sequence[Row]) -> list[str]:
    """What a plan needs and a log does not have, with what was taken in its place."""
    said = []
    if not finite(steps, "flat"):
        least, most = _silent(steps)
        why = "as papers report. TRL logs frac_reward_zero_std; verl does not"
        if finite(steps, "flat_of_trl"):
            why = "since frac_reward_zero_std, 0 in every step, is so with scale_rewards: batch whatever groups hold"
        said.append(f"How many groups have equal rewards: {least:.0%} to {most:.0%} is assumed, {why}.")
    if finite(steps, "filtered"):
        said.append(
            "What pruning saves beside algorithm.filter_groups: the log is of a run that replaces groups of equal "
            "rewards by others, so none is skipped, and what they cost is among its rollouts."
        )
    if math.isnan(_reach(steps)):
        said.append(
            f"Where a step's time goes: {REACH[0]:.0%} to {REACH[1]:.0%} is assumed for log-probabilities and update, "
            "as users of verl log it in timing_s/*."
        )
    if not finite(steps, "prompt"):
        said.append(
            "How long prompts are: they are taken to be short, which overstates what a dropped completion saves."
        )
    said.append(
        "What leaving out tokens would save: a log has no probabilities of single tokens. A pilot has: dppo plan "
        "CONFIG.yaml --pilot 32."
    )
    said.append(
        "How right and wrong completions differ in length, how pass rates moved, and whether prompts came back: they "
        "are reckoned from their second epoch on."
    )
    return said


def _silent(steps: Sequence[Row]) -> tuple[float, float]:
    """Between what the share of silent groups is assumed where a log does not say, or says 0 of all steps."""
    return (0.0, SILENT[1]) if finite(steps, "flat_of_trl") else SILENT


def _reach(steps: Sequence[Row]) -> float:
    """Mean seconds of log-probabilities and update in a step; NaN where a log does not tell them from the rollout."""
    seconds = {name: np.mean(finite(steps, name) or [0.0]) for name in SECONDS}
    # TRL tells the whole step apart from what is done beside log-probabilities and update.
    beside = sum(seconds[name] for name in ("rollout", "rewards", "handed"))
    reach = sum(seconds[name] for name in PHASES) or seconds["whole"] - beside
    return float(reach) if reach > 0 and finite(steps, "rollout") else math.nan


def _whole(step: Row) -> float:
    parts = [step[name] for name in ("rollout", *PHASES) if math.isfinite(step[name])]
    return step["whole"] if math.isfinite(step["whole"]) else sum(parts) or math.nan


def _phases(steps: Sequence[Row]) -> dict[str, float]:
    found = {}
    for name in ("rollout", *PHASES):
        pairs = [(each[name], _whole(each)) for each in steps if math.isfinite(each[name])]
        if pairs:
            found[name] = sum(value for value, _ in pairs) / sum(whole for _, whole in pairs)
    return found if len(found) > 1 else {}


def lines_of(plan: LogPlan) -> list[str]:
    """The plan in lines of text."""
    step = "" if plan.seconds is None else f"; a step takes {plan.seconds:.3g} s"
    phases = ", ".join(f"{name} {share:.0%}" for name, share in plan.phases.items())
    lines = [
        f"{plan.source}{step}" + (f": {phases}" if phases else ""),
        f"pass rate {plan.pass_rate:.0%}; silent groups {_percent(plan.flat)}",
        "",
        "would have saved, of a step's seconds, at the noise that it had:",
    ]
    for name, saved in plan.saved.items():
        rate = f" at {plan.rates[name]:g}" if plan.rates.get(name) else ""
        beyond = " of what is left" if name in plan.rates else ""
        verdict = f"{_percent(saved)}{beyond}" if saved.value > 0 else "nothing: it would not pay"
        lines.append(f"  {name + rate:22} {verdict}")
    return [
        *lines,
        "  tokens                 not known",
        "",
        "what the log does not tell:",
        *(f"- {each}" for each in plan.unknown),
    ]


def _percent(found: Estimate) -> str:
    ends = "" if found.low == found.high else f" ({found.low:.0%} to {found.high:.0%})"
    return f"{found.value:.0%}{ends}"
