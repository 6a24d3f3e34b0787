"""The records of a verification: checks, and the findings that hold them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A number against a bound."""

    name: str
    figure: float
    bound: float
    passed: bool
    what: str
    """Unit and meaning of the number."""

    @property
    def verdict(self) -> str:
        """``PASS`` or ``FAIL``."""
        return "PASS" if self.passed else "FAIL"


def at_most(name: str, figure: float, bound: float, what: str) -> Check:
    """A check that passes if ``figure <= bound``; NaN fails."""
    return Check(name=name, figure=figure, bound=bound, passed=bool(figure <= bound), what=what)


def above(name: str, figure: float, bound: float, what: str) -> Check:
    """A control, known to be wrong: it passes if it is found wrong, ``figure > bound``; NaN fails."""
    return Check(name=name, figure=figure, bound=bound, passed=bool(figure > bound), what=what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All checks of one subject."""

    subject: str
    """Model, data and rollouts, in one paragraph."""
    checks: tuple[Check, ...]
    failure_rate: float
    """Chance that a build without faults fails one of the checks that draw at random."""

    @property
    def passed(self) -> bool:
        """True if every check passed."""
        return all(check.passed for check in self.checks)
