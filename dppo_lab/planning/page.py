"""The calculator: one HTML page with a plan, its inputs and its formulas, that needs no network."""

import base64
import hashlib
import json
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dppo import __version__
from dppo_lab.planning.outcome import Plan
from dppo_lab.planning.written import as_json, findings

COMPLETIONS, PROMPTS = 3, 4
"""Places of the options that prune one level alone."""


def calculator(plan: Plan) -> str:
    """The page as text. Its one script is allowed by its hash, everything else that could run or load is forbidden.

    Args:
        plan: of a run; its words are escaped.
    """
    environment = Environment(
        loader=PackageLoader("dppo_lab.planning", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    script = Path(__file__).with_name("calculator.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = json.dumps(as_json(plan), allow_nan=False)
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
