"""A plan as JSON values, as lines of text, and as the calculator: one HTML page that needs no network."""

import base64
import hashlib
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from answer_judge.files import encoded
from answer_judge.statistics import Estimate
from dppo import __version__
from dppo_lab.planning.model import EXACT, Plan

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
COMPLETIONS, PROMPTS = 3, 4
"""Places of the options that prune one level alone."""


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


def calculator(plan: Plan) -> str:
    """The page, the plan's words escaped. Its one script is allowed by its hash; nothing else may run or load."""
    environment = Environment(
        loader=PackageLoader("dppo_lab.planning", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    script = Path(__file__).with_name("calculator.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = encoded(as_json(plan))
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return environment.get_template("calculator.html").render(
        plan=plan,
        findings=findings(plan),
        rates=(plan.rows[COMPLETIONS].option.completion_rate, plan.rows[PROMPTS].option.prompt_rate),
        hash=f"sha256-{digest}",
        data=Markup(data),
        script=Markup(script),
        version=__version__,
    )


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
