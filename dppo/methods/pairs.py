"""The two choices that make a method: an objective and a pruning scheme."""

from dataclasses import dataclass, replace
from typing import Any

from dppo.methods.method import ALL_PROMPTS, ALL_TOKENS, PARTS, Method, Part
from dppo.objective import AdvantageRule, Normaliser, Statistics, TokenLoss
from dppo.pruning import GroupSizes, PromptPruning, Pruning, Rounds, Schedule, Selection, TokenPruning, constant
from dppo.pruning.scores import Score, advantage_with_length

ALL_COMPLETIONS = Pruning(score=advantage_with_length)
"""Keeps every completion with a gradient; ranks them for the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A paper's objective, in fields of ``Method``; a part that is None is the run's choice, else GRPO's."""

    name: str
    paper: str
    advantages: AdvantageRule | None = None
    token_loss: TokenLoss | None = None
    normaliser: Normaliser | None = None
    kl: TokenLoss | None = None
    beta: float = 0.0
    needs_reference: bool = False
    open: frozenset[Part] = frozenset()
    """Parts given here that a run may still choose."""
    score: Score | None = None
    """Score of completions in place of the scheme's."""
    deviations: tuple[str, ...] = ()

    @property
    def parts(self) -> dict[Part, Any]:
        """The parts that are given, by name."""
        return {part: value for part in PARTS if (value := getattr(self, part)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """Pruning of prompts before the rollout, of completions and tokens after it. Fields are those of ``Method``."""

    name: str
    paper: str
    completions: Selection = ALL_COMPLETIONS
    tokens: TokenPruning = ALL_TOKENS
    prompts: PromptPruning = ALL_PROMPTS
    sizes: GroupSizes | None = None
    rounds: Rounds | None = None
    schedule: Schedule = constant
    statistics: Statistics | None = None
    deviations: tuple[str, ...] = ()


UNPRUNED = Scheme(name="", paper="")
"""Everything is rolled out and trained on, but completions without a gradient."""


def combined(objective: Objective, scheme: Scheme, name: str = "") -> Method:
    """The method of an objective and a scheme; its name is by default that of both, ``dppo_gspo`` for example.

    Source: DPPO, arXiv:2603.04135, section 5, on top of GRPO, DAPO and GSPO.
    """
    own: list[Objective | Scheme] = [] if scheme is UNPRUNED else [scheme]
    if objective.parts or not own:  # an objective without parts adds nothing to a scheme
        own.append(objective)
    completions = scheme.completions
    if objective.score is not None and isinstance(completions, Pruning):
        completions = replace(completions, score=objective.score)
    return Method(
        name=name or "_".join(each.name for each in own),
        paper=", on top of ".join(dict.fromkeys(each.paper for each in own)),
        **objective.parts,
        fixes=frozenset(objective.parts) - objective.open,
        beta=objective.beta,
        needs_reference=objective.needs_reference,
        completions=completions,
        **{part: getattr(scheme, part) for part in ("tokens", "prompts", "sizes", "rounds", "schedule", "statistics")},
        deviations=tuple(dict.fromkeys(text for each in reversed(own) for text in each.deviations)),
    )
