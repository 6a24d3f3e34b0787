"""All checks on one subject: the proof behind ``dppo verify``."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from dppo.environment import one_thread
from dppo.errors import ConfigError
from dppo.methods import ALL_TOKENS, Method
from dppo.verification.checks import (
    Settings,
    control_checks,
    draw_checks,
    enumeration_checks,
    frequency_checks,
    parity_checks,
    round_checks,
    row_checks,
    token_checks,
    token_frequency_checks,
)
from dppo.verification.dense_rows import padded_because
from dppo.verification.findings import Check, Findings
from dppo.verification.parity import script_of
from dppo.verification.subject import Subject


def verify(
    subject: Subject,
    methods: Sequence[Method],
    *,
    settings: Settings | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Findings:
    """Run every check on a subject.

    ``methods`` are claimed to be unbiased, at least one; controls have the loss of the first one. ``progress`` is
    called with the name of each part before it starts.
    """
    if not methods or not all(isinstance(method, Method) for method in methods):
        raise ConfigError(f"methods={methods!r:.80} must be one Method or more. Write methods=[METHODS['dppo']].")
    settings = settings or Settings()
    first, count = replace(methods[0], tokens=ALL_TOKENS), len(methods)
    parts = {
        "every outcome of small draws": lambda: (
            *enumeration_checks(methods),
            *token_checks(methods),
            *round_checks(methods),
        ),
        "many draws on the model": lambda: draw_checks(subject, methods, settings),
        "one step beside TRL": lambda: parity_checks(script_of(subject)),
        "rows beside padding": lambda: row_checks(subject),
        "inclusion frequencies": lambda: (
            *frequency_checks(subject, first, settings, count),
            *token_frequency_checks(settings, count),
        ),
        "controls": lambda: control_checks(subject, first, settings, count),
    }
    checks: list[Check] = []
    with one_thread():
        for name, part in parts.items():
            progress(name)
            checks += part()
    reason, sized = padded_because(subject.model), [method.name for method in methods if method.sizes is not None]
    notes = [subject.describe()]
    notes += [f"Its training is padded, without dense rows: {reason}."] * bool(reason)
    notes += [f"Group sizes were not varied, all groups are of one size: {', '.join(sized)}."] * bool(sized)
    return Findings(
        subject=" ".join(notes),
        checks=tuple(sorted(checks, key=lambda check: check.name[0])),
        failure_rate=settings.failure_rate,
    )
