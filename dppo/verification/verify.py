"""All checks on one subject: the proof behind ``dppo verify``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from dppo.environment import one_thread
from dppo.methods import ALL_TOKENS, Method
from dppo.verification import checks
from dppo.verification.checks import Check
from dppo.verification.parity import padded_because, script_of
from dppo.verification.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All checks of one subject."""

    subject: str
    """Model, data and rollouts, in one paragraph."""
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True if every check passed."""
        return all(check.passed for check in self.checks)


def verify(
    subject: Subject,
    methods: Sequence[Method],
    *,
    draws: int = 2000,
    progress: Callable[[str], None] = lambda text: None,
) -> Findings:
    """Run every check on a subject.

    ``methods`` are claimed to be unbiased, at least one; controls have the loss of the first one. ``draws`` of each
    check are >= 8: the smallest visible bias falls with their root. ``progress`` is called before each part with a text
    that names it.
    """
    first, count = replace(methods[0], tokens=ALL_TOKENS), len(methods)
    enumerated = (checks.enumeration_checks, checks.token_checks, checks.round_checks)
    parts = {
        "every outcome of small draws": lambda: chain.from_iterable(each(methods) for each in enumerated),
        "many draws on the model": lambda: checks.draw_checks(subject, methods, draws),
        "one step beside TRL": lambda: checks.parity_checks(script_of(subject)),
        "rows beside padding": lambda: checks.row_checks(subject),
        "inclusion frequencies": lambda: chain(
            checks.frequency_checks(subject, first, draws, count), checks.token_frequency_checks(draws, count)
        ),
        "controls": lambda: checks.control_checks(subject, first, draws, count),
    }
    found: list[Check] = []
    with one_thread():
        for name, part in parts.items():
            progress(f"{len(found)} checks done, next: {name}")
            found += part()
    reason, sized = padded_because(subject.model), [method.name for method in methods if method.sizes is not None]
    notes = [subject.describe()]
    notes += [f"Its training is padded, without dense rows: {reason}."] * bool(reason)
    notes += [f"Group sizes were not varied, all groups are of one size: {', '.join(sized)}."] * bool(sized)
    ordered = tuple(sorted(found, key=lambda check: check.name[0]))
    return Findings(subject=" ".join(notes), checks=ordered)
