"""The lines of the frozen table: methods by name, at what they can be pruned, and the controls beside them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from dppo.comparison.contestants import TAKEN, Contestant
from dppo.comparison.frozen import group_norms
from dppo.methods import METHODS, Method
from dppo.pruning import PromptPruning, Pruning, uniform, uniform_score
from dppo.runs.arguments import Run
from dppo.trl import DPPOConfig
from dppo.trl.fields import DEFAULT_METHOD
from dppo.types import Completions
from dppo.verification.draws import full_batch
from dppo.verification.subject import Subject, remembered

CONTROLS = {
    "uniform": "every completion with the same probability, weights of one over it: what knowing nothing costs",
    "oracle": "probabilities proportional to the true gradient norms, which no run can know",
}
"""Lines that stand beside the methods, and what they are."""


class Level(StrEnum):
    """What is pruned in a part of the table."""

    BLOCK = "nothing"
    COMPLETIONS = "completions"
    PROMPTS = "prompts"
    BOTH = "both levels"


RATES = {Level.COMPLETIONS: "completion_prune_rate", Level.PROMPTS: "prompt_prune_rate"}
"""The field of a configuration that sets the rate of a level."""
EVERY_RATE = frozenset({Level.COMPLETIONS, Level.PROMPTS, Level.BOTH})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A method as it stands in the table."""

    name: str
    method: Method
    """With all rates 0."""
    subject: Subject
    """The rollouts, with what the method's history says of the prompts."""
    levels: frozenset[Level]
    """The parts of the table it has figures in: ``BLOCK`` alone where it takes no rate."""


Build = Callable[[str], Method]
"""From the name of a method to the method with all rates 0."""


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

    Raises:
        ConfigError: a field is wrong.
    """
    if contestant is None:
        method = str(fields.get("method", DEFAULT_METHOD))
        contestant = Contestant(name="configuration", method=method, overrides={})
    entrant = replace(contestant, method=contestant.preset)
    folder = Path(str(fields.get("output_dir", "frozen")))
    return cast(Run, entrant.parse(entrant.fields(fields, int(fields.get("seed", 42)), folder)))


def methods_of(contestants: Sequence[Contestant], build: Build, fields: Mapping[str, Any]) -> list[Method]:
    """What each contestant trains, with all rates 0; ``build`` gives the methods of those that set no fields.

    Raises:
        ConfigError: a field of a contestant is wrong.
    """
    return [(as_configured(configured(fields, each)) if each.overrides else build)(each.preset) for each in contestants]


def lines_of(
    contestants: Sequence[Contestant], methods: Sequence[Method], subject: Subject, build: Build
) -> tuple[Line, ...]:
    """The lines of the methods asked for, and the controls.

    Args:
        contestants: without the controls.
        methods: of the contestants, from ``methods_of``.
        subject: the rollouts.
        build: gives the methods that the controls are made from.
    """
    found = [_line(contestant, method, subject) for contestant, method in zip(contestants, methods, strict=True)]
    base, ours = build("grpo"), build("dppo")
    blind = replace(
        base,
        name="uniform",
        completions=Pruning(score=uniform_score, rule=uniform),
        prompts=PromptPruning(rule=uniform),
    )
    knowing = replace(
        base,
        name="oracle",
        completions=Pruning(score=given_norm, floor=getattr(ours.completions, "floor", Pruning().floor)),
        prompts=PromptPruning(floor=ours.prompts.floor),
    )
    signal_P = subject.candidates.signal_P
    unknown = replace(subject, candidates=replace(subject.candidates, signal_P=signal_P.new_ones(len(signal_P))))
    return (
        *found,
        Line(name="uniform", method=blind, subject=unknown, levels=EVERY_RATE),
        Line(name="oracle", method=knowing, subject=all_knowing(subject, base), levels=EVERY_RATE),
    )


def _line(contestant: Contestant, method: Method, subject: Subject) -> Line:
    taken = frozenset(level for level, field in RATES.items() if TAKEN[field](METHODS[contestant.preset]))
    levels = EVERY_RATE if len(taken) == len(RATES) else taken or frozenset({Level.BLOCK})
    known = replace(subject, candidates=remembered(subject, method))
    return Line(name=contestant.name, method=method, subject=known, levels=levels)


def given_norm(completions: Completions) -> Tensor:
    """The score of the oracle, (N,): what ``all_knowing`` puts in the place of the confidence."""
    assert completions.confidence_N is not None
    return completions.confidence_N


def all_knowing(subject: Subject, method: Method) -> Subject:
    """The subject with the true gradient norms in the place of confidence and of what history predicts.

    ``method`` gives advantages, loss and normaliser.
    """
    full_N = full_batch(subject, method)
    norm_N = (full_N.square() * subject.gram_NN.diagonal()).sqrt()
    signal_P = group_norms(full_N, subject.gram_NN, subject.generations)
    return replace(subject, confidence_N=norm_N, candidates=replace(subject.candidates, signal_P=signal_P))
