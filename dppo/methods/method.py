"""A training method as a value: its objective, its pruning, and its biases."""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from torch import Tensor

from dppo.context import StepContext
from dppo.errors import ConfigError, in_words, raise_problems
from dppo.objective import GROUP_SCALED, GRPO_MEAN, AdvantageRule, Normaliser, Statistics
from dppo.objective.losses import TokenLoss, Tokens, clipped_surrogate, k3, mixes_tokens
from dppo.pruning import GroupSizes, PromptPruning, Pruning, Rounds, Schedule, Selection, TokenPruning, constant
from dppo.pruning.probabilities import stated
from dppo.pruning.scores import Score, absolute_advantage, advantage_with_length
from dppo.typed import check_fields, range_problems

NO_PRUNING, ALL_PROMPTS, ALL_TOKENS = Pruning(), PromptPruning(), TokenPruning()
"""Keep every completion that has a gradient, every candidate and every token of what is kept, with weight 1."""
ALL_COMPLETIONS = Pruning(score=advantage_with_length)
"""Keeps every completion with a gradient; ranks them for the history."""

Part = Literal["advantages", "token_loss", "normaliser", "kl"]
PARTS: tuple[Part, ...] = get_args(Part)
ROUTER_BIAS = "the router loss is biased under pruning: it is a product of two means over what is kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """Pruning of prompts before the rollout, of completions and tokens after it."""

    name: str
    paper: str
    """arXiv number and title."""
    completions: Selection = ALL_COMPLETIONS
    """Choice of completions, after their rewards are known."""
    tokens: TokenPruning = ALL_TOKENS
    """Tokens left out of kept completions, by the sampler's log-probabilities."""
    prompts: PromptPruning = ALL_PROMPTS
    """Choice of prompts before rollout, from their history alone."""
    sizes: GroupSizes | None = None
    """Completions of each prompt, from its history; None for equal groups."""
    rounds: Rounds | None = None
    """Rounds of rollouts until enough groups count; None for one block."""
    schedule: Schedule = constant
    """Function from the share of training done to a factor of the rates; ``at`` applies it."""
    statistics: Statistics | None = None
    """Completions whose rewards the final advantages come from; None for whole groups."""
    deviations: tuple[str, ...] = ()
    """Differences from the paper, one sentence each."""


UNPRUNED = Scheme(name="", paper="")
"""No pruning: only completions without a gradient are skipped in training."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Method(Scheme):
    """A policy-gradient method: a scheme and an objective. Presets are values of this class, never subclasses."""

    completions: Selection = NO_PRUNING
    advantages: AdvantageRule = GROUP_SCALED
    """From rewards of whole groups to advantages, before pruning."""
    token_loss: TokenLoss = clipped_surrogate
    normaliser: Normaliser = GRPO_MEAN
    fixes: frozenset[Part] = frozenset()
    """Parts of the objective that are the method's own; a run may choose the others."""
    beta: float = 0.0
    """Coefficient of the KL term, >= 0."""
    kl: TokenLoss = k3
    """The KL term of each token."""
    needs_reference: bool = False
    """True if the token loss reads a reference even without a KL term."""
    entropy_coef: float = 0.0
    """Coefficient of the mean entropy of the step's tokens, which is subtracted from the loss."""
    router_coef: float = 0.0
    """Coefficient of the load-balancing loss of a mixture of experts, >= 0."""

    def __post_init__(self) -> None:
        example = 'replace(METHODS["dppo"], beta=0.1)'
        check_fields(self, example)
        problems = range_problems(self, example, beta="[0, inf)", router_coef="[0, inf)", entropy_coef="(-inf, inf)")
        if self.rounds is not None and (rate := self.prompts.rate):
            problems.append(f"prompts are rolled out in rounds, so none are pruned: prompt rate {rate:g}. Write 0.")
        if self.rounds is not None and self.sizes is not None:
            problems.append("prompts are rolled out in rounds, which have groups of one size. Write sizes=None.")
        if self.sizes is not None and not self.advantages.any_size:
            other = f"advantages by {self.advantages.name!r} mean something else in groups of another size"
            problems.append(f"{other}. Write advantages=HISTORY_CENTRED, or sizes=None.")
        for part in self.needs_all_tokens if self.tokens.active else []:
            why = f"tokens are left out ({self.tokens}), and the objective has {part}: that would be another loss"
            problems.append(f"{why}. Write tokens=ALL_TOKENS (token_prune_rate: 0 and head_prune_rate: 0).")
        raise_problems(f"Method {self.name!r}", problems)

    @property
    def needs_all_tokens(self) -> list[str]:
        """Parts of the objective that mix tokens; without any, tokens may be left out."""
        mixed = mixes_tokens(self.token_loss) or mixes_tokens(self.kl)
        parts = {
            "a loss of one token that looks at others of its completion": mixed,
            "a router loss, which is of all tokens together": self.router_coef > 0,
            "advantages from the completions that are kept": self.statistics is not None,
        }
        return [part for part, holds in parts.items() if holds]

    @property
    def drawn(self) -> Pruning | None:
        """The choice of completions if it is a draw by probabilities; None for a ranking."""
        return self.completions if isinstance(self.completions, Pruning) else None

    @property
    def score(self) -> Score:
        """Guess of the norm of a completion's gradient: the selection's score, ``abs(A)`` without one."""
        return getattr(self.completions, "score", absolute_advantage)

    @property
    def score_name(self) -> str:
        """Name of the score, for printed lines."""
        averaged = self.normaliser.per_sequence and stated(self.score).of_sums
        return in_words(self.score) + (" per token" if averaged else "")

    @property
    def selection_bias(self) -> tuple[str, ...]:
        """Reasons why the choice of units biases the gradient; empty if it does not."""
        statistics = self.statistics.bias if self.statistics is not None and self.completions.rate else ""
        levels = {
            "completion pruning is": "; ".join(filter(None, (self.completions.bias, statistics))),
            "prompt pruning is": self.prompts.bias,
            "rounds are": "" if self.rounds is None else self.rounds.bias,
        }
        return tuple(f"{level} biased: {reason}" for level, reason in levels.items() if reason)

    def biases(self, optimizer_steps: int = 1) -> tuple[str, ...]:
        """Every reason for a biased gradient, one sentence each; empty if it is unbiased.

        ``optimizer_steps`` is the number of steps per draw of prompts. For clipping and Adam see docs/estimators.md.
        """
        pruned, uneven, where = self.prompts.rate > 0, self.sizes is not None, "is biased under prompt pruning"
        divides, ratio, mixed = self.normaliser, not self.normaliser.prompt_exact, not self.advantages.prompt_exact
        remedy = "" if "normaliser" in self.fixes else ". The dr_grpo normaliser is not (TRL: loss_type: dr_grpo)"
        routed = self.router_coef > 0 and (pruned or uneven or self.completions.rate > 0)
        reasons = {
            f"the {divides.name} normaliser {where}: {divides.reason}{remedy}": pruned and ratio,
            f"the {divides.name} normaliser is biased where groups differ in size: {divides.reason}": uneven and ratio,
            f"the {self.advantages.name} advantage {where}: {self.advantages.reason}": pruned and mixed,
            f"the choice of completions {where}: they are ranked across the prompts that are rolled out": pruned
            and not getattr(self.completions, "prompt_exact", True),
            f"{ROUTER_BIAS}, weighted (bias O(1/n)), unless its coefficient is 0": routed,
            "prompts are drawn once for several optimizer steps: only the first one's gradient is unbiased": pruned
            and optimizer_steps > 1,
        }
        return self.selection_bias + tuple(reason for reason, holds in reasons.items() if holds)

    def live(self, advantage_N: Tensor) -> Tensor:
        """True, (N,), for completions that can have a gradient: a non-zero advantage, or a term that ignores it."""
        return (advantage_N != 0) | (self.beta > 0 or self.entropy_coef != 0 or self.router_coef > 0)

    def other_terms(self, context: StepContext) -> float | None:
        """``Completions.other``: size of the terms that ignore the advantage; None if unknown, as for a router."""
        if not (self.beta or self.entropy_coef or self.router_coef):
            return 0.0
        return None if self.router_coef else context.others.advantage

    def at(self, done: float) -> "Method":
        """The method at a point of the run: rates follow their schedule."""
        if self.schedule is constant:
            return self
        factor, prompts, completions = self.schedule(done), self.prompts, self.completions
        return replace(
            self,
            prompts=prompts.at_rate(prompts.rate * factor),
            completions=completions.at_rate(completions.rate * factor),
            tokens=replace(self.tokens, rate=self.tokens.rate * factor, head_rate=self.tokens.head_rate * factor),
            schedule=constant,
        )

    def with_rates(self, *, prompt: float | None = None, completion: float | None = None) -> "Method":
        """The same method at other fixed rates in [0, 1), of prompts (r_q) and completions (r_o); None leaves one."""
        prompts, completions = self.prompts, self.completions
        if prompt is not None:
            prompts = replace(prompts.at_rate(prompt), auto=None)
        if completion is not None:
            completions = completions.at_rate(completion)
            completions = replace(completions, auto=None) if isinstance(completions, Pruning) else completions
        return replace(self, prompts=prompts, completions=completions)

    def fixed(self) -> "Method":
        """The same method at the largest rates that ``auto`` may choose."""
        completions = self.completions if self.drawn is None else self.drawn.fixed()
        tokens = replace(self.tokens, auto=None)
        return replace(self, prompts=self.prompts.fixed(), completions=completions, tokens=tokens)

    def loss(self, tokens: Tokens) -> Tensor:
        """(B, T) loss of each token, policy and KL term, for ``weighted_sum``."""
        loss_BT = self.token_loss(tokens)
        if tokens.policy_BT is not None:
            loss_BT = loss_BT.masked_fill(tokens.policy_BT == 0, 0.0)
        return loss_BT + self.beta * self.kl(tokens) if self.beta else loss_BT

    def describe(self, optimizer_steps: int = 1) -> str:
        """One paragraph for the start of a run: pruning, objective and biases."""
        schedule = "" if self.schedule is constant else f", rate by schedule {in_words(self.schedule)}"
        completions = f"{self.completions}{schedule}" if self.completions.rate else "all with a gradient"
        prompts = f"{self.prompts}{schedule}" if self.prompts.rate else str(self.rounds or "all")
        tokens = f"Tokens: {self.tokens}. " if self.tokens.active else ""
        reasons = "; ".join(self.biases(optimizer_steps))
        differs = f" Differs from the paper: {'; '.join(self.deviations)}." if self.deviations else ""
        return (
            f"{self.name} ({self.paper}). Completions: {completions}. Prompts: {prompts}. {tokens}"
            f"Loss: {in_words(self.token_loss)}, {self.normaliser.name} normaliser, advantages scaled by "
            f"{self.advantages.name}, beta {self.beta:g}. Gradient: {f'biased ({reasons})' if reasons else 'unbiased'}."
            f"{differs}"
        )


def combined(objective: Objective, scheme: Scheme, name: str = "") -> Method:
    """The method of an objective and a scheme, by default named after both, such as ``dppo_gspo``.

    Raise ``ConfigError`` if ``scheme`` is a ``Method``: the objective of that method would be lost.

    Source: DPPO, arXiv:2603.04135, section 5, on top of GRPO, DAPO and GSPO.
    """
    if isinstance(scheme, Method):
        why = f"{scheme.name} is a method: its own objective would be lost beside {objective.name}"
        raise ConfigError(f"{why}. Give a scheme instead: combined(objective, SCHEMES['dppo']).")
    parts: dict[Part, Any] = {part: value for part in PARTS if (value := getattr(objective, part)) is not None}
    own: list[Objective | Scheme] = [] if scheme is UNPRUNED else [scheme]
    if parts or not own:  # an objective without parts adds nothing to a scheme
        own.append(objective)
    completions = scheme.completions
    if objective.score is not None and isinstance(completions, Pruning):
        completions = replace(completions, score=objective.score)
    return Method(
        name=name or "_".join(each.name for each in own),
        paper=", on top of ".join(dict.fromkeys(each.paper for each in own)),
        **parts,
        fixes=frozenset(parts) - objective.open,
        beta=objective.beta,
        needs_reference=objective.needs_reference,
        completions=completions,
        **{part: getattr(scheme, part) for part in ("tokens", "prompts", "sizes", "rounds", "schedule", "statistics")},
        deviations=tuple(dict.fromkeys(text for each in reversed(own) for text in each.deviations)),
    )
