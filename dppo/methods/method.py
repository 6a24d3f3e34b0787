"""A training method as a value made of functions: what it computes, what it drops, and whether that is biased."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from dppo.errors import ConfigError, raise_problems
from dppo.objective import (
    BIASED_STATISTICS,
    GROUP_SCALED,
    GRPO_MEAN,
    AdvantageRule,
    Normaliser,
    Statistics,
    TokenLoss,
    clipped_surrogate,
    k3,
    whole_groups,
)
from dppo.pruning import (
    Pruning,
    Rounds,
    Score,
    advantage_with_confidence,
    advantage_with_length,
    constant,
    fixed_denominator,
    live_rows,
    per_token,
)

NO_PRUNING = Pruning()
"""Keeps every row that has a gradient, with weight 1."""

PER_TOKEN_SCORES: dict[Score, Score] = {
    score: per_token(score) for score in (advantage_with_length, advantage_with_confidence)
}
"""Scores that stand for the gradient norm of a token *sum*, each with the one for a token *mean*.

Scores that belong to a paper's rule (the absolute advantage) or to nothing (uniform) are the same for both.
"""

_TOKEN_SUM_SCORES = {mean: total for total, mean in PER_TOKEN_SCORES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A policy-gradient method with its pruning. Presets are values of this class, never subclasses.

    The score of ``completions`` follows the normaliser: one that divides each completion by its own length shrinks
    the gradients of long ones, so a score from ``PER_TOKEN_SCORES`` is then replaced by its per-token version, and
    back again when the normaliser is replaced. Any other score is used as given.

    Raises:
        ConfigError: ``beta`` is negative or not finite, or prompts are pruned and rolled out in rounds too.
    """

    name: str
    paper: str
    """arXiv number and title."""
    advantages: AdvantageRule = GROUP_SCALED
    """Rewards (P, G) to advantages (P, G), from whole groups, before pruning."""
    token_loss: TokenLoss = clipped_surrogate
    normaliser: Normaliser = GRPO_MEAN
    completions: Pruning = NO_PRUNING
    """Which completions are trained on, after their rewards are known."""
    prompts: Pruning = NO_PRUNING
    """Which prompts are rolled out, from their history alone."""
    rounds: Rounds | None = None
    """How prompts are rolled out until enough groups count, in place of one block; None for one block."""
    statistics: Statistics = whole_groups
    """Which completions the advantages that are trained on come from, once some are kept."""
    beta: float = 0.0
    """Coefficient of the KL term (k3), >= 0."""
    deviations: tuple[str, ...] = ()
    """Where this differs from the paper, one sentence each."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.beta) and self.beta >= 0):
            raise_problems(f"Method {self.name!r}", [f"beta={self.beta!r} must be finite and >= 0. Write beta=0.0."])
        if self.rounds is not None and self.prompts.rate:
            problem = (
                f"prompts are rolled out in rounds, so none are pruned: prompt rate {self.prompts.rate:g}. Write 0."
            )
            raise_problems(f"Method {self.name!r}", [problem])
        wanted = PER_TOKEN_SCORES if self.normaliser.per_sequence else _TOKEN_SUM_SCORES
        score = wanted.get(self.completions.score, self.completions.score)
        if score is not self.completions.score:
            object.__setattr__(self, "completions", replace(self.completions, score=score))

    @property
    def selection_bias(self) -> tuple[str, ...]:
        """Sentences saying why the choice of what is kept biases the gradient; empty where it does not."""
        statistics = BIASED_STATISTICS.get(self.statistics, "") if self.completions.rate else ""
        completions = "; ".join(filter(None, (self.completions.bias, statistics)))
        levels = (
            ("completion pruning is", completions),
            ("prompt pruning is", self.prompts.bias),
            ("rounds are", "" if self.rounds is None else self.rounds.bias),
        )
        return tuple(f"{level} biased: {reason}" for level, reason in levels if reason)

    @property
    def bias(self) -> tuple[str, ...]:
        """Every reason why the expected gradient is not the full batch's, one sentence each; empty where it is.

        This is about one gradient given the rollouts. What an optimizer makes of it, and reusing one draw for several
        passes, are outside of what a method can know: docs/estimators.md.
        """
        parts = [
            (f"the {self.normaliser.name} normaliser", self.normaliser.prompt_exact, self.normaliser.reason),
            (f"the {self.advantages.name} advantage", self.advantages.prompt_exact, self.advantages.reason),
        ]
        return self.selection_bias + tuple(
            f"{part} is biased under prompt pruning: {reason}"
            for part, exact, reason in parts
            if self.prompts.rate and not exact
        )

    @property
    def unbiased(self) -> bool:
        """True where the expected gradient is the gradient of the full batch."""
        return not self.bias

    def live(self, advantage_N: Tensor) -> Tensor:
        """True, (N,), for completions that can have a gradient: a non-zero advantage, or any at all with a KL term.

        The others can be dropped at no cost in bias or variance, as long as the denominator still counts them.
        """
        return (advantage_N != 0) | (self.beta > 0)

    def trained_advantages(self, reward_PG: Tensor, advantage_PG: Tensor, keep_PG: Tensor) -> Tensor:
        """The advantages that kept completions are trained with, (P, G): those of whole groups for most methods.

        Args:
            reward_PG: (P, G) rewards of the rolled-out prompts.
            advantage_PG: (P, G) their advantages from whole groups.
            keep_PG: (P, G) bool, completions kept, those without a gradient that the scope counts included.
        """
        if not self.completions.rate:
            return advantage_PG
        return self.statistics(self.advantages, reward_PG, advantage_PG, keep_PG)

    def at(self, done: float) -> "Method":
        """The method at a point of the run: rates follow their schedules.

        Args:
            done: share of training done, in [0, 1].
        """
        prompts, completions = self.prompts.at(done), self.completions.at(done)
        if prompts is self.prompts and completions is self.completions:
            return self
        return replace(self, prompts=prompts, completions=completions)

    def loss(
        self,
        logp_BT: Tensor,
        old_logp_BT: Tensor,
        advantage_B: Tensor,
        mask_BT: Tensor,
        ref_logp_BT: Tensor | None = None,
    ) -> Tensor:
        """The complete loss of each token, policy and KL term: what a completion's weight multiplies.

        Args:
            logp_BT: (B, T) log-probabilities of the sampled tokens, in nats; carries the gradient.
            old_logp_BT: (B, T) the same under the policy of the rollout.
            advantage_B: (B,) advantages from whole groups.
            mask_BT: (B, T) bool or 0/1, true where a token carries loss.
            ref_logp_BT: (B, T) the same under the reference policy; needed where beta > 0.

        Returns:
            (B, T) loss per token, for ``weighted_sum``.

        Raises:
            ConfigError: beta > 0 and there is no ``ref_logp_BT``.
        """
        loss_BT = self.token_loss(logp_BT, old_logp_BT, advantage_B, mask_BT)
        if self.beta == 0:
            return loss_BT
        if ref_logp_BT is None:
            raise ConfigError(
                f"beta={self.beta:g} needs ref_logp_BT, the reference policy's log-probabilities: pass "
                "them, or set beta=0.0."
            )
        padding_BT = mask_BT == 0
        return loss_BT + self.beta * k3(logp_BT.masked_fill(padding_BT, 0.0), ref_logp_BT.masked_fill(padding_BT, 0.0))

    def with_rates(self, *, prompt: float | None = None, completion: float | None = None) -> "Method":
        """The same method at other pruning rates; None leaves a rate as it is.

        Args:
            prompt: share of the candidate prompts that is not rolled out (r_q), in [0, 1).
            completion: share of the completions with a gradient that is not trained on (r_o), in [0, 1).

        Returns:
            A new ``Method``.

        Raises:
            ConfigError: a rate is out of range, or keeps less than the floor of its pruning.
        """
        prompts = self.prompts if prompt is None else replace(self.prompts, rate=prompt)
        completions = self.completions if completion is None else replace(self.completions, rate=completion)
        return replace(self, prompts=prompts, completions=completions)

    @property
    def score_name(self) -> str:
        """What completions are ranked by, in words."""
        score = self.completions.score
        return f"{_name(_TOKEN_SUM_SCORES[score])} per token" if score in _TOKEN_SUM_SCORES else _name(score)

    @property
    def schedule_name(self) -> str:
        """How the rates change over a run, in words; empty where they do not."""
        found = {level.schedule for level in (self.prompts, self.completions) if level.rate} - {constant}
        return ", ".join(sorted(map(_name, found)))

    def describe(self) -> str:
        """One paragraph for the start of a run: what is pruned and how, the normaliser, and whether it is biased."""
        prompts = str(self.rounds) if self.rounds else _pruning(self.prompts, "expected signal")
        completions = _pruning(self.completions, self.score_name)
        text = (
            f"{self.name} ({self.paper}). Completions: {completions or 'all with a gradient'}. "
            f"Prompts: {prompts or 'all'}. Loss: {_name(self.token_loss)}, "
            f"{self.normaliser.name} normaliser, advantages scaled by {self.advantages.name}, beta {self.beta:g}. "
        )
        verdict = "biased (" + "; ".join(self.bias) + ")" if self.bias else "unbiased"
        differs = " Differs from the paper: " + "; ".join(self.deviations) + "." if self.deviations else ""
        return f"{text}Gradient: {verdict}.{differs}"


def _pruning(pruning: Pruning, scored: str) -> str:
    if not pruning.rate:
        return ""
    scope = "" if pruning.scope is live_rows else f" over {_name(pruning.scope)}"
    weights = _name(pruning.weighting)
    if pruning.rescaling is not fixed_denominator:
        weights += f" over {_name(pruning.rescaling)}"
    schedule = "" if pruning.schedule is constant else f", rate by schedule {_name(pruning.schedule)}"
    return (
        f"{pruning.rate:g} of the {pruning.budget} pruned, {_name(pruning.rule)} rule on {scored}{scope}, "
        f"{pruning.design.name} draw, {weights} weights, floor {pruning.floor:g}{schedule}"
    )


def _name(function: Callable[..., object]) -> str:
    if isinstance(function, partial):
        constants = ", ".join(f"{key}={value}" for key, value in function.keywords.items())
        return f"{_name(function.func)}({constants})"
    return getattr(function, "__name__", type(function).__name__).replace("_", " ")
