"""The lines of the frozen table: methods as a configuration would train them, and two reference lines."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from dppo.lab.comparison.contestants import TAKEN, Contestant
from dppo.lab.frozen.sample import group_norms
from dppo.lab.runs.parsing import Run
from dppo.lab.subject import remembered
from dppo.methods import Method, from_settings
from dppo.methods.own import is_own, method_named
from dppo.objective import emphasised
from dppo.pruning import PromptPruning, Pruning, uniform, uniform_score
from dppo.settings import DEFAULT_METHOD
from dppo.trl import DPPOConfig
from dppo.trl.grpo.objective import objective_of
from dppo.types import Completions
from dppo.verification.draws import full_batch
from dppo.verification.subject import Subject

CONTROLS = {
    "uniform": "every completion with the same probability, weights of one over it: what knowing nothing costs",
    "oracle": "probabilities proportional to the true gradient norms, which no run can know",
}
"""Reference lines beside the methods, and their description."""


class PrunedLevel(StrEnum):
    """The pruned units of a part of the table."""

    BLOCK = "nothing"
    COMPLETIONS = "completions"
    PROMPTS = "prompts"


RATES = {PrunedLevel.COMPLETIONS: "completion_prune_rate", PrunedLevel.PROMPTS: "prompt_prune_rate"}
"""The field of a configuration that sets the rate of a level."""
EVERY_RATE = frozenset(RATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenLine:
    """A method in the table."""

    name: str
    method: Method
    """With all rates 0."""
    subject: Subject
    """The rollouts, with candidates by the method's history."""
    levels: frozenset[PrunedLevel]
    """Parts of the table with this line: ``BLOCK`` alone if the method takes no rate."""


Build = Callable[[str], Method]
"""``build(name)``: the method with all rates 0."""


def control_lines(subject: Subject, build: Build) -> tuple[FrozenLine, FrozenLine]:
    """The lines of ``CONTROLS``."""
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
        FrozenLine(name="uniform", method=blind, subject=unknown, levels=EVERY_RATE),
        FrozenLine(name="oracle", method=knowing, subject=all_knowing(subject, base), levels=EVERY_RATE),
    )


def given_norm(completions: Completions) -> Tensor:
    """(N,) score of the oracle: the norms that ``all_knowing`` stores as uncertainty."""
    assert completions.uncertainty_N is not None
    return completions.uncertainty_N


def all_knowing(subject: Subject, method: Method) -> Subject:
    """The subject with the true gradient norms under ``method`` in place of uncertainty and of signals by history."""
    full_N = full_batch(subject, method)
    norm_N = (full_N.square() * subject.gram_NN.diagonal()).sqrt()
    signal_P = group_norms(full_N, subject.gram_NN, subject.generations)
    return replace(subject, uncertainty_N=norm_N, candidates=replace(subject.candidates, signal_P=signal_P))


def unpruned_method(args: DPPOConfig, name: str, *, sampler_log_probs: bool = False) -> Method:
    """A method as a run with these arguments trains it, at rates of 0: the run sets what the method does not fix.

    ``sampler_log_probs`` as for ``DPPOConfig.build_method``.
    """
    base = method_named(name)
    if is_own(name):
        return replace(base.with_rates(prompt=0.0, completion=0.0), tokens=base.tokens.at_rate(0.0, 0.0))
    other = copy.copy(args)
    for rate in (*from_settings.RATES, "head_prune_rate"):
        setattr(other, rate, 0.0)
    parts = objective_of(args) | {part: getattr(base, part) for part in base.fixes}
    parts["advantages"] = emphasised(parts["advantages"], args.advantage_power)
    # The meaning of emphasised advantages depends on the group size, so all groups get one size.
    parts["sizes"] = None if args.advantage_power else base.sizes
    return from_settings.pruned(other, replace(base, **parts), sampler_log_probs)


def as_embedded() -> Build:
    """Methods with the arguments of ``examples/embedded.yaml``, without a configuration."""
    plain = {"temperature": 1.0, "use_cpu": True, "bf16": False, "report_to": "none"}
    return partial(unpruned_method, DPPOConfig(output_dir="embedded", loss_type="dr_grpo", **plain))


def as_configured(run: Run) -> Build:
    """Methods as a run builds them: the run's objective, except for the parts that a method fixes."""
    return partial(unpruned_method, run.training, sampler_log_probs=run.sampler_log_probs)


def configured(fields: Mapping[str, Any], contestant: Contestant | None = None) -> Run:
    """The parsed arguments of a contestant's run with our trainer, or of the configuration's own.

    ``fields`` are those of the configuration; the contestant's own, and the loss of its method, replace them.
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
