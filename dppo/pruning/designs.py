"""Sampling designs: a random selection of units with given inclusion probabilities.

The properties of a design are its fields; a test checks them for each of ``DESIGNS``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dppo.types import Completions

DrawRows = Callable[[Tensor, Tensor, np.random.Generator], Tensor]
"""``draw(prob_N, score_N, rng) -> keep_N``: (N,) float64 in [0, 1], (N,) float64, to (N,) bool."""

WHOLE = 1e-9
"""A sum of probabilities this close to an integer is that integer, up to rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Way to draw units, with its properties. Units of probability 1 are always kept, units of probability 0 never."""

    name: str
    """Name in reports; the key in ``DESIGNS``."""
    unbiased: bool
    """True if each unit is kept with exactly its probability."""
    fixed_size: bool
    """True if the number of units kept is always the sum of the probabilities, rounded down or up."""
    min_prob: float
    """``unbiased`` holds for units with probability above this (or exactly 0 if the gradient is 0), in [0, 1]."""
    reason: str
    """Why it is biased, one clause; empty if it is not."""
    draw: DrawRows
    """Draws units: ``draw(prob_N, score_N, rng) -> keep_N``."""


def draw_pivotal(prob_N: Tensor, score_N: Tensor, rng: np.random.Generator) -> Tensor:
    """Fixed-size draw by duels between neighbours: one of two units is decided, the other carries the rest.

    Neighbours exclude each other. If like units are neighbours, the sample is representative, and its variance lower
    than that of independent draws.

    Source: Deville and Tille, Unequal probability sampling without replacement through a splitting method (1998);
        the ordered form is that of Chauvet, On a characterization of ordered pivotal sampling (2012).
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
            if uniform[unit] < (1.0 - own) / (2.0 - both):
                keep[open_unit] = True
                open_unit = unit
            else:
                keep[unit] = True
            open_prob = both - 1.0
    if open_unit >= 0 and uniform[-1] < _last_prob(open_prob, prob):
        keep[open_unit] = True
    return torch.tensor(keep, dtype=torch.bool)


def _last_prob(open_prob: float, prob: list[float]) -> float:
    """Probability of the last open unit, without rounding error: 0 or 1 if all probabilities sum to an integer."""
    total = math.fsum(prob)
    return float(round(open_prob)) if abs(total - round(total)) < WHOLE else open_prob


def neighbours(completions: Completions) -> Tensor:
    """(R,) completions with a gradient, by prompt and within a prompt by the advantage's sign.

    Neighbours exclude each other in a pivotal draw, so this order spreads the sample over prompts and signs.
    """
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
        mark = start + np.arange(marks)
        hit = np.searchsorted(end, mark, side="right")
        keep[open_rows[np.minimum(hit, len(open_rows) - 1)]] = True
    return torch.from_numpy(keep)


def draw_poisson(prob_N: Tensor, score_N: Tensor, rng: np.random.Generator) -> Tensor:
    """Independent draws of each unit; the number of units kept is random and may be 0.

    Source: Hajek, Asymptotic theory of rejective sampling (1964).
    """
    return torch.from_numpy(rng.random(len(prob_N)) < prob_N.numpy())


def draw_deterministic(prob_N: Tensor, score_N: Tensor, rng: np.random.Generator) -> Tensor:
    """Keep units of largest probability, then score, then lowest index: the rounded sum of probabilities of them.

    Probabilities [.5, .5, 1, .5] with scores [1, 2, 0, 2] keep units 2 and 1.

    Source: DPPO, arXiv:2603.04135, Algorithm 1: a fixed fraction is pruned, without chance.
    """
    prob = prob_N.numpy()
    order = np.lexsort((-score_N.double().numpy(), -prob))
    size = max(math.floor(math.fsum(prob) + 0.5), int((prob >= 1.0).sum()))
    keep = np.zeros(len(prob), bool)
    keep[order[:size]] = True
    return torch.from_numpy(keep & (prob > 0.0))


PIVOTAL = Design(name="pivotal", unbiased=True, fixed_size=True, min_prob=0.0, reason="", draw=draw_pivotal)
SYSTEMATIC = Design(name="systematic", unbiased=True, fixed_size=True, min_prob=0.0, reason="", draw=draw_systematic)
POISSON = Design(name="poisson", unbiased=True, fixed_size=False, min_prob=0.0, reason="", draw=draw_poisson)
DETERMINISTIC = Design(
    name="deterministic",
    unbiased=False,
    fixed_size=True,
    min_prob=1.0,
    reason="nothing is left to chance (deterministic), and no weight makes up for what is never drawn",
    draw=draw_deterministic,
)

DESIGNS: dict[str, Design] = {design.name: design for design in (PIVOTAL, SYSTEMATIC, POISSON, DETERMINISTIC)}
