r"""Whether two answers mean the same, by math-verify: the one module that runs inside the verifier's workers.

It imports nothing of this package, so that a worker starts in a fraction of a second, and uses only math-verify's
LaTeX parser: its parser of plain expressions hands digits and operators to Python's ``eval``.
"""

from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

_NO_LIMIT = 0
"""math-verify's own limits need signals; the pool enforces ours from outside."""


@lru_cache(maxsize=1024)
def _parsed(answer: str) -> tuple[Any, ...]:
    """The mathematical objects an answer may stand for; empty when it is only text.

    ``first_match`` keeps math-verify from falling back to a piece of an answer whose whole it cannot read.
    """
    found = parse(
        rf"\boxed{{{answer}}}", [LatexExtractionConfig()], extraction_mode="first_match", parsing_timeout=_NO_LIMIT
    )
    return tuple(item for item in found if not isinstance(item, str))


def judge(task: dict[str, str]) -> str:
    """``"right"``, ``"wrong"``, or ``"unparsed"`` when the gold answer is mathematics and the answer is not.

    A gold answer that is only text to math-verify is compared as text without white space.

    Args:
        task: ``answer`` and ``gold``, both without delimiters.
    """
    gold = _parsed(task["gold"])
    if not gold:
        return "right" if "".join(task["gold"].split()) == "".join(task["answer"].split()) else "wrong"
    answer = _parsed(task["answer"])
    if not answer:
        return "unparsed"
    return "right" if verify(list(gold), list(answer), timeout_seconds=_NO_LIMIT) else "wrong"
