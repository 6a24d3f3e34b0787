"""The methods of a frozen comparison as a configuration would train them, and their lines in its table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from dppo.lab.comparison.contestants import TAKEN, Contestant
from dppo.lab.frozen.lines import RATES, Build, FrozenLine, PrunedLevel, control_lines
from dppo.lab.runs.parsing import Run
from dppo.methods import Method
from dppo.methods.own import method_named
from dppo.settings import DEFAULT_METHOD
from dppo.trl import DPPOConfig
from dppo.verification.subject import Subject, remembered


def embedded_training() -> DPPOConfig:
    """Arguments as in ``examples/embedded.yaml``, for methods without a configuration."""
    return DPPOConfig(
        output_dir="embedded", loss_type="dr_grpo", temperature=1.0, use_cpu=True, bf16=False, report_to="none"
    )


def as_configured(run: Run) -> Build:
    """Methods as a run builds them: the run's objective, except for the parts that a method fixes."""
    return partial(run.training.build_other, sampler_log_probs=run.sampler_log_probs)


def configured(fields: Mapping[str, Any], contestant: Contestant | None = None) -> Run:
    """The parsed arguments of a contestant's run with our trainer, or of the configuration's own.

    Args:
        fields: of the configuration, without its ``compare`` block.
        contestant: its fields, and the loss of its method, replace those of the configuration.
    """
    if contestant is None:
        method = str(fields.get("method", DEFAULT_METHOD))
        contestant = Contestant(name="configuration", method=method, overrides={})
    entrant = replace(contestant, method=contestant.preset)
    folder = Path(str(fields.get("output_dir", "frozen")))
    return cast(Run, entrant.parse(entrant.fields(fields, int(fields.get("seed", 42)), folder)))


def methods_of(contestants: Sequence[Contestant], build: Build, fields: Mapping[str, Any]) -> list[Method]:
    """The method of each contestant, with all rates 0; ``build`` makes those of contestants without fields."""
    return [(as_configured(configured(fields, each)) if each.overrides else build)(each.preset) for each in contestants]


def lines_of(
    contestants: Sequence[Contestant], methods: Sequence[Method], subject: Subject, build: Build
) -> tuple[FrozenLine, ...]:
    """The lines of the requested methods, and the reference lines."""
    found = []
    for contestant, method in zip(contestants, methods, strict=True):
        taken = frozenset(level for level, field in RATES.items() if TAKEN[field](method_named(contestant.preset)))
        known = replace(subject, candidates=remembered(subject, method))
        levels = taken or frozenset({PrunedLevel.BLOCK})
        found.append(FrozenLine(name=contestant.name, method=method, subject=known, levels=levels))
    return (*found, *control_lines(subject, build))
