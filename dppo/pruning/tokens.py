"""Tokens inside a completion: where it is cut, and which tokens before the cut reach the head.

A *cut* keeps the first tokens of a completion; the rest is neither forwarded nor back-propagated, and a cut at 0 drops
the completion. *Head sampling* sends all kept tokens through the body of the model and some of them through the head.
Both fix a probability for each token before anything is drawn, and weight a token's loss by one over it. So the
expected gradient of a loss that is a sum over tokens is that of the full batch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dppo.errors import DesignError, ShapeError, in_words, raise_problems
from dppo.moment_samples import MomentSamples
from dppo.pruning.ceiling import COMPLETION_AUTO, Auto, selection_ceiling
from dppo.pruning.designs import INVERSE_PROBABILITY, SYSTEMATIC
from dppo.pruning.level import Level, floor_problems
from dppo.pruning.probabilities import finite, inclusion_probabilities, stated, stating
from dppo.typed import check_fields
from dppo.types import each_tensor

MOST_OF_PREFIX = 0.5
"""Largest share that ``random_prefix`` can leave out: no token of a completion is kept for certain there."""
TOKEN_AUTO = COMPLETION_AUTO

TokenProbabilities = Callable[[Tensor, Tensor, float, float], Tensor]
"""``rule(moment_NT, span_NT, rate, floor) -> prob_NT``: probabilities of reaching each token, or its head. They leave
out ``rate`` of the tokens on average. Those of a cut never rise along a completion."""


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
        """(N, T) float64 ``(f * (1 - p_t))^2``, 0 at tokens without loss: a token of probability 1 has no gradient.

        ``factor_N`` f multiplies a token's loss: advantage of the whole group times weight, over the tokens of the
        completion if the loss takes a mean within it.
        """
        logp_NT = torch.nan_to_num(self.logp_NT, nan=-math.inf).double()
        one_minus_p_NT = torch.where(self.mask_NT, -torch.expm1(logp_NT), 0.0)
        return (factor_N.double()[:, None] * one_minus_p_NT).square()

    def take(self, unit_R: Tensor) -> "SampledTokens":
        """The tokens of the given completions."""
        return each_tensor(self, lambda value_NT: value_NT[unit_R])


def check_mask(name: str, value_NT: Tensor, mask_NT: Tensor) -> None:
    """Raise ``ShapeError`` unless value and mask are (N, T) of one shape, the mask bool."""
    if value_NT.shape != mask_NT.shape or mask_NT.dtype != torch.bool or mask_NT.dim() != 2:
        shapes = f"{name} {tuple(value_NT.shape)} and mask_NT {tuple(mask_NT.shape)} {mask_NT.dtype}"
        raise ShapeError(f"{shapes}: expected (N, T) of one shape, the mask bool. Pass mask_NT.bool().")


def _check_tokens(moment_NT: Tensor, mask_NT: Tensor) -> None:
    check_mask("moment_NT", moment_NT, mask_NT)
    if bool((mask_NT[:, 1:] & ~mask_NT[:, :-1]).any()):
        raise ShapeError("a completion's tokens have a gap: cut up to the last token, and mask within by moment 0.")


@stating(by_moments=True, chooses_rate=True)
def best_cuts(moment_NT: Tensor, mask_NT: Tensor, rate: float, floor: float) -> Tensor:
    """(N, T) float64 probabilities of reaching each token, in [floor, 1], with the least added variance; 0 elsewhere.

    They minimise ``sum moment_t / reach_t`` for a given mean of ``reach_t`` and never rise along a completion: the root
    of moments, pooled over neighbours until they never rise. Moments [[4, 1, 1], [1, 1, 0]] with a rate of 1/3 and a
    floor of 0.1 give [[1, .72, .72], [.72, .72, .1]], rounded.

    Source: pool adjacent violators, Barlow et al. (1972), for the order; Neyman (1934) for the allocation.
    """
    _check_tokens(moment_NT, mask_NT)
    moment = finite("moment", moment_NT[mask_NT])
    owner = mask_NT.nonzero()[:, 0].numpy()
    pool_moment, pool_cost, block = pool_numbers(moment, np.ones(len(moment)), owner)
    slope = np.sqrt(pool_moment / pool_cost)[block]
    reach_NT = _allocated(torch.from_numpy(slope), mask_NT, rate, floor)
    # Rounding may lift a token's probability by an ulp over that of the token before it.
    return reach_NT.cummin(1).values.masked_fill(~mask_NT, 0.0)


def pool_numbers(moment: np.ndarray, cost: np.ndarray, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Moment and cost of each pool of neighbouring tokens, and each token's pool: moment over cost never rises.

    ``moment`` >= 0, ``cost`` > 0 and the completion ``owner``, ascending, are those of each token.
    """
    block = np.arange(len(moment))
    while True:
        ratio = moment / cost
        rises = (owner[1:] == owner[:-1]) & (ratio[1:] > ratio[:-1])
        if not rises.any():
            return moment, cost, block
        first = np.concatenate([[True], ~rises])
        start = np.flatnonzero(first)
        moment, cost, owner = np.add.reduceat(moment, start), np.add.reduceat(cost, start), owner[start]
        block = (np.cumsum(first) - 1)[block]


def _allocated(size: Tensor, mask_NT: Tensor, rate: float, floor: float) -> Tensor:
    prob = inclusion_probabilities(size, (1 - rate) * len(size), floor=floor)
    return torch.zeros(mask_NT.shape, dtype=torch.float64).masked_scatter(mask_NT, prob)


@stating(by_moments=True)
def by_uncertainty(moment_NT: Tensor, mask_NT: Tensor, rate: float, floor: float) -> Tensor:
    """(N, T) probabilities of reaching the head, proportional to the root of a token's moment; as for ``best_cuts``."""
    _check_tokens(moment_NT, mask_NT)
    return _allocated(moment_NT[mask_NT].double().sqrt(), mask_NT, rate, floor)


@stating(largest_rate=MOST_OF_PREFIX)
def random_prefix(moment_NT: Tensor, span_NT: Tensor, rate: float, floor: float) -> Tensor:
    """Cuts at a length uniform from ``1 - 2 rate`` of the tokens to all: random prefix of NAT, arXiv:2603.06619."""
    if rate > MOST_OF_PREFIX:
        raise DesignError(f"random_prefix leaves out at most half of the tokens, not {rate:g}. Use rate=0.5.")
    length_N1, place_NT = span_NT.sum(1, keepdim=True), span_NT.cumsum(1)
    least_N1 = ((1 - 2 * rate) * length_N1).round().clamp_min(1)
    reach_NT = ((length_N1 - place_NT + 1) / (length_N1 - least_N1 + 1)).double().clamp_max(1.0)
    return torch.where(span_NT, reach_NT, 0.0)


def all_alike(moment_NT: Tensor, span_NT: Tensor, rate: float, floor: float) -> Tensor:
    """The same probability for every token. Source: NAT, arXiv:2603.06619, uniform random sampling."""
    return (1 - rate) * span_NT.double()


def draw_cuts(reach_NT: Tensor, rng: np.random.Generator) -> Tensor:
    """(N,) int64 tokens kept of each completion, by the probabilities (N, T) of reaching each.

    A completion reaches the tokens with a probability above its uniform number. The numbers are stratified, one in each
    N-th of the unit interval in random order, so the tokens kept in a step vary little.
    """
    count = len(reach_NT)
    uniform_N = torch.from_numpy((rng.permutation(count) + rng.random(count)) / max(count, 1))
    return (reach_NT > uniform_N[:, None]).sum(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDraw:
    """Draw of the tokens of a step's completions, with the probability and the weight of each token."""

    length_N: Tensor
    """(N,) int64 tokens of each completion that are forwarded: up to the last that is drawn, or 0."""
    reach_N: Tensor
    """(N,) float64 probability that a completion is not cut at 0."""
    prob_NT: Tensor
    """(N, T) float64 probability that each token reaches the loss; 0 without a token."""
    weight_NT: Tensor
    """(N, T) float64 one over the probability at tokens that are drawn, 0 elsewhere."""

    @classmethod
    def of(cls, keep_NT: Tensor, reach_NT: Tensor, prob_NT: Tensor) -> "TokenDraw":
        """Draw that keeps the tokens of ``keep_NT``. ``prob_NT`` is ``reach_NT`` times the probability of the head."""
        count, width = keep_NT.shape
        length_N, reach_N = torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.float64)
        if width:  # no token after the last drawn one has a loss, so none is forwarded
            length_N, reach_N = (keep_NT * torch.arange(1, width + 1)).amax(1), reach_NT[:, 0].double()
        weight_NT = INVERSE_PROBABILITY.compute(keep_NT, prob_NT)
        return cls(length_N=length_N, reach_N=reach_N, prob_NT=prob_NT, weight_NT=weight_NT)


def draw_tokens(reach_NT: Tensor, head_NT: Tensor | None, rng: np.random.Generator) -> TokenDraw:
    """Draw a cut for each completion and, independently, the tokens before it that reach the head.

    ``reach_NT`` (N, T) are the probabilities of reaching each token, and ``head_NT`` (N, T), in (0, 1] at tokens, those
    of a reached token to reach the head; None for 1. A token's probability is the product of both.
    """
    mask_NT = reach_NT > 0
    if head_NT is not None and not bool((head_NT > 0)[mask_NT].all()):
        raise DesignError("head_NT is 0 at a token that can be reached: give it a floor, such as floor=0.05.")
    keep_NT = torch.arange(reach_NT.shape[1]) < draw_cuts(reach_NT, rng)[:, None]
    if head_NT is None:
        return TokenDraw.of(keep_NT, reach_NT, reach_NT)
    head, drawn_NT = head_NT[mask_NT].double(), torch.zeros_like(mask_NT)
    drawn_NT[mask_NT] = SYSTEMATIC.draw(head, head, rng)
    return TokenDraw.of(keep_NT & drawn_NT, reach_NT, reach_NT * head_NT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPruning:
    """Pruning of tokens within kept completions. The defaults leave out nothing."""

    rate: float = 0.0
    """Share of the tokens behind a cut, on average, in [0, 1): neither forwarded nor trained on."""
    auto: Auto | None = None
    """Rule by which the rate of cuts is chosen in each step, up to ``rate``; None for a fixed rate."""
    head_rate: float = 0.0
    """Share of the tokens before a cut that do not reach the head, in [0, 1): forwarded by the body, without loss."""
    floor: float = 0.05
    """Lowest probability of reaching a token, in (0, 1 - rate]: no weight by a cut exceeds 20."""
    head_floor: float = 0.02
    """Lowest probability of a token to reach the head, in (0, 1 - head_rate]: no weight by both exceeds 1000."""
    cut_rule: TokenProbabilities = best_cuts
    head_rule: TokenProbabilities = by_uncertainty

    def __post_init__(self) -> None:
        check_fields(self, "TokenPruning(rate=0.5)", rate="[0, 1)", head_rate="[0, 1)")
        problems = floor_problems(self.floor, self.rate, "floor", f"rate={self.rate:g} keeps")
        problems += floor_problems(self.head_floor, self.head_rate, "head_floor", f"head_rate={self.head_rate:g} keeps")
        name, most = in_words(self.cut_rule), stated(self.cut_rule).largest_rate
        if self.auto is not None and not stated(self.cut_rule).chooses_rate:
            problems.append(f"a rate is chosen for best_cuts alone, not for {name}. Use auto=None, rate=0.5.")
        elif self.rate > most:
            problems.append(f"{name} leaves out at most {most:g}, not rate={self.rate:g}. Use rate={most:g}.")
        raise_problems("TokenPruning", problems)

    @property
    def needs_log_probs(self) -> bool:
        """True if it reads the sampler's log-probabilities."""
        rules = ((self.rate, self.cut_rule), (self.head_rate, self.head_rule))
        return any(bool(rate) and stated(rule).by_moments for rate, rule in rules)

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

    def at_chosen_rate(
        self, moment_NT: Tensor, span_NT: Tensor, group_N: Tensor, *, rolled_out: float
    ) -> "TokenPruning":
        """This pruning if its rate is fixed, else at the rate that ``choose`` gives.

        Tokens that every cut keeps together are one unit; those of a prompt, ``group_N`` (N,), are resampled together.
        Moments (N, T) are those of ``draw``; the rollout of ``rolled_out`` tokens is paid before.
        """
        if self.auto is None:
            return self
        owner = span_NT.nonzero()[:, 0].numpy()
        moment, cost, block = pool_numbers(moment_NT[span_NT].double().numpy(), np.ones(len(owner)), owner)
        moment_B, cost_B = torch.from_numpy(moment), torch.from_numpy(cost)
        ceiling = selection_ceiling(moment_B, cost_B, paid=self.auto.rollout_cost * rolled_out)
        if round(ceiling, 6) < self.auto.least_gain:
            return self.at_rate(0.0)  # without a look at each rate, which takes most of the time of a choice
        group_B = group_N[torch.from_numpy(owner[np.searchsorted(block, np.arange(len(moment)))])]
        samples = MomentSamples.known(moment_B, cost_B, group_B, paid=rolled_out)
        pools = Level(rate=self.rate, floor=self.floor, budget="tokens", auto=self.auto)
        return self.at_rate(pools.choice(samples).rate)

    def draw(self, moment_NT: Tensor, span_NT: Tensor, rng: np.random.Generator) -> TokenDraw:
        """Draw a cut for each completion and tokens for the head, by moments (N, T) >= 0 in ``span_NT`` (N, T) bool."""
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
