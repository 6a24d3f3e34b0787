"""What a verification gives back: checks, rows of the variance table, and the findings that hold both."""

from dataclasses import asdict, dataclass
from typing import Any

from dppo.pruning import Ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingRow:
    """The ceiling of one level."""

    level: str
    """``prompts`` or ``completions``."""
    value: float
    """At most this factor can be saved, >= 1: of rollout and update for prompts, of the update for completions."""
    low: float
    """Lower end of the 95% interval."""
    high: float
    units: int
    """What it is from: visits of prompts with a history; completions with a gradient; records of a log."""
    free: float | None = None
    """Share of the completions without a gradient, in [0, 1], which costs nothing to leave out; None for prompts."""

    @classmethod
    def of(cls, level: str, found: Ceiling, free: float | None = None) -> "CeilingRow":
        """The row of a ceiling."""
        return cls(level=level, value=found.value, low=found.low, high=found.high, units=found.units, free=free)

    def __str__(self) -> str:
        said = f"pruning {self.level} can save at most {self.value:.2f}x ({self.low:.2f} to {self.high:.2f})"
        if self.free is None:
            return f"{said} of rollout and update"
        return f"{said} of the update, beside the {self.free:.0%} without a gradient, which are free"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One figure against one bound."""

    name: str
    figure: float
    bound: float
    passed: bool
    what: str
    """What the figure is."""

    @property
    def verdict(self) -> str:
        """``PASS`` or ``FAIL``."""
        return "PASS" if self.passed else "FAIL"


def at_most(name: str, figure: float, bound: float, what: str) -> Check:
    """A check that passes where ``figure <= bound``; a figure of NaN fails."""
    return Check(name=name, figure=figure, bound=bound, passed=bool(figure <= bound), what=what)


def above(name: str, figure: float, bound: float, what: str) -> Check:
    """A control: something known to be wrong, which passes where the figure gives it away, ``figure > bound``."""
    return Check(name=name, figure=figure, bound=bound, passed=bool(figure > bound), what=what)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceRow:
    """What one rule and score cost in precision on a subject, at one share kept."""

    normaliser: str
    rule: str
    score: str
    keep: float
    """Expected share of the completions with a gradient that is kept, in (0, 1)."""
    added_variance: float | None = None
    """``E|g_hat - g|^2 / |g|^2`` over draws; this and what follows None where the rule cannot keep as few."""
    added_variance_error: float | None = None
    """Standard error of it."""
    effective_rows: float | None = None
    """Mean of ``(sum w)^2 / sum w^2`` over draws, in completions."""
    largest_weight: float | None = None
    """Largest weight a completion can get."""
    biased: bool = False
    """Whether the squared error includes a bias that more draws would not average out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything ``dppo verify`` found."""

    subject: str
    """Model, data and rollouts, in one paragraph."""
    checks: tuple[Check, ...]
    variance: tuple[VarianceRow, ...]
    ceilings: tuple[CeilingRow, ...] = ()
    """What pruning can save at most, by level; none where there is too little to go by."""
    failure_rate: float
    """Chance that a build without faults fails one of the checks that draw at random."""
    environment: dict[str, Any]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def as_json(self) -> dict[str, object]:
        """Everything as values that JSON can hold, figures that are not finite as text."""
        return {
            "subject": self.subject,
            "passed": self.passed,
            "checks": [_finite(asdict(check)) for check in self.checks],
            "variance": [_finite(asdict(row)) for row in self.variance],
            "ceilings": [_finite(asdict(row)) for row in self.ceilings],
            "failure_rate": self.failure_rate,
            "environment": self.environment,
            "seconds": round(self.seconds, 1),
        }


def _finite(values: dict[str, object]) -> dict[str, object]:
    """JSON has no NaN and no infinity."""
    return {
        key: str(value) if isinstance(value, float) and value - value != 0 else value for key, value in values.items()
    }
