"""Savings that pruning would have had in a run with a log: ``dppo plan --log FILE``.

The mean reward and the share of zero-variance groups fix the pass rates, as in a plan. If the log lacks a share, it is
not assumed: exact skipping has bounds then, over all that the share can be, and no rate is advised.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dppo.lab.planning.costs import Costs, Figures, gain, seconds_of
from dppo.lab.planning.logs import SECONDS, Row, RunLog, finite
from dppo.lab.planning.model import COMPLETIONS, PROMPTS, Level
from dppo.lab.planning.records import Option, Step
from dppo.lab.planning.workload import Shares, Workload, pass_rates
from dppo.pruning.ceiling import rates_to

GROUP = 8
"""Completions of a group where neither the log nor the command gives them."""
PHASES = ("old", "reference", "update")
NO_SIGNAL = 1 - 1e-3
"""Share of zero-variance groups from which a log holds no signal."""
PER_STEP = 64
"""Prompts of a step: shares of seconds do not depend on it."""
PACKED = Option(name="packed", layout="packed")
"""As the run forwarded: each completion with a copy of its prompt, and only those with a gradient."""
EVERYTHING = replace(PACKED, forwarded="all")
Bounds = tuple[float, float]
"""The ends of a share; equal if the log has all that it follows from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """Savings of each step as shares of its seconds."""

    source: str
    phases: Mapping[str, float]
    """Share of a step by phase; empty if the log has no seconds of phases."""
    seconds: float | None
    """Of a step; None if the log has none."""
    zero_variance: Bounds
    """Share of zero-variance groups."""
    pass_rate: float
    saved: Mapping[str, Bounds]
    """By what is done: seconds saved over those of the step, at equal noise; 0 if it would not pay. Levels only if the
    log has both shares."""
    rates: Mapping[str, float]
    """The best rate of each level; 0 if none pays."""
    unknown: tuple[str, ...]
    """Figures that the log lacks, a sentence each."""


def plan_log(log: RunLog, *, generations: int | None = None) -> LogPlan:
    """The plan of a log; ``generations`` are the completions of a group if the log does not show them."""
    steps = log.steps
    size, notes = _group_of(steps, generations)
    every = any(map(abs, finite(steps, "kl")))
    step = Step(prompts=PER_STEP, generations=size, every=every, scaled=_scaled(steps, size))
    equal, reach = _mean(steps, "flat", math.nan), _reach(steps)
    low, high = min(_mean(steps, "lowest", 0.0), 0.0), max(_mean(steps, "highest", 1.0), 1.0)
    shares = Shares.of(_mean(steps, "reward", 0.5), low, high, equal, size)
    saved, rates = dict[str, Bounds](), dict[str, float]()
    alike = shares.mean**size + (1 - shares.mean) ** size  # groups have zero variance least often if prompts are alike
    zero_variance = (alike, 1.0) if math.isnan(equal) else (shares.zero_variance, shares.zero_variance)
    known = not math.isnan(equal + reach)
    if known:
        figures = _figures(steps, shares, size)
        exact = 1 - seconds_of(figures, step, PACKED, 1).total / seconds_of(figures, step, EVERYTHING, 1).total
        saved["exact skipping"] = (exact, exact)
        for level in (COMPLETIONS, PROMPTS):
            rates[level.name], share = _best(level, figures, step) if equal < NO_SIGNAL else (0.0, 0.0)
            saved[level.name] = (share, share)
    else:
        ends = (0.0, 1.0) if math.isnan(reach) else (reach / _whole_mean(steps),) * 2
        saved["exact skipping"] = (0.0, 0.0) if every else (ends[0] * zero_variance[0], ends[1] * zero_variance[1])
    whole = _whole_mean(steps)
    return LogPlan(
        source=f"{log.kind}, {len(steps)} steps, groups of {size}",
        phases=_phases(steps),
        seconds=whole if math.isfinite(whole) else None,
        zero_variance=zero_variance,
        pass_rate=shares.mean,
        saved=saved,
        rates=rates,
        unknown=(*notes, *_missing(steps, every)),
    )


def _mean(steps: Sequence[Row], name: str, otherwise: float) -> float:
    values = finite(steps, name)
    return float(np.mean(values)) if values else otherwise


def _figures(steps: Sequence[Row], shares: Shares, size: int) -> Figures:
    """Workload and costs of a log that has both shares; seconds of phases go by tokens."""
    prompt, response = (max(_mean(steps, name, 1.0), 1.0) for name in ("prompt", "response"))
    rollout, reach = _mean(steps, "rollout", math.nan), _reach(steps)
    completions = PER_STEP * size
    return Figures(
        workload=Workload(
            pass_rates=pass_rates(replace(shares, zero_variance=min(shares.zero_variance, NO_SIGNAL))),
            right_tokens=response,
            wrong_tokens=response,
            prompt_tokens=prompt,
            padded_tokens=prompt + response,
        ),
        costs=Costs(
            rollout_token=rollout / (completions * response),
            token=reach / (completions * (response + prompt - 1)),
            rest=max(_mean(steps, "whole", rollout + reach) - rollout - reach, 0.0),
        ),
    )


def _best(level: Level, figures: Figures, step: Step) -> tuple[float, float]:
    """The rate of a level that gains most over exact skipping, and the share of seconds it saves; 0 if none gains."""
    at = replace(level, base=PACKED).at
    gains = {rate: gain(figures, step, at(rate), 1, PACKED) for rate in rates_to(level.auto.largest)}
    best = max(gains, key=lambda rate: gains[rate])
    return (best, 1 - 1 / gains[best]) if gains[best] > 1 else (0.0, 0.0)


def _group_of(steps: Sequence[Row], asked: int | None) -> tuple[int, list[str]]:
    """Completions of a group: as asked, or from the largest advantage over the deviation, ``(n - 1) / sqrt(n)``."""
    if asked is not None:
        return asked, []
    largest = max(finite(steps, "advantage"), default=0.0)
    size = ((largest + math.sqrt(largest**2 + 4)) / 2) ** 2
    if size > 2.5 and abs(size - round(size)) < min(0.02 * size, 0.1):
        return round(size), [f"Completions of a group: {round(size)} by the largest advantage (--generations N)."]
    return GROUP, [f"Completions of a group: {GROUP} are assumed. Set --generations N."]


def _scaled(steps: Sequence[Row], size: int) -> Literal["none", "group"]:
    """Divisor of advantages. Without one, none is above 1 for rewards of 0 and 1."""
    return "none" if max(finite(steps, "advantage"), default=math.nan) <= 1 and size > 2 else "group"


def _missing(steps: Sequence[Row], every: bool) -> list[str]:
    """Figures that a plan needs and the log lacks, and particulars of the run that limit what the savings mean."""
    no_share = "TRL logs it as frac_reward_zero_std, verl does not"
    if finite(steps, "flat_of_trl"):
        no_share = "frac_reward_zero_std is 0 in every step with scale_rewards: batch, whatever groups hold"
    beyond = not finite(steps, "highest") and not 0 <= np.mean(finite(steps, "reward") or [0.0]) <= 1
    sentences = {
        f"Zero-variance groups ({no_share}): bounds are over all that the mean reward allows, and no rate is given.": (
            not finite(steps, "flat")
        ),
        "Seconds by phase (verl logs them in timing_s/*, TRL in profiling/*): bounds are between a step that is all "
        "rollout and one that is all update, and no rate is given.": math.isnan(_reach(steps)),
        "The run replaces zero-variance groups by others (algorithm.filter_groups): their rollouts are not counted as "
        "saved.": bool(finite(steps, "filtered")),
        "Prompt lengths: prompts are taken to be short, which overstates what a dropped completion saves.": (
            not finite(steps, "prompt")
        ),
        "The run has a KL term, so every completion has a gradient and nothing is skipped exactly.": every,
        "Rewards go beyond 0 to 1, so they are no pass rates: those are taken from the zero-variance groups.": beyond,
        "Lengths of right and wrong completions, changes of pass rates, and epochs: prompts are pruned from their "
        "second epoch on.": True,
    }
    return [sentence for sentence, applies in sentences.items() if applies]


def _reach(steps: Sequence[Row]) -> float:
    """Mean seconds of log-probabilities and update in a step; NaN if a log does not tell them from the rollout."""
    seconds = {name: np.mean(finite(steps, name) or [0.0]) for name in SECONDS}
    # TRL tells the whole step apart from what is done beside log-probabilities and update.
    beside = sum(seconds[name] for name in ("rollout", "rewards", "handed"))
    reach = sum(seconds[name] for name in PHASES) or seconds["whole"] - beside
    return float(reach) if reach > 0 and finite(steps, "rollout") else math.nan


def _whole(step: Row) -> float:
    parts = [step[name] for name in ("rollout", *PHASES) if math.isfinite(step[name])]
    return step["whole"] if math.isfinite(step["whole"]) else sum(parts) or math.nan


def _whole_mean(steps: Sequence[Row]) -> float:
    """Mean seconds of a step; NaN if the log has none."""
    known = [value for each in steps if math.isfinite(value := _whole(each))]
    return float(np.mean(known)) if known else math.nan


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
    low, high = plan.zero_variance
    lines = [
        f"{plan.source}{step}" + (f": {phases}" if phases else ""),
        f"pass rate {plan.pass_rate:.0%}; zero-variance groups "
        + (f"{low:.0%}" if low == high else f"not in the log ({low:.0%} to {high:.0%})"),
        "",
        "would have saved, of a step's seconds, at the noise that it had:",
    ]
    for name, (low, high) in plan.saved.items():
        rate = f" at {plan.rates[name]:g}" if plan.rates.get(name) else ""
        said = f"{low:.0%}" if low == high else f"at least {low:.0%}, at most {high:.0%}"
        said += "" if name == "exact skipping" else " of what is left"
        lines.append(f"  {name + rate:22} {said if high > 0 else 'nothing: it would not pay'}")
    return [*lines, "", "what the log does not tell:", *(f"- {each}" for each in plan.unknown)]
