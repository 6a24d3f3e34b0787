"""Savings that pruning would have had in a run with a log: ``dppo plan --log FILE``.

A log has no groups, but the mean reward and the share of groups without a signal give a Beta distribution of pass
rates. If the log lacks a share, it is not assumed: savings are then bounds, over all that it can be.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaln
from scipy.stats import beta as beta_distribution

from dppo.lab.planning.costs import Costs, Figures, gain, interval, seconds_of
from dppo.lab.planning.logs import SECONDS, Row, RunLog, finite
from dppo.lab.planning.model import COMPLETIONS, PROMPTS, Level
from dppo.lab.planning.records import Option, Step
from dppo.lab.planning.workload import RESAMPLES, Kind, Workload, log_normal_curve
from dppo.lab.statistics import Estimate
from dppo.pruning.ceiling import rates_to
from dppo.rng import Purpose, generator

KINDS = 24
"""Pass rates that a Beta distribution is cut into."""
GROUP = 8
"""Completions of a group where neither the log nor the command says."""
PHASES = ("old", "reference", "update")
ALL_SILENT = 1 - 1e-3
"""Share of silent groups from which a log holds no signal."""
FLATS = 6
"""Shares of silent groups that are gone through if a log has none."""
NEARLY_ALL = 1 - 1e-6
"""Largest share of the update in a step: some seconds are left for the rollout."""
PER_STEP = 64
"""Prompts of a step: shares of seconds do not depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """Savings of each step as shares of its seconds."""

    source: str
    phases: Mapping[str, float]
    """Share of a step by phase; empty where the log has no seconds of phases."""
    seconds: float | None
    """Of a step; None where the log does not say."""
    flat: Estimate
    """Share of silent groups; its ends are bounds if the log does not say."""
    known: bool
    """False if the log lacks the share of silent groups or seconds by phase: savings are bounds, without a rate."""
    pass_rate: float
    saved: Mapping[str, Estimate]
    """By what is done: seconds saved over those of the step, at equal noise; 0 where it would not pay. Without exact
    skipping where the run, one of ours, has skipped already."""
    rates: Mapping[str, float]
    """The rate that is best, by what is done."""
    unknown: tuple[str, ...]
    """Figures that the log lacks, a sentence each."""


def plan_log(log: RunLog, *, generations: int | None = None) -> LogPlan:
    """The plan of a log; ``generations`` are the completions of a group if the log does not show them."""
    steps = log.steps
    group, group_notes = _group_of(steps, generations)
    scaled, scaled_notes = _scaled(steps, group)
    every = any(map(abs, finite(steps, "kl")))
    step = Step(prompts=PER_STEP, generations=group, every=every, scaled=scaled)
    flats, reaches = _ends(steps, group)
    known = len(flats) * len(reaches) == 1
    samples = [steps, *_resamples(steps)] if known else [steps]
    worlds = [_world(each, group, flat, reach) for each in samples for flat in flats for reach in reaches]
    spread = interval if known else _bounds
    saved, rates = dict[str, Estimate](), dict[str, float]()
    if every or all(kept == 1 for kept in finite(steps, "kept")):
        saved["exact skipping"] = spread([_saved_exactly(world.figures, step) for world in worlds])
    for level in (COMPLETIONS,) if any(finite(steps, "asked_less")) else (COMPLETIONS, PROMPTS):
        best = [_best(level, world, step) for world in (worlds[:1] if known else worlds)]
        if known:
            rates[level.name] = best[0]
        saved[level.name] = _saved_at(best, level, worlds, step, spread)
    whole = [value for each in steps if math.isfinite(value := _whole(each))]
    return LogPlan(
        source=f"{log.kind}, {len(steps)} steps, groups of {group}",
        phases=_phases(steps),
        seconds=float(np.mean(whole)) if whole else None,
        flat=spread([world.flat for world in worlds]),
        known=known,
        pass_rate=worlds[0].pass_rate,
        saved=saved,
        rates=rates,
        unknown=(*group_notes, *_missing(steps), *scaled_notes, *_particular(steps, every)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The log, or a resample of its steps."""

    figures: Figures
    flat: float
    """Share of silent groups: those of equal rewards."""
    pass_rate: float


def _ends(steps: Sequence[Row], group: int) -> tuple[Sequence[float | None], Sequence[float | None]]:
    """Shares of silent groups, and of seconds of a step beside the rollout, to go through: None as in the log.

    Of a share that the log lacks these reach from bound to bound. Groups are silent least often if all prompts are
    alike.
    """
    rate = _pass_rate(steps)
    alike = rate**group + (1 - rate) ** group
    flats = [None] if finite(steps, "flat") else np.linspace(alike, max(alike, ALL_SILENT), FLATS).tolist()
    return flats, [0.0, NEARLY_ALL] if math.isnan(_reach(steps)) else [None]


def _mean(steps: Sequence[Row], name: str, otherwise: float) -> float:
    values = finite(steps, name)
    return float(np.mean(values)) if values else otherwise


def _pass_rate(steps: Sequence[Row]) -> float:
    """Mean reward over steps as a share of its range, in (0, 1); 0.5 if rewards are no pass rates."""
    low, high = min(_mean(steps, "lowest", 0.0), 0.0), max(_mean(steps, "highest", 1.0), 1.0)
    rate = (_mean(steps, "reward", 0.5) - low) / (high - low)
    return min(max(rate, 1e-3), 1 - 1e-3) if 0 <= rate <= 1 else 0.5


def _world(steps: Sequence[Row], group: int, flat: float | None, reach_share: float | None) -> World:
    """Means over some steps. ``flat`` and ``reach_share`` stand for shares that the log lacks; None for its own."""
    pass_rate = _pass_rate(steps)
    flat = min(max(_mean(steps, "flat", 0.0) if flat is None else flat, 0.0), ALL_SILENT)
    tokens = max(_mean(steps, "prompt", 1.0), 1.0), max(_mean(steps, "response", 1.0), 1.0)
    if reach_share is None:
        rollout, reach = _mean(steps, "rollout", math.nan), _reach(steps)
        rest = max(_mean(steps, "whole", rollout + reach) - rollout - reach, 0.0)
    else:
        rollout, reach, rest = 1 - reach_share, reach_share, 0.0
    rates = pass_rates(pass_rate, flat, group)
    kept = max(_mean(steps, "kept", 1.0), 1e-3)  # a log of ours, of a run that skips what has no gradient
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
    """Figures of a step whose seconds go by tokens.

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
        longest_prompt=log_normal_curve(prompt),
        longest_completion=log_normal_curve(response),
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


def _best(level: Level, world: World, step: Step) -> float:
    """The rate of a level that gains most over exact skipping; 0 if none gains."""
    if world.flat >= ALL_SILENT:  # without a signal nothing says what to prune
        return 0.0
    best = max(rates_to(level.auto.largest), key=lambda rate: _gained(level, world, step, rate))
    return best if _gained(level, world, step, best) > 1 else 0.0


def _saved_at(
    best: Sequence[float], level: Level, worlds: Sequence[World], step: Step, spread: Callable[..., Estimate]
) -> Estimate:
    """Share of a step's seconds that a rate saves in all worlds, or the rate of each world in it."""
    if not any(best):
        return Estimate(0.0, 0.0, 0.0)
    rates = [*best] * (len(worlds) // len(best))
    gains = [_gained(level, world, step, rate) for world, rate in zip(worlds, rates, strict=True)]
    return spread([1 - 1 / max(each, 1e-9) for each in gains])


def _bounds(values: Sequence[float]) -> Estimate:
    """The ends of values that are all possible, and their middle."""
    return Estimate((min(values) + max(values)) / 2, min(values), max(values))


def _gained(level: Level, world: World, step: Step, rate: float) -> float:
    return gain(world.figures, step, replace(level, base=PACKED).at(rate), 1, PACKED) if rate else 1.0


def _resamples(steps: Sequence[Row]) -> list[list[Row]]:
    """Resamples of blocks of neighbouring steps, which are alike."""
    rng = generator(0, Purpose.CHECK, len(steps), 9)
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
    """Divisor of advantages. Without one, none is above 1 for rewards of 0 and 1."""
    largest = max(finite(steps, "advantage"), default=math.nan)
    if largest <= 1 and group > 2:
        return "none", []
    unsaid = "Whether advantages are divided by the deviation of their group: taken to be, as TRL and verl do it."
    return "group", [unsaid] if math.isnan(largest) else []


def _missing(steps: Sequence[Row]) -> list[str]:
    """Figures that a plan needs and the log lacks, with what was taken in their place."""
    why = "TRL logs it as frac_reward_zero_std, verl does not"
    if finite(steps, "flat_of_trl"):
        why = "frac_reward_zero_std is 0 in every step with scale_rewards: batch, whatever groups hold"
    sentences = {
        f"How many groups have equal rewards ({why}): savings are bounds over all that the mean reward allows.": (
            not finite(steps, "flat")
        ),
        "What pruning saves beside algorithm.filter_groups: the log is of a run that replaces groups of equal "
        "rewards by others, so none is skipped, and what they cost is among its rollouts.": finite(steps, "filtered"),
        "Where a step's time goes (verl logs it in timing_s/*, TRL in profiling/*): savings are bounds, between a "
        "step that is all rollout and one that is all update.": math.isnan(_reach(steps)),
        "How long prompts are: they are taken to be short, which overstates what a dropped completion saves.": (
            not finite(steps, "prompt")
        ),
        "How right and wrong completions differ in length, how pass rates moved, and whether prompts came back: they "
        "are reckoned from their second epoch on.": True,
    }
    return [sentence for sentence, said in sentences.items() if said]


def _particular(steps: Sequence[Row], every: bool) -> list[str]:
    """Particulars of the run that limit what the savings mean."""
    inside = 0 <= np.mean(finite(steps, "reward") or [0.0]) <= 1
    without = not finite(steps, "highest")
    sentences = {
        "The run has a KL term, so that completions without an advantage have a gradient too: nothing is skipped "
        "exactly, and how little these weigh is not in the log. Completions are taken to weigh by their advantage.": (
            every
        ),
        "Whether rewards are 0 or 1: the mean reward is taken for the pass rate.": without and inside,
        "Rewards go beyond 0 to 1, so they are no pass rates: those are taken from the silent groups.": (
            without and not inside
        ),
        "The run has dropped completions already: what is said is over the same run without that.": (
            any(finite(steps, "dropped"))
        ),
        "The run has cut tokens already, so that dropped completions would save less than is said.": (
            any(finite(steps, "cut"))
        ),
        "The run has pruned prompts already, and what more of that would save is not in the log.": (
            any(finite(steps, "asked_less"))
        ),
    }
    return [sentence for sentence, said in sentences.items() if said]


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
    silent = _percent(plan.flat)
    if not plan.known and plan.flat.low < plan.flat.high:
        silent = f"not in the log ({plan.flat.low:.0%} to {plan.flat.high:.0%})"
    lines = [
        f"{plan.source}{step}" + (f": {phases}" if phases else ""),
        f"pass rate {plan.pass_rate:.0%}; silent groups {silent}",
        "",
        "would have saved, of a step's seconds, at the noise that it had:",
    ]
    for name, saved in plan.saved.items():
        rate = f" at {plan.rates[name]:g}" if plan.rates.get(name) else ""
        beyond = "" if name == "exact skipping" else " of what is left"
        verdict = f"{_percent(saved) if plan.known else f'at least {saved.low:.0%}, at most {saved.high:.0%}'}{beyond}"
        if saved.high <= 0 or (plan.known and saved.value <= 0):
            verdict = "nothing: it would not pay"
        lines.append(f"  {name + rate:22} {verdict}")
    return [*lines, "", "what the log does not tell:", *(f"- {each}" for each in plan.unknown)]


def _percent(found: Estimate) -> str:
    ends = "" if found.low == found.high else f" ({found.low:.0%} to {found.high:.0%})"
    return f"{found.value:.0%}{ends}"
