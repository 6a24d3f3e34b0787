"""From a selection to the weights of its rows, and what the weights cost in variance."""

from collections.abc import Callable

import torch
from torch import Tensor

from dppo.types import Draw

Weighting = Callable[[Tensor, Tensor], Tensor]
"""``weighting(keep_N, prob_N) -> weight_N``: (N,) bool and (N,) float64 to (N,) float64, 0 where not kept."""


def inverse_probability(keep_N: Tensor, prob_N: Tensor) -> Tensor:
    """``1 / prob`` where kept, 0 elsewhere: the only weight that is unbiased for every loss.

    Args:
        keep_N: (N,) bool, rows kept.
        prob_N: (N,) float64, above 0 where kept.

    Source: Horvitz and Thompson, A generalization of sampling without replacement from a finite universe (1952).
    """
    return torch.where(keep_N, prob_N.clamp_min(torch.finfo(torch.float64).tiny).reciprocal(), 0.0)


def unweighted(keep_N: Tensor, prob_N: Tensor) -> Tensor:
    """1 where kept, 0 elsewhere: biased, dropped rows are not made up for.

    Args:
        keep_N: (N,) bool, rows kept.
        prob_N: not used.
    """
    return keep_N.double()


def kept_mean(keep_N: Tensor, prob_N: Tensor) -> Tensor:
    """``N / kept`` where kept, 0 elsewhere: what averaging over the survivors amounts to. Biased.

    Args:
        keep_N: (N,) bool, rows kept.
        prob_N: not used.

    Source: CPPO, arXiv:2503.22342.
    """
    return keep_N.double() * (keep_N.numel() / max(int(keep_N.sum()), 1))


WEIGHTINGS: dict[str, Weighting] = {
    "inverse_probability": inverse_probability,
    "unweighted": unweighted,
    "kept_mean": kept_mean,
}

BIASED_WEIGHTINGS: dict[Weighting, str] = {
    unweighted: "kept rows are not weighted (unweighted), so nothing stands for the rows that were dropped",
    kept_mean: "the mean is over the rows kept (kept_mean), whatever their probability",
}
"""Why a weighting is biased under every design. One that is not listed is ``1 / prob`` on average."""


Rescaling = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``rescaling(keep_N, tokens_N, group_N) -> factor_N``: what multiplies the weights of the rows drawn from.

``keep_N`` (N,) bool, ``tokens_N`` (N,) float64 tokens that carry loss, ``group_N`` (N,) integer, the group each row
competed in. Gives back (N,) float64. It turns the fixed denominator into another one.
"""


def fixed_denominator(keep_N: Tensor, tokens_N: Tensor, group_N: Tensor) -> Tensor:
    """1 for each row: sums are divided by what was fixed before the draw.

    Args:
        keep_N: (N,) bool, rows kept.
        tokens_N: not used.
        group_N: not used.
    """
    return torch.ones(keep_N.numel(), dtype=torch.float64)


def kept_tokens(keep_N: Tensor, tokens_N: Tensor, group_N: Tensor) -> Tensor:
    """What a token denominator is multiplied by to become a mean over the tokens kept in each group, (N,). Biased.

    With one group it is ``tokens / tokens kept``. Groups count alike, whatever is kept of them; one without kept tokens
    has no mean and weighs nothing.

    Args:
        keep_N: (N,) bool, rows kept.
        tokens_N: (N,) tokens that carry loss, >= 0.
        group_N: (N,) integer, the groups that each take a mean of their own.

    Source: CPPO's code for TRL, where the groups are processes.
    """
    group, number_N = group_N.unique(return_inverse=True)
    kept_G = torch.zeros(len(group), dtype=torch.float64).index_add_(0, number_N, (tokens_N * keep_N).double())
    return tokens_N.double().sum() / max(len(group), 1) / kept_G.clamp_min(1)[number_N]


RESCALINGS: dict[str, Rescaling] = {"fixed_denominator": fixed_denominator, "kept_tokens": kept_tokens}

BIASED_RESCALINGS: dict[Rescaling, str] = {
    kept_tokens: "sums are divided by the tokens that are kept (kept_tokens), a number that goes with the result",
}
"""Why a rescaling is biased. One that is not listed leaves the weights as they are."""


def effective_sample_size(weight_N: Tensor) -> float:
    """``(sum w)^2 / sum w^2``, in rows: how many equal weights would carry as much; 0 if nothing was kept.

    Args:
        weight_N: (N,) weights, 0 where not kept.

    Source: Kish, Survey Sampling (1965).
    """
    square = weight_N.double().square().sum().item()
    return weight_N.double().sum().item() ** 2 / square if square > 0 else 0.0


def largest_weight(weight_N: Tensor) -> float:
    """The largest weight, 0 if there are no rows.

    Args:
        weight_N: (N,) weights, 0 where not kept.
    """
    return weight_N.max().item() if weight_N.numel() else 0.0


def relative_added_variance(prob_N: Tensor, norm_N: Tensor) -> float:
    """Variance that dropping rows adds, over the sum of squared norms: ``sum (1/prob - 1) norm^2 / sum norm^2``.

    Exact for independent draws of gradients at right angles; fixed-size draws usually add less. With scores in place
    of gradient norms it is a proxy, as good as the score.

    Args:
        prob_N: (N,) inclusion probabilities in [0, 1].
        norm_N: (N,) >= 0, the norm of each row's gradient, or its score.

    Returns:
        At least 0; infinite if a row with a gradient is never kept; 0 if no row has one.
    """
    square = norm_N.double().square()
    row = torch.where(square > 0, (prob_N.double().reciprocal() - 1) * square, 0.0)
    total = square.sum().item()
    return row.sum().item() / total if total > 0 else 0.0


def added_variance_estimate(draw: Draw, norm_N: Tensor) -> float:
    """Unbiased estimate of ``sum (1/prob - 1) norm^2`` where only kept rows have a known norm.

    Args:
        draw: the selection.
        norm_N: (N,) >= 0, the norm of each row's gradient; what it holds for dropped rows does not matter.

    Returns:
        ``sum over kept of (1 - prob) / prob^2 * norm^2``, in the unit of ``norm_N`` squared.

    Source: Sarndal, Swensson and Wretman, Model Assisted Survey Sampling (1992), on Poisson sampling.
    """
    prob, norm = draw.prob_N[draw.keep_N], norm_N[draw.keep_N].double()
    return ((1 - prob) / prob.square() * norm.square()).sum().item()
