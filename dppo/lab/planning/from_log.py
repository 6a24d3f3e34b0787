"""Seconds that exact skipping would have saved in a run with a log: ``dppo plan --log FILE``.

Skipped are log-probabilities and update of zero-variance groups. A share that the log lacks is not assumed: the saving
has bounds then, over all that the share can be.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dppo.lab.planning.logs import RunLog
from dppo.lab.planning.workload import Shares

GROUP = 8
"""Completions of a group if neither the log nor the command gives them."""
UPDATE = ("old", "reference", "update")
"""Phases that a skipped completion does not need."""
Bounds = tuple[float, float]
"""The ends of a share; equal if the log has all that it follows from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """Savings that exact skipping would have brought to a logged run."""

    source: str
    phases: Mapping[str, float]
    """Share of a step by phase; empty if the log has no seconds of phases."""
    seconds: float
    """Seconds of a step; NaN if the log has none."""
    zero_variance: Bounds
    """Share of zero-variance groups."""
    pass_rate: float
    saved: Bounds
    """Seconds saved over those of the step."""
    unknown: tuple[str, ...]
    """Figures that the log lacks, a sentence each."""


def plan_log(log: RunLog, *, generations: int | None = None) -> LogPlan:
    """The plan of a log; ``generations`` are the completions of a group if the log does not show them."""
    size, notes = _group_of(log, generations)
    # frac_reward_zero_std is 0 in every step with scale_rewards: batch, whatever the groups hold.
    of_trl = log.mean("flat_of_trl") if any(log.known("flat_of_trl")) else math.nan
    equal = log.mean("flat", 0.0 if math.isnan(of_trl) and log.known("filtered") else of_trl)
    low, high = min(log.mean("lowest", 0.0), 0.0), max(log.mean("highest", 1.0), 1.0)
    shares = Shares.of(log.mean("reward", 0.5), low, high, equal, size)
    alike = shares.mean**size + (1 - shares.mean) ** size  # groups have zero variance least often if prompts are alike
    zero_variance = (alike, 1.0) if math.isnan(equal) else (shares.zero_variance, shares.zero_variance)
    every = any(log.known("kl"))
    phases, seconds = _phases(log)
    reach = (sum(phases.get(name, 0.0) for name in UPDATE),) * 2 if phases else (0.0, 1.0)
    skipped = (0.0, 0.0) if every else zero_variance
    sentences = {
        "Zero-variance groups (TRL logs them as frac_reward_zero_std, which is 0 with scale_rewards: batch; verl does "
        "not): bounds are over all that the mean reward allows.": math.isnan(equal),
        "Seconds by phase (verl: timing_s/*): bounds are between a step that is all rollout and one that is "
        "all update.": not phases,
        "The run replaces zero-variance groups by others (algorithm.filter_groups): their rollouts are not counted as "
        "saved.": bool(log.known("filtered")),
        "The run has a KL term, so every completion has a gradient and nothing is skipped exactly.": every,
        "Rewards go beyond 0 to 1, so they are no pass rates.": (
            not log.known("highest") and not 0 <= log.mean("reward", 0.0) <= 1
        ),
        "What pruning would save beyond that: dppo plan CONFIG.yaml": True,
    }
    return LogPlan(
        source=f"{log.name}, {len(log.steps)} steps, groups of {size}",
        phases=phases,
        seconds=seconds,
        zero_variance=zero_variance,
        pass_rate=shares.mean,
        saved=(skipped[0] * reach[0], skipped[1] * reach[1]),
        unknown=(*notes, *(sentence for sentence, applies in sentences.items() if applies)),
    )


def _group_of(log: RunLog, asked: int | None) -> tuple[int, list[str]]:
    """Completions of a group: as asked, or from the largest advantage over the deviation, ``(n - 1) / sqrt(n)``."""
    if asked is not None:
        return asked, []
    largest = max(log.known("advantage"), default=0.0)
    size = ((largest + math.sqrt(largest**2 + 4)) / 2) ** 2
    if size > 2.5 and abs(size - round(size)) < min(0.02 * size, 0.1):
        return round(size), [f"Completions of a group: {round(size)} by the largest advantage (--generations N)."]
    return GROUP, [f"Completions of a group: {GROUP} are assumed. Set --generations N."]


def _phases(log: RunLog) -> tuple[dict[str, float], float]:
    """Share of a step by phase, empty if the log does not tell update from rollout, and seconds of a step."""
    parts = {name: log.mean(name) for name in ("rollout", *UPDATE) if log.known(name)}
    whole = log.mean("whole", sum(parts.values()) or math.nan)
    told = "rollout" in parts and np.sum([parts.get(name, 0.0) for name in UPDATE]) > 0
    return ({name: value / whole for name, value in parts.items()} if told else {}), whole


def lines_of(plan: LogPlan) -> list[str]:
    """The plan in lines of text."""
    step = f"; a step takes {plan.seconds:.3g} s" if math.isfinite(plan.seconds) else ""
    phases = ", ".join(f"{name} {share:.0%}" for name, share in plan.phases.items())
    (low, high), (least, most) = plan.zero_variance, plan.saved
    saved = f"{least:.0%}" if least == most else f"at least {least:.0%}, at most {most:.0%}"
    return [
        f"{plan.source}{step}" + (f": {phases}" if phases else ""),
        f"pass rate {plan.pass_rate:.0%}; zero-variance groups "
        + (f"{low:.0%}" if low == high else f"not in the log ({low:.0%} to {high:.0%})"),
        f"exact skipping would have saved {saved if most > 0 else 'nothing'} of a step's seconds",
        "",
        "what the log does not tell:",
        *(f"- {each}" for each in plan.unknown),
    ]
