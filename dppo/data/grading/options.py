"""What a benchmark or a problem says about its answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Grading:
    """How closely, and in which form, an answer must agree with the gold answer."""

    several: bool | None = None
    """Whether there are several answers, in any order; None: as the gold answer is written."""
    unit: str = ""
    """The unit of the gold answer, where it stands beside it."""
    absolute: float = 0.0
    """An answer may differ from the gold value by this much, >= 0."""
    relative: float = 0.0
    """An answer may differ from the gold value by this share of it, in [0, 1)."""
    rounded_from: int = 0
    """From this many significant digits on a gold decimal counts as rounded: what rounds to it is right. 0: never."""
