"""A plan as JSON values and as lines of text."""

import math
from dataclasses import asdict, replace
from typing import Any

from dppo_lab.planning.model import EXACT, Plan
from dppo_lab.statistics import Estimate

LEVELS = {
    "prompts": ("prune {0} of the prompts", "do not prune prompts"),
    "completions": ("prune {0} of the completions", "do not prune completions"),
    "tokens": ("cut {0} of the tokens", "do not cut completions"),
    "head": ("keep {0} of the tokens from the head", "send all tokens to the head"),
}
"""By level, what is advised: at a rate, and where it is left off."""
ALWAYS = ("prompts", "completions")
"""Levels whose rates are written even where they are left off."""
FORMAT = 1
"""Of ``plan.json``."""


def as_json(plan: Plan) -> dict[str, Any]:
    """The record of ``plan.json``."""
    figures = replace(plan.figures, tokens=None)  # what they keep is in the rows
    return {"format": FORMAT, **asdict(replace(plan, figures=figures))}


def findings(plan: Plan) -> list[str]:
    """What the plan says, in sentences: bounds, where pruning cannot pay, what is recommended."""
    exact = plan.rows[EXACT]
    lines = [
        f"update free: at most {_spread(plan.update_free)} faster than {exact.option.name} (Amdahl's bound): all "
        "that pruning completions can do",
        f"rollouts free: at most {_spread(plan.rollout_free)} faster",
    ]
    if math.isinf(max(plan.update_free.value, plan.rollout_free.value)):
        lines = ["the step has seconds of one phase alone: there is no bound to what freeing it would do"]
    for advice in plan.advice:
        verdict = LEVELS[advice.level][not advice.rate].format(f"{advice.rate:g}")
        lines.append(f"{verdict}: choosing can save at most {_spread(advice.ceiling)}; {advice.why}")
        if advice.own_gain is not None and advice.own_gain.value < 1:
            sure = "" if advice.own_gain.high < 1 else ", as far as so few figures tell"
            lines.append(
                f"the configuration's own {_field(advice.level)}: {advice.own:g} is worse than none: "
                f"{_spread(advice.own_gain)} to equal noise{sure}"
            )
    return lines


def pasted(plan: Plan) -> list[str]:
    """The lines of a configuration that do what the plan advises."""
    rates = {
        _field(advice.level): f"{advice.rate:g}"
        for advice in plan.advice
        if advice.rate or advice.own or advice.level in ALWAYS
    }
    method = plan.method if any(advice.rate for advice in plan.advice) else {}
    return [f"{name}: {value}" for name, value in {**method, **rates}.items()]


def _field(level: str) -> str:
    return f"{level.removesuffix('s')}_prune_rate"


def _spread(found: Estimate) -> str:
    """A factor and its interval: ``1.42x (1.30 to 1.55)``; the value alone where nothing was sampled."""
    if found.low == found.high:
        return f"{amount(found.value)}x"
    return f"{amount(found.value)}x ({amount(found.low)} to {amount(found.high)})"


def amount(value: float) -> str:
    """A number to about three digits, whole where it is large."""
    if value == 0 or 0.095 <= value < 99.95:
        return f"{value:.2f}"
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.2g}"
