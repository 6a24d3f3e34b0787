"""The methods of a frozen comparison as a configuration would train them, and their lines in its table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from dppo.methods import Method
from dppo.methods.own import method_named
from dppo.settings import DEFAULT_METHOD
from dppo.trl import DPPOConfig
from dppo.verification.subject import Subject
from dppo_lab.comparison.contestants import TAKEN, Contestant
from dppo_lab.frozen.lines import RATES, Build, FrozenLine, PrunedLevel, control_lines, line
from dppo_lab.frozen.tokens import takes_tokens
from dppo_lab.runs.parsing import Run


def embedded_training() -> DPPOConfig:
    """Arguments as in ``examples/embedded.yaml``: what methods are built from where there is no configuration."""
    return DPPOConfig(
        output_dir="embedded", loss_type="dr_grpo", temperature=1.0, use_cpu=True, bf16=False, report_to="none"
    )


def as_configured(run: Run) -> Build:
    """Methods as a run would build them: what a method fixes of the objective is its own, the rest is the run's."""
    return partial(run.training.build_other, sampler_log_probs=run.sampler_log_probs)


def configured(fields: Mapping[str, Any], contestant: Contestant | None = None) -> Run:
    """The parsed arguments of a contestant's run with our trainer, or of the configuration's own.

    Args:
        fields: of the configuration, without its ``compare`` block.
        contestant: whose fields win; a loss that its method stands for wins over the configuration's.
    """
    if contestant is None:
        method = str(fields.get("method", DEFAULT_METHOD))
        contestant = Contestant(name="configuration", method=method, overrides={})
    entrant = replace(contestant, method=contestant.preset)
    folder = Path(str(fields.get("output_dir", "frozen")))
    return cast(Run, entrant.parse(entrant.fields(fields, int(fields.get("seed", 42)), folder)))


def methods_of(contestants: Sequence[Contestant], build: Build, fields: Mapping[str, Any]) -> list[Method]:
    """What each contestant trains, with all rates 0; ``build`` gives the methods of those that set no fields."""
    return [(as_configured(configured(fields, each)) if each.overrides else build)(each.preset) for each in contestants]


def lines_of(
    contestants: Sequence[Contestant], methods: Sequence[Method], subject: Subject, build: Build
) -> tuple[FrozenLine, ...]:
    """The lines of the methods asked for, and the controls."""
    found = []
    for contestant, method in zip(contestants, methods, strict=True):
        levels = frozenset(level for level, field in RATES.items() if TAKEN[field](method_named(contestant.preset)))
        found.append(line(contestant.name, method, subject, levels))
    if any(map(_leaves_tokens_out, contestants)):
        found = [replace(each, levels=each.levels | _token_levels(each.method)) for each in found]
    return (*found, *control_lines(subject, build))


def _leaves_tokens_out(contestant: Contestant) -> bool:
    """Whether a contestant's method, or a field of its own, leaves tokens out of completions."""
    own = ("token_prune_rate", "head_prune_rate")
    return method_named(contestant.preset).tokens.active or any(contestant.overrides.get(name) for name in own)


def _token_levels(method: Method) -> frozenset[PrunedLevel]:
    pairs = zip((PrunedLevel.TOKENS, PrunedLevel.HEAD), takes_tokens(method), strict=True)
    return frozenset(level for level, taken in pairs if taken)
