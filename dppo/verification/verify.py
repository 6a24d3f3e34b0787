"""All checks on one subject: the proof behind ``dppo verify``."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from dppo.environment import one_thread
from dppo.errors import ConfigError
from dppo.methods import ALL_TOKENS, Method
from dppo.packing.attention import unsupported, unwrapped
from dppo.verification import checks
from dppo.verification.checks import Check
from dppo.verification.parity import script_of
from dppo.verification.subject import Subject


def verify(
    subject: Subject,
    methods: Sequence[Method],
    *,
    draws: int = 2000,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Check]:
    """Run every check on a subject; return them by the number of their claim.

    ``methods`` are claimed to be unbiased, at least one; controls have the loss of the first one. ``draws`` of each
    check are >= 8: the smallest visible bias falls with their root. ``progress`` is called before each part with a text
    that names it.
    """
    if not methods:
        raise ConfigError("no method is given to verify, and at least 1 is needed. Write methods=[METHODS['dppo']].")
    first, count = replace(methods[0], tokens=ALL_TOKENS), len(methods)
    enumerated = checks.enumeration_checks(methods), checks.token_checks(methods), checks.round_checks(methods)
    frequencies = checks.frequency_checks(subject, first, draws, count), checks.token_frequency_checks(draws, count)
    parts: dict[str, Iterable[Check]] = {  # generators: each does its work when it is gone through
        "every outcome of small draws": chain(*enumerated),
        "many draws on the model": checks.draw_checks(subject, methods, draws),
        "one step beside TRL": checks.parity_checks(script_of(subject)),
        "rows beside padding": checks.row_checks(subject),
        "inclusion frequencies": chain(*frequencies),
        "controls": checks.control_checks(subject, first, draws, count),
    }
    found: list[Check] = []
    with one_thread():
        for name, part in parts.items():
            progress(f"{len(found)} checks done, next: {name}")
            found += part
    return sorted(found, key=lambda check: check.name[0])


def described(subject: Subject, methods: Sequence[Method]) -> str:
    """Model, data and rollouts, and parts of the training that are not checked on them, in one paragraph."""
    notes = [subject.describe()]
    if reason := unsupported(unwrapped(subject.model)):
        notes.append(f"Its training is padded, without dense rows: {reason}.")
    if sized := ", ".join(method.name for method in methods if method.sizes is not None):
        notes.append(f"Group sizes were not varied, all groups are of one size: {sized}.")
    return " ".join(notes)
