"""All checks on one subject, and the variance table: what ``dppo verify`` calls."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dppo.environment import environment, one_thread
from dppo.errors import ConfigError
from dppo.methods import ALL_TOKENS, Method
from dppo.objective import DR_GRPO
from dppo.pruning import MomentSamples, Pruning, ceiling_of
from dppo.pruning.ceiling import FEWEST
from dppo.step import signals
from dppo.types import Draw
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
from dppo.verification.findings import CeilingRow, Check, Findings
from dppo.verification.parity import script_of
from dppo.verification.subject import Subject, remembered
from dppo.verification.variance import variance_table


def verify(
    subject: Subject,
    methods: Sequence[Method],
    *,
    settings: Settings | None = None,
    started: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Findings:
    """Every check on a subject, and what its rules and scores cost in variance.

    ``methods`` are claimed to be unbiased, at least one; the first one's loss is used for controls and table. The work
    began when ``started`` says, in ``time.perf_counter`` seconds, or now; ``progress`` is told what is being done.
    """
    if not methods or not all(isinstance(method, Method) for method in methods):
        raise ConfigError(f"methods={methods!r:.80} are no methods, at least one. Try [METHODS['dppo']].")
    settings = settings or Settings()
    started = time.perf_counter() if started is None else started
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
        progress("variance")
        tabled = [replace(first, normaliser=DR_GRPO), first]
        variance = variance_table(subject, tabled, draws=settings.table_draws, seed=settings.seed)
    reason, sized = padded_because(subject.model), [method.name for method in methods if method.sizes is not None]
    notes = [subject.describe()]
    notes += [f"Its training is padded, without dense rows: {reason}."] * bool(reason)
    notes += [f"Group sizes were not varied, all groups are of one size: {', '.join(sized)}."] * bool(sized)
    return Findings(
        subject=" ".join(notes),
        checks=tuple(sorted(checks, key=lambda check: check.name[0])),
        variance=variance,
        ceilings=pilot_ceilings(subject, first),
        failure_rate=settings.failure_rate,
        environment=environment(),
        seconds=time.perf_counter() - started,
    )


def pilot_ceilings(subject: Subject, method: Method) -> tuple[CeilingRow, ...]:
    """The ceilings of both levels, by the method's own advantages and score; a level of too few units is left out.

    Of prompts, the first rollout is the history and the second what was then found.
    """
    rows = []
    seen_P = subject.candidates.seen_P
    everything = Draw.whole(seen_P)
    signal_P, tokens_N = signals(method, subject.rolled_out(), subject.context), subject.tokens_N
    visits = MomentSamples.of_visits(remembered(subject, method), everything, subject.rewards, signal_P, tokens_N)
    if len(visits) >= FEWEST:
        rows.append(CeilingRow.of("prompts", ceiling_of(visits)))
    completions = subject.completions(method)
    free = 1 - completions.live_N.double().mean().item()
    if int(completions.live_N.sum()) >= FEWEST:
        found = ceiling_of(Pruning(score=method.score).samples(completions))
        rows.append(CeilingRow.of("completions", found, free=free))
    return tuple(rows)
