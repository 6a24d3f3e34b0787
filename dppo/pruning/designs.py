"""Sampling designs, a random selection of units with given inclusion probabilities; and weights of what is kept."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dppo.types import Completions

WHOLE = 1e-9
"""A sum of probabilities this close to an integer is that integer, up to rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Way to draw units. Units of probability 1 are always kept, units of probability 0 never."""

    name: str
    unbiased: bool = True
    """True if each unit is kept with exactly its probability."""
    fixed_size: bool = True
    """True if the number of units kept is always the sum of the probabilities, rounded down or up."""
    reason: str = ""
    """Why it is biased, one clause; empty if it is not."""
    draw: Callable[[Tensor, Tensor, np.random.Generator], Tensor]
    """``draw(prob_N, score_N, rng) -> keep_N``: (N,) float64 in [0, 1], (N,) float64, to (N,) bool."""


def draw_pivotal(prob_N: Tensor, score_N: Tensor, rng: np.random.Generator) -> Tensor:
    """Fixed-size draw by duels between neighbours: one of two units is decided, the other carries the rest.

    Neighbours exclude each other, so the variance is below that of independent draws if like units are neighbours.

    Source: Deville and Tille, Unequal probability sampling without replacement through a splitting method (1998); the
        ordered form is that of Chauvet, On a characterization of ordered pivotal sampling (2012).
    """
    prob, uniform = prob_N.tolist(), rng.random(len(prob_N) + 1).tolist()
    keep = [False] * len(prob)
    open_unit, open_prob = -1, 0.0
    for unit, own in enumerate(prob):
        if own >= 1.0:
            keep[unit] = True
        elif own <= 0.0:
            continue
        elif open_prob <= 0.0:
            open_unit, open_prob = unit, own
        elif (both := open_prob + own) < 1.0:  # the loser is dropped
            if not uniform[unit] < open_prob / both:
                open_unit = unit
            open_prob = both
        else:  # the winner is kept
            kept, open_unit = (open_unit, unit) if uniform[unit] < (1.0 - own) / (2.0 - both) else (unit, open_unit)
            keep[kept], open_prob = True, both - 1.0
    total = math.fsum(prob)
    if abs(total - round(total)) < WHOLE:  # no rounding error decides the last unit
        open_prob = float(round(open_prob))
    if open_unit >= 0 and uniform[-1] < open_prob:
        keep[open_unit] = True
    return torch.tensor(keep, dtype=torch.bool)


def neighbours(completions: Completions) -> Tensor:
    """(R,) completions with a gradient, by prompt and sign of the advantage: a pivotal draw is spread over both."""
    order_N = torch.from_numpy(np.lexsort((completions.advantage_N.sign().numpy(), completions.group_N.numpy())))
    return order_N[completions.live_N[order_N]]


def draw_systematic(prob_N: Tensor, score_N: Tensor, rng: np.random.Generator) -> Tensor:
    """Fixed-size draw: units lie on a line in random order, as long as their probability; one is kept per length of 1.

    Source: Madow, On the theory of systematic sampling, II (1949); Hartley and Rao (1962) for the random order.
    """
    prob = prob_N.numpy()
    keep = prob >= 1.0
    open_rows = np.flatnonzero((prob > 0.0) & ~keep)
    open_rows = open_rows[rng.permutation(len(open_rows))]
    start = rng.random()
    if len(open_rows):
        end = np.cumsum(prob[open_rows])
        total = float(end[-1])
        near = round(total)
        marks = near if abs(total - near) < WHOLE else math.floor(total) + (start < total % 1.0)
        hit = np.searchsorted(end, start + np.arange(marks), side="right")
        keep[open_rows[np.minimum(hit, len(open_rows) - 1)]] = True
    return torch.from_numpy(keep)


def draw_poisson(prob_N: Tensor, score_N: Tensor, rng: np.random.Generator) -> Tensor:
    """Independent draws; any number may be kept. Source: Hajek, Asymptotic theory of rejective sampling (1964)."""
    return torch.from_numpy(rng.random(len(prob_N)) < prob_N.numpy())


def draw_deterministic(prob_N: Tensor, score_N: Tensor, rng: np.random.Generator) -> Tensor:
    """Keep units of largest probability, then score, then lowest index, in number the rounded sum of probabilities.

    Probabilities [.5, .5, 1, .5] with scores [1, 2, 0, 2] keep units 2, 1 and 3.

    Source: DPPO, arXiv:2603.04135, Algorithm 1: a fixed fraction is pruned, without chance.
    """
    prob = prob_N.numpy()
    order = np.lexsort((-score_N.double().numpy(), -prob))
    size = max(math.floor(math.fsum(prob) + 0.5), int((prob >= 1.0).sum()))
    keep = np.zeros(len(prob), bool)
    keep[order[:size]] = True
    return torch.from_numpy(keep & (prob > 0.0))


PIVOTAL = Design(name="pivotal", draw=draw_pivotal)
SYSTEMATIC = Design(name="systematic", draw=draw_systematic)
POISSON = Design(name="poisson", fixed_size=False, draw=draw_poisson)
DETERMINISTIC = Design(
    name="deterministic",
    unbiased=False,
    reason="nothing is left to chance (deterministic), and no weight makes up for what is never drawn",
    draw=draw_deterministic,
)

DESIGNS: dict[str, Design] = {design.name: design for design in (PIVOTAL, SYSTEMATIC, POISSON, DETERMINISTIC)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """Weights of kept units."""

    name: str
    bias: str = ""
    """Why it is biased under every design, one clause; empty if it is ``1 / prob`` on average."""
    compute: Callable[[Tensor, Tensor], Tensor]
    """``compute(keep_N, prob_N) -> weight_N``, float64 of their shape, 0 where not kept."""


def _inverse(keep_N: Tensor, prob_N: Tensor) -> Tensor:
    return torch.where(keep_N, prob_N.clamp_min(torch.finfo(torch.float64).tiny).reciprocal(), 0.0)


def _mean(keep_N: Tensor, prob_N: Tensor) -> Tensor:
    return keep_N.double() * (keep_N.numel() / max(int(keep_N.sum()), 1))


INVERSE_PROBABILITY = Weighting(name="inverse_probability", compute=_inverse)
"""``1 / prob``: the only weight that is unbiased for every loss (Horvitz and Thompson, 1952)."""
UNWEIGHTED = Weighting(
    name="unweighted",
    compute=lambda keep_N, prob_N: keep_N.double(),
    bias="what is kept is not weighted (unweighted), so nothing stands for what was dropped",
)
KEPT_MEAN = Weighting(
    name="kept_mean", compute=_mean, bias="the mean is over what is kept (kept_mean), whatever its probability"
)
"""``N / kept``, as in a mean over the survivors. Source: CPPO, arXiv:2503.22342."""

WEIGHTINGS: dict[str, Weighting] = {each.name: each for each in (INVERSE_PROBABILITY, UNWEIGHTED, KEPT_MEAN)}


def effective_sample_size(weight_N: Tensor) -> float:
    """``(sum w)^2 / sum w^2``: units of equal weight with the same variance, 0 if none is kept (Kish, 1965)."""
    square = weight_N.double().square().sum().item()
    return weight_N.double().sum().item() ** 2 / square if square > 0 else 0.0


def relative_added_variance(prob_N: Tensor, score_N: Tensor) -> float:
    """Variance that dropping units adds, over the sum of squared norms: ``sum (1/prob - 1) norm^2 / sum norm^2``.

    Exact for independent draws; fixed-size draws usually add less. Scores (N,) >= 0 stand for gradient norms. Infinite
    if a unit with a gradient has probability 0, and 0 without gradients.
    """
    square = score_N.double().square()
    unit = torch.where(square > 0, (prob_N.double().reciprocal() - 1) * square, 0.0)
    total = square.sum().item()
    return unit.sum().item() / total if total > 0 else 0.0
