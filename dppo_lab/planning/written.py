"""A plan as JSON values and as lines of text."""

from dataclasses import asdict
from typing import Any

from dppo_lab.planning.model import EXACT
from dppo_lab.planning.outcome import Interval, Plan

FORMAT = 1
"""Of ``plan.json``."""


def as_json(plan: Plan) -> dict[str, Any]:
    """What ``plan.json`` holds.

    Args:
        plan: of a run.
    """
    return {"format": FORMAT, **asdict(plan)}


def findings(plan: Plan) -> list[str]:
    """What the plan says, in sentences: bounds, where pruning cannot pay, what is recommended.

    Args:
        plan: of a run.
    """
    exact = plan.rows[EXACT]
    lines = [
        f"update free: at most {spread(plan.update_free, 'x')} faster than {exact.option.name} (Amdahl's bound): all "
        "that pruning completions can do",
        f"rollouts free: at most {spread(plan.rollout_free, 'x')} faster",
    ]
    for advice in plan.advice:
        verdict = f"prune {advice.rate:g} of the {advice.level}" if advice.rate else f"do not prune {advice.level}"
        lines.append(f"{verdict}: choosing can save at most {spread(advice.ceiling, 'x')}; {advice.why}")
    return lines


def spread(found: Interval, unit: str = "") -> str:
    """An interval in words: ``1.42x (1.30 to 1.55)``; the value alone where nothing was sampled.

    Args:
        found: the interval.
        unit: what follows the value.
    """
    if found.low == found.high:
        return f"{amount(found.value)}{unit}"
    return f"{amount(found.value)}{unit} ({amount(found.low)} to {amount(found.high)})"


def amount(value: float) -> str:
    """A number to three digits or so, whole where it is large."""
    if value == 0 or 0.095 <= value < 99.95:
        return f"{value:.2f}"
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.2g}"
