"""How the answers of each benchmark are judged."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from answer_judge.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Grading:
    """How closely, and in which form, an answer must agree with the gold answer."""

    several: bool | None = None
    """True if there are several answers, in any order; None: as the gold answer is written."""
    unit: str = ""
    """The unit of the gold answer, where the problem gives it separately."""
    absolute: float = 0.0
    """An answer may differ from the gold value by this much, >= 0."""
    relative: float = 0.0
    """An answer may differ from the gold value by this share of it, in [0, 1)."""
    rounded_from: int = 0
    """From this many significant digits on a gold decimal counts as rounded: what rounds to it is right. 0: never."""

    @property
    def exact(self) -> bool:
        """True if no other value than the gold one is right."""
        return not (self.absolute or self.relative or self.rounded_from)


DEFAULT_RULE = "default"
RULES: Mapping[str, Grading] = MappingProxyType(
    {
        **dict.fromkeys((DEFAULT_RULE, "gsm8k", "math500", "aime24", "amc23", "olympiadbench"), Grading()),
        # 1% is the tolerance the set was published with (arXiv:2206.14858); its gold answers are rounded values
        "minerva_math": Grading(relative=0.01, rounded_from=2),
    }
)
"""How answers are judged, by benchmark name."""

DETAILS = ("is_multiple_answer", "unit", "tolerance")
"""What a problem may say about its own answer, by OlympiadBench's names, where ``tolerance`` is ``error``."""


def with_details(grading: Grading, details: Mapping[str, Any] | None) -> Grading:
    """The grading of one problem: the benchmark's, and what the problem says about its answer.

    Of the details those in ``DETAILS`` are looked at; what is missing, None, NaN or an empty text says nothing.
    ``DataError``: details that are no dictionary, ``is_multiple_answer`` that is neither true nor false, or a tolerance
    that is no number of at least 0.
    """
    if not details:
        return grading
    if not isinstance(details, Mapping):
        raise DataError(f"details={details!r} of a problem are no dictionary. Write, for example, {{'unit': 'km'}}")
    several, unit, tolerance = (_given(details.get(name)) for name in DETAILS)
    if several is not None:
        grading = replace(grading, several=_truth(several))
    if unit is not None:
        grading = replace(grading, unit=str(unit))
    return grading if tolerance is None else replace(grading, absolute=_tolerance(tolerance))


def _given(value: Any) -> Any:
    """A detail, or None where it says nothing, as in the empty cells of a table."""
    empty = (isinstance(value, str) and not value.strip()) or (isinstance(value, float) and value != value)
    return None if empty else value


_TRUTHS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


def _truth(several: Any) -> bool:
    found = _TRUTHS.get(str(several).strip().lower())
    if found is None:
        raise DataError(
            f"is_multiple_answer={several!r:.80} of a problem is neither true nor false. Write True or False."
        )
    return found


def _tolerance(tolerance: Any) -> float:
    try:
        absolute = float(tolerance)  # of the data set, never of a model
    except (TypeError, ValueError):
        absolute = -1.0
    if not 0 <= absolute < float("inf"):
        raise DataError(f"tolerance={tolerance!r} of a problem is no number of at least 0. Write, for example, '1e-2'.")
    return absolute
