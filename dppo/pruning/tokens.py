"""The level of tokens: how much of each kept completion is forwarded, and how much of that reaches the head."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dppo.errors import DesignError, in_words, raise_problems
from dppo.moment_samples import MomentSamples
from dppo.pruning.ceiling import COMPLETION_AUTO, Auto, selection_ceiling
from dppo.pruning.cuts import (
    TokenDraw,
    TokenProbabilities,
    TokenRule,
    best_cuts,
    by_uncertainty,
    check_mask,
    draw_tokens,
    pool_numbers,
    stated,
    token_moments,
)
from dppo.pruning.level import Level, floor_problems
from dppo.typed import check_fields
from dppo.types import each_tensor

FLOOR, HEAD_FLOOR = 0.05, 0.02
"""Lowest probabilities by default: no weight of a token exceeds 20 by its cut, and 1000 by both."""
MOST_OF_PREFIX = 0.5
"""Largest share that ``random_prefix`` can leave out: no token of a completion is kept for certain there."""


@dataclass(frozen=True, kw_only=True)
class SampledTokens:
    """The tokens of completions as the rollout engine sampled them."""

    logp_NT: Tensor
    """(N, T) log-probabilities of the sampled tokens, in nats; NaN, if the engine gave none, is probability 0."""
    mask_NT: Tensor
    """(N, T) bool, tokens that carry loss."""

    def __post_init__(self) -> None:
        check_fields(self, "SampledTokens(logp_NT=logp_NT, mask_NT=mask_NT.bool())")
        check_mask("logp_NT", self.logp_NT, self.mask_NT)

    @cached_property
    def span_NT(self) -> Tensor:
        """(N, T) bool, every token up to the last that carries loss: what can be cut."""
        return self.mask_NT.flip(1).cummax(1).values.flip(1)

    def moments(self, factor_N: Tensor) -> Tensor:
        """(N, T) float64 ``token_moments``; ``factor_N`` multiplies a token's loss: advantage times weight."""
        return token_moments(factor_N, torch.nan_to_num(self.logp_NT, nan=-math.inf), self.mask_NT)

    def take(self, unit_R: Tensor) -> "SampledTokens":
        """The tokens of the given completions."""
        return each_tensor(self, lambda value_NT: value_NT[unit_R])


def _random_prefix(moment_NT: Tensor, span_NT: Tensor, rate: float, floor: float) -> Tensor:
    """(N, T) probabilities if a completion is kept up to a length uniform between ``1 - 2 rate`` of its tokens and all.

    Source: NAT, arXiv:2603.06619, random prefix cutting.
    """
    if rate > MOST_OF_PREFIX:
        raise DesignError(f"random_prefix leaves out at most half of the tokens, not {rate:g}. Use rate=0.5.")
    length_N1, place_NT = span_NT.sum(1, keepdim=True), span_NT.cumsum(1)
    least_N1 = ((1 - 2 * rate) * length_N1).round().clamp_min(1)
    reach_NT = ((length_N1 - place_NT + 1) / (length_N1 - least_N1 + 1)).double().clamp_max(1.0)
    return torch.where(span_NT, reach_NT, 0.0)


def _all_alike(moment_NT: Tensor, span_NT: Tensor, rate: float, floor: float) -> Tensor:
    """The same probability for every token. Source: NAT, arXiv:2603.06619, uniform random sampling."""
    return (1 - rate) * span_NT.double()


random_prefix = TokenRule(name="random_prefix", compute=_random_prefix, largest_rate=MOST_OF_PREFIX)
all_alike = TokenRule(name="all_alike", compute=_all_alike)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPruning:
    """Pruning of tokens within kept completions. The defaults leave out nothing."""

    rate: float = 0.0
    """Share of the tokens behind a cut, on average, in [0, 1): neither forwarded nor trained on."""
    auto: Auto | None = None
    """Rule by which the rate of cuts is chosen in each step, up to ``rate``; None for a fixed rate."""
    head_rate: float = 0.0
    """Share of the tokens before a cut that do not reach the head, in [0, 1): forwarded by the body, without loss."""
    floor: float = FLOOR
    """Lowest probability of reaching a token, in (0, 1 - rate]."""
    head_floor: float = HEAD_FLOOR
    """Lowest probability of a token to reach the head, in (0, 1 - head_rate]."""
    cut_rule: TokenProbabilities = best_cuts
    head_rule: TokenProbabilities = by_uncertainty

    def __post_init__(self) -> None:
        check_fields(self, "TokenPruning(rate=0.5)", rate="[0, 1)", head_rate="[0, 1)")
        problems = floor_problems(self.floor, self.rate, "floor", f"rate={self.rate:g} keeps")
        problems += floor_problems(self.head_floor, self.head_rate, "head_floor", f"head_rate={self.head_rate:g} keeps")
        rule, name = stated(self.cut_rule), in_words(self.cut_rule)
        if self.auto is not None and not rule.chooses_rate:
            problems.append(f"a rate is chosen for best_cuts alone, not for {name}. Use auto=None, rate=0.5.")
        elif self.rate > (most := rule.largest_rate):
            problems.append(f"{name} leaves out at most {most:g}, not rate={self.rate:g}. Use rate={most:g}.")
        raise_problems("TokenPruning", problems)

    @property
    def needs_log_probs(self) -> bool:
        """True if it reads the sampler's log-probabilities."""
        rules = ((self.rate, self.cut_rule), (self.head_rate, self.head_rule))
        return any(bool(rate) and stated(rule).by_moments for rate, rule in rules)

    @property
    def reads_floor(self) -> bool:
        """True if both rules keep to the floors."""
        return stated(self.cut_rule).by_moments and stated(self.head_rule).by_moments

    @property
    def active(self) -> bool:
        """True if tokens of a kept completion may be left out."""
        return bool(self.rate or self.head_rate)

    def at_rate(self, rate: float, head_rate: float | None = None) -> "TokenPruning":
        """Cuts, and the head if ``head_rate`` is given, at another rate; floors are at most half of what is kept."""
        level = replace(self, rate=rate, floor=min(self.floor, (1 - rate) / 2), auto=None)
        if head_rate is None:
            return level
        return replace(level, head_rate=head_rate, head_floor=min(self.head_floor, (1 - head_rate) / 2))

    def scaled(self, factor: float) -> "TokenPruning":
        """Both rates times ``factor``, in [0, 1]."""
        return replace(self, rate=self.rate * factor, head_rate=self.head_rate * factor)

    def fixed(self) -> "TokenPruning":
        """The same at the largest rate that it may choose, as a given rate."""
        return replace(self, auto=None)

    def at_chosen_rate(
        self, moment_NT: Tensor, span_NT: Tensor, group_N: Tensor, *, rolled_out: float
    ) -> "TokenPruning":
        """This pruning if its rate is fixed, else at the rate that ``choose`` gives.

        Tokens that every cut keeps together are one unit of the samples; those of a prompt, by ``group_N`` (N,), are
        resampled together. Moments (N, T) are those of ``draw``; the rollout of ``rolled_out`` tokens is paid before.
        """
        if self.auto is None:
            return self
        owner = span_NT.nonzero()[:, 0].numpy()
        moment, cost, block = pool_numbers(moment_NT[span_NT].double().numpy(), np.ones(len(owner)), owner)
        moment_B, cost_B = torch.from_numpy(moment), torch.from_numpy(cost)
        ceiling = selection_ceiling(moment_B, cost_B, paid=self.auto.rollout_cost * rolled_out)
        if round(ceiling, 6) < self.auto.least_gain:
            return self.at_rate(0.0)  # without a look at each rate, which takes most of the time of a choice
        first = np.searchsorted(block, np.arange(len(moment)))
        group_B = group_N[torch.from_numpy(owner[first])]
        samples = MomentSamples.known(moment_B, cost_B, group_B, paid=rolled_out)
        pools = Level(rate=self.rate, floor=self.floor, budget="tokens", auto=self.auto)
        return self.at_rate(pools.choice(samples).rate)

    def draw(self, moment_NT: Tensor, span_NT: Tensor, rng: np.random.Generator) -> TokenDraw:
        """Draw a cut for each completion and the tokens before it that reach the head.

        ``moment_NT`` (N, T) >= 0, in any unit, are second moments of each token's gradient; ``span_NT`` (N, T) bool are
        the tokens that can be cut.
        """
        return draw_tokens(*self.probabilities(moment_NT, span_NT), rng)

    def probabilities(self, moment_NT: Tensor, span_NT: Tensor) -> tuple[Tensor, Tensor | None]:
        """(N, T) probabilities of reaching each token, and of reaching its head then; None if all do."""
        reach_NT = self.cut_rule(moment_NT, span_NT, self.rate, self.floor) if self.rate else span_NT.double()
        head_NT = self.head_rule(moment_NT, span_NT, self.head_rate, self.head_floor) if self.head_rate else None
        return reach_NT, head_NT

    def __str__(self) -> str:
        share, parts = f"auto, at most {self.rate:g}" if self.auto else f"{self.rate:g}", []
        if self.rate:
            parts.append(f"{share} of the tokens behind a cut ({in_words(self.cut_rule)}, floor {self.floor:g})")
        if self.head_rate:
            share = f"{self.head_rate:g} of the tokens {'before it ' if self.rate else ''}withheld from the head"
            parts.append(f"{share} ({in_words(self.head_rule)}, floor {self.head_floor:g})")
        return "; ".join(parts)


TOKEN_AUTO = COMPLETION_AUTO
