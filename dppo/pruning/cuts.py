"""Tokens inside a completion: where it is cut, and which tokens before the cut reach the head.

A *cut* keeps the first tokens of a completion; the rest is neither forwarded nor back-propagated, and a cut at 0 drops
the completion. *Head sampling* sends all kept tokens through the body of the model and some of them through the head.
Both fix a probability for each token before anything is drawn, and weight a token's loss by one over it. So the
expected gradient of a loss that is a sum over tokens is that of the full batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dppo.errors import DesignError, ShapeError, in_words
from dppo.pruning.designs import SYSTEMATIC, Design
from dppo.pruning.probabilities import Stated, finite, inclusion_probabilities
from dppo.types import each_tensor

TokenProbabilities = Callable[[Tensor, Tensor, float, float], Tensor]
"""``rule(moment_NT, span_NT, rate, floor) -> prob_NT``: probabilities of reaching each token, or its head. They leave
out ``rate`` of the tokens on average. Those of a cut never rise along a completion. Moments are ``token_moments``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRule(Stated):
    """A rule for cuts or for the head, with what it needs."""

    by_moments: bool = False
    """True if it reads moments and the floor: it needs the sampler's log-probabilities."""
    chooses_rate: bool = False
    """True if ``auto`` can choose its rate."""
    largest_rate: float = 1.0
    """Largest share that it can leave out."""


def stated(rule: TokenProbabilities) -> TokenRule:
    """The rule with its properties: a plain function has the defaults."""
    return rule if isinstance(rule, TokenRule) else TokenRule(name=in_words(rule), compute=rule)


def token_moments(advantage_N: Tensor, logp_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """(N, T) float64 ``(A * (1 - p_t))^2``, 0 at tokens without loss: a token of probability 1 has no gradient.

    Advantages (N,) are those of whole groups, divided by the completion's tokens if the loss takes a mean within it.
    Log-probabilities are in nats, with any value where the mask is 0.
    """
    one_minus_p_NT = torch.where(mask_NT.bool(), -torch.expm1(logp_NT.double()), 0.0)
    return (advantage_N.double()[:, None] * one_minus_p_NT).square()


def _best_cuts(moment_NT: Tensor, mask_NT: Tensor, rate: float, floor: float) -> Tensor:
    """(N, T) float64 probabilities of reaching each token, in [floor, 1], with the least added variance; 0 elsewhere.

    They minimise ``sum moment_t / reach_t`` for a given mean of ``reach_t``, over probabilities that never rise along a
    completion. The optimum pools neighbouring tokens until their moment never rises, and is proportional to the root of
    the pooled moment. Moments [[4, 1, 1], [1, 1, 0]] with a rate of 1/3 and a floor of 0.1 give [[1, .72, .72], [.72,
    .72, .1]], rounded.

    Source: pool adjacent violators, Barlow et al. (1972), for the order; Neyman (1934) for the allocation.
    """
    _check_tokens(moment_NT, mask_NT)
    moment = finite("moment", moment_NT[mask_NT])
    owner = mask_NT.nonzero()[:, 0].numpy()
    pool_moment, pool_cost, block = pool_numbers(moment, np.ones(len(moment)), owner)
    slope = np.sqrt(pool_moment / pool_cost)[block]
    reach_NT = torch.zeros(mask_NT.shape, dtype=torch.float64)
    reach_NT[mask_NT] = inclusion_probabilities(torch.from_numpy(slope), (1 - rate) * len(slope), floor=floor)
    # Rounding may lift a token's probability by an ulp over that of the token before it.
    return reach_NT.cummin(1).values.masked_fill(~mask_NT, 0.0)


def pool_numbers(moment: np.ndarray, cost: np.ndarray, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Moment and cost of each pool, and the pool of each token: moment over cost never rises along a completion.

    ``moment`` >= 0, ``cost`` > 0 and the completion ``owner``, ascending, are those of each token (pool adjacent
    violators).
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


def draw_cuts(reach_NT: Tensor, rng: np.random.Generator) -> Tensor:
    """(N,) int64 tokens kept of each completion, by the probabilities (N, T) of reaching each.

    A completion reaches the tokens with a probability above its uniform number. The numbers are stratified: one in each
    N-th of the unit interval, in random order. So the tokens kept in a step vary little.
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
        weight_NT = torch.where(keep_NT, prob_NT.clamp_min(torch.finfo(torch.float64).tiny).reciprocal(), 0.0)
        count, width = keep_NT.shape
        length_N, reach_N = torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.float64)
        if width:  # no token after the last drawn one has a loss, so none is forwarded
            length_N, reach_N = (keep_NT * torch.arange(1, width + 1)).amax(1), reach_NT[:, 0].double()
        return cls(length_N=length_N, reach_N=reach_N, prob_NT=prob_NT, weight_NT=weight_NT)

    def scattered(self, unit_R: Tensor, size: int) -> "TokenDraw":
        """Draw over all ``size`` completions from this one of some; the others are dropped, with probability 0."""
        return each_tensor(self, lambda value: value.new_zeros(size, *value.shape[1:]).index_copy_(0, unit_R, value))


def draw_tokens(
    reach_NT: Tensor, head_NT: Tensor | None, rng: np.random.Generator, *, design: Design = SYSTEMATIC
) -> TokenDraw:
    """Draw a cut for each completion and, independently, the tokens before it that reach the head.

    ``reach_NT`` (N, T) are the probabilities of reaching each token, and ``head_NT`` (N, T), in (0, 1] at tokens, those
    of a reached token to reach the head; None for 1. A token's probability is the product of both.
    """
    mask_NT = reach_NT > 0
    if head_NT is not None and not bool((head_NT > 0)[mask_NT].all()):
        raise DesignError("head_NT is 0 at a token that can be reached: give it a floor, such as floor=0.05.")
    if not design.unbiased:
        raise DesignError(f"design={design.name!r} is biased: {design.reason}. Use design=SYSTEMATIC.")
    keep_NT = torch.arange(reach_NT.shape[1]) < draw_cuts(reach_NT, rng)[:, None]
    if head_NT is None:
        return TokenDraw.of(keep_NT, reach_NT, reach_NT)
    head, drawn_NT = head_NT[mask_NT].double(), torch.zeros_like(mask_NT)
    drawn_NT[mask_NT] = design.draw(head, head, rng)
    return TokenDraw.of(keep_NT & drawn_NT, reach_NT, reach_NT * head_NT)


def _by_uncertainty(moment_NT: Tensor, mask_NT: Tensor, rate: float, floor: float) -> Tensor:
    """(N, T) probabilities of reaching the head, proportional to the root of a token's moment; as for ``best_cuts``."""
    _check_tokens(moment_NT, mask_NT)
    size = moment_NT[mask_NT].double().sqrt()
    prob_NT = torch.zeros(mask_NT.shape, dtype=torch.float64)
    prob_NT[mask_NT] = inclusion_probabilities(size, (1 - rate) * len(size), floor=floor)
    return prob_NT


best_cuts = TokenRule(name="best_cuts", compute=_best_cuts, by_moments=True, chooses_rate=True)
by_uncertainty = TokenRule(name="by_uncertainty", compute=_by_uncertainty, by_moments=True)


def check_mask(name: str, value_NT: Tensor, mask_NT: Tensor) -> None:
    """Raise ``ShapeError`` unless value and mask are (N, T) of one shape, the mask bool."""
    if value_NT.shape != mask_NT.shape or mask_NT.dtype != torch.bool or mask_NT.dim() != 2:
        shapes = f"{name} {tuple(value_NT.shape)} and mask_NT {tuple(mask_NT.shape)} {mask_NT.dtype}"
        raise ShapeError(f"{shapes}: expected (N, T) of one shape, the mask bool. Pass mask_NT.bool().")


def _check_tokens(moment_NT: Tensor, mask_NT: Tensor) -> None:
    check_mask("moment_NT", moment_NT, mask_NT)
    if bool((mask_NT[:, 1:] & ~mask_NT[:, :-1]).any()):
        raise ShapeError("a completion's tokens have a gap: cut up to the last token, and mask within by moment 0.")
