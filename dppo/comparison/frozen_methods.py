"""The lines of the frozen table: methods by name, at what they can be pruned, and the controls beside them."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from dppo.comparison.contestants import TAKEN, Contestant
from dppo.comparison.frozen import group_norms
from dppo.errors import ConfigError
from dppo.methods import METHODS, Method
from dppo.pruning import PIVOTAL, Pruning, proportional, uniform, uniform_score
from dppo.runs.arguments import Run
from dppo.trl import DPPOConfig
from dppo.trl.fields import NEEDED_FIELDS
from dppo.types import Completions
from dppo.verification.estimate import full_batch
from dppo.verification.subject import Subject, remembered

CONTROLS = {
    "uniform": "every row with the same probability, weights of one over it: what knowing nothing costs",
    "oracle": "probabilities proportional to the true gradient norms, which no run can know",
}
"""Lines that stand beside the methods, and what they are."""


class Level(StrEnum):
    """What is pruned in a part of the table."""

    BLOCK = "nothing"
    COMPLETIONS = "completions"
    PROMPTS = "prompts"
    BOTH = "both levels"


NEEDS = {
    Level.BLOCK: frozenset[Level](),
    Level.COMPLETIONS: frozenset({Level.COMPLETIONS}),
    Level.PROMPTS: frozenset({Level.PROMPTS}),
    Level.BOTH: frozenset({Level.COMPLETIONS, Level.PROMPTS}),
}
"""The rates that a method must take to be shown at a level."""


RATES = {Level.COMPLETIONS: "completion_prune_rate", Level.PROMPTS: "prompt_prune_rate"}
"""The field of a configuration that sets the rate of a level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A method as it stands in the table."""

    name: str
    method: Method
    """With all rates 0."""
    subject: Subject
    """The rollouts, with what the method's history says of the prompts."""
    takes: frozenset[Level]
    """``COMPLETIONS`` and ``PROMPTS``, where it takes a rate."""

    def shown_at(self, level: Level) -> bool:
        """Whether the line has figures at a level: methods without rates as they are, others at the rates they take.

        Args:
            level: part of the table.
        """
        return (level is Level.BLOCK) == (not self.takes) and NEEDS[level] <= self.takes


Build = Callable[[str], Method]
"""From the name of a method to the method with all rates 0."""


def embedded_training() -> DPPOConfig:
    """Arguments as in ``examples/embedded.yaml``: what methods are built from where there is no configuration."""
    return DPPOConfig(
        output_dir="embedded", loss_type="dr_grpo", temperature=1.0, use_cpu=True, bf16=False, report_to="none"
    )


def from_training(training: DPPOConfig, *, sampler_log_probs: bool = False) -> Build:
    """Methods as a run's configuration would build them: loss, advantages, floor and design are the run's.

    A method that stands for a loss of its own, such as ``dr_grpo``, keeps it.

    Args:
        training: the run's arguments.
        sampler_log_probs: whether rollouts come with log-probabilities, ``Run.sampler_log_probs``.
    """

    def build(name: str) -> Method:
        arguments = copy.copy(training)
        fields = {"method": name, "prompt_prune_rate": 0.0, "completion_prune_rate": 0.0, **NEEDED_FIELDS.get(name, {})}
        for field, value in fields.items():
            setattr(arguments, field, value)
        return arguments.build_method(sampler_log_probs=sampler_log_probs)

    return build


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A contestant with the method that it trains."""

    name: str
    stands_for: str
    """A key of ``METHODS``: for stock TRL ``grpo``, whose gradient is the same, as ``dppo verify`` shows."""
    method: Method
    """With all rates 0."""


def configured(fields: Mapping[str, Any], contestant: Contestant | None = None) -> Run:
    """The parsed arguments of a contestant's run with our trainer, or of the configuration's own.

    Args:
        fields: of the configuration, without its ``compare`` block.
        contestant: whose fields win; a loss that its method stands for wins over the configuration's.

    Raises:
        ConfigError: a field is wrong.
    """
    name = "configuration" if contestant is None else contestant.name
    own = dict(contestant.overrides) if contestant else {}
    method = str(fields.get("method", DPPOConfig.method)) if contestant is None else stands_for(contestant)
    entrant = Contestant(name=name, method=method, overrides=own)
    folder = Path(str(fields.get("output_dir", "frozen")))
    return cast(Run, entrant.parse(entrant.fields(fields, int(fields.get("seed", 42)), folder)))


def stands_for(contestant: Contestant) -> str:
    """The key of ``METHODS`` of what a contestant trains.

    Args:
        contestant: any.
    """
    return "grpo" if contestant.stock else contestant.method


def entries_of(contestants: Sequence[Contestant], build: Build, fields: Mapping[str, Any]) -> tuple[Entry, ...]:
    """The methods that contestants train, with all rates 0.

    Args:
        contestants: controls that go by their own name are left out: they are in every table.
        build: gives the methods of those that set no fields of their own.
        fields: of the configuration, without its ``compare`` block.

    Raises:
        ConfigError: a field of a contestant is wrong.
    """
    found = []
    for contestant in contestants:
        own = build
        if contestant.overrides:
            run = configured(fields, contestant)
            own = from_training(run.training, sampler_log_probs=run.sampler_log_probs)
        name = stands_for(contestant)
        found.append(Entry(name=contestant.name, stands_for=name, method=own(name)))
    return tuple(found)


def lines_of(entries: Sequence[Entry], subject: Subject, build: Build) -> tuple[Line, ...]:
    """The lines of the methods asked for, and the controls.

    Args:
        entries: from ``entries_of``.
        subject: the rollouts.
        build: gives the methods that the controls are made from.
    """
    found = [_line(entry, subject) for entry in entries]
    both = frozenset({Level.COMPLETIONS, Level.PROMPTS})
    base = build("grpo")
    blind = replace(
        base,
        name="uniform",
        completions=Pruning(score=uniform_score, rule=uniform, design=PIVOTAL),
        prompts=Pruning(rule=uniform, design=PIVOTAL),
    )
    signal_P = subject.candidates.signal_P
    unknown = replace(subject, candidates=replace(subject.candidates, signal_P=signal_P.new_ones(len(signal_P))))
    return (
        *found,
        Line(name="uniform", method=blind, subject=unknown, takes=both),
        Line(name="oracle", method=_oracle(base, build("dppo")), subject=all_knowing(subject, base), takes=both),
    )


def _line(entry: Entry, subject: Subject) -> Line:
    own = METHODS[entry.stands_for]
    takes = frozenset(level for level, field in RATES.items() if TAKEN[field](own))
    known = replace(subject, candidates=remembered(subject, entry.method))
    return Line(name=entry.name, method=entry.method, subject=known, takes=takes)


def given_norm(completions: Completions) -> Tensor:
    """The score of the oracle, (N,): what stands in the place of the confidence.

    Args:
        completions: of the subject that ``all_knowing`` gives.
    """
    assert completions.confidence_N is not None
    return completions.confidence_N


def _oracle(base: Method, ours: Method) -> Method:
    completions = Pruning(score=given_norm, rule=proportional, design=PIVOTAL, floor=ours.completions.floor)
    prompts = Pruning(rule=proportional, design=PIVOTAL, floor=ours.prompts.floor)
    return replace(base, name="oracle", completions=completions, prompts=prompts)


def all_knowing(subject: Subject, method: Method) -> Subject:
    """The subject with the true gradient norms in the place of confidence and of what history predicts.

    Args:
        subject: the rollouts.
        method: gives advantages, loss and normaliser.
    """
    full_N = full_batch(subject, method)
    norm_N = (full_N.square() * subject.gram_NN.diagonal()).sqrt()
    signal_P = group_norms(full_N, subject.gram_NN, subject.generations)
    return replace(subject, confidence_N=norm_N, candidates=replace(subject.candidates, signal_P=signal_P))


def at_rates(method: Method, *, prompt: float, completion: float) -> Method:
    """The method at given rates, with floors low enough to leave a choice: at most half of what a rate keeps.

    That is what a run with these rates does where ``prune_floor`` is not set.

    Args:
        method: any.
        prompt: r_q in [0, 1).
        completion: r_o in [0, 1).
    """
    prompts, completions = (
        replace(pruning, rate=rate, floor=min(pruning.floor, (1 - rate) / 2))
        for pruning, rate in ((method.prompts, prompt), (method.completions, completion))
    )
    return replace(method, prompts=prompts, completions=completions).at(0.0)


def check_rates(rates: Sequence[float]) -> None:
    """Return where rates can be drawn at.

    Args:
        rates: shares to prune.

    Raises:
        ConfigError: none, or one that is not in (0, 1).
    """
    wrong = [rate for rate in rates if not 0 < rate < 1]
    if wrong or not rates:
        given = f"rate {wrong[0]:g} is not in (0, 1)" if wrong else "no rates are given"
        raise ConfigError(f"{given}. Write, for example, --rates 0.3,0.5,0.7,0.9")
