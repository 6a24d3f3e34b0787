"""How the answers of each benchmark are judged."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from dppo.data.answers import final_answer, joined_boxes, plain_match
from dppo.data.grading.options import Grading
from dppo.errors import DataError

EXACT = Grading()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How the completions of one benchmark are judged."""

    name: str
    extract: Callable[[str], str | None] = final_answer
    """The answer a completion commits to, or None."""
    extract_list: Callable[[str], str | None] = joined_boxes
    """Where a problem has several answers: all of them as a list, if the text names them one by one; or None."""
    match: Callable[[str, str], bool | None] = plain_match
    """(answer, gold) -> whether they agree, or None to ask the mathematics in the workers."""
    grading: Grading = EXACT
    """How closely, and in which form, an answer must agree."""


_RULES = (
    Rule(name="default"),
    Rule(name="gsm8k"),
    Rule(name="math500"),
    Rule(name="aime24"),
    Rule(name="amc23"),
    # 1% is the tolerance the set was published with (arXiv:2206.14858)
    Rule(name="minerva_math", grading=Grading(relative=0.01, rounded_from=2)),
    Rule(name="olympiadbench"),
)
DEFAULT_RULE = _RULES[0]
RULES: Mapping[str, Rule] = MappingProxyType({rule.name: rule for rule in _RULES})
"""Rules by benchmark name. Exact but for ``minerva_math``, whose gold answers are rounded physical values."""

DETAILS = ("is_multiple_answer", "unit", "tolerance")
"""What a problem may say about its own answer, by OlympiadBench's names."""


def with_details(grading: Grading, details: Mapping[str, Any] | None) -> Grading:
    """The grading of one problem: the benchmark's, and what the problem says about its answer.

    Args:
        grading: the benchmark's.
        details: any of ``DETAILS``; what is missing or None says nothing, and other keys are not looked at.

    Raises:
        DataError: a tolerance that is no number of at least 0.
    """
    if not details:
        return grading
    several, unit, tolerance = (details.get(name) for name in DETAILS)
    if several is not None:
        grading = replace(grading, several=bool(several))
    if unit:
        grading = replace(grading, unit=str(unit))
    if tolerance in (None, ""):
        return grading
    try:
        absolute = float(tolerance)  # of the data set, never of a model
    except (TypeError, ValueError):
        absolute = -1.0
    if not 0 <= absolute < float("inf"):
        raise DataError(f"tolerance={tolerance!r} of a problem is no number of at least 0. Write, for example, '1e-2'.")
    return replace(grading, absolute=absolute)


def as_task(answer: str, listed: str | None, gold: str, grading: Grading) -> dict[str, Any]:
    """The task of a worker: JSON values, with only what differs from the defaults of ``Grading``."""
    plain = asdict(EXACT)
    changed = {name: value for name, value in asdict(grading).items() if value != plain[name]}
    task: dict[str, Any] = {"answer": answer, "gold": gold}
    return task | ({"listed": listed} if listed else {}) | ({"grading": changed} if changed else {})
