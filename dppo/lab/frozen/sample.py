"""Draws of any method on frozen rollouts, and the distance of their gradients from the full batch's.

The subject has the inner products of the gradients of all completions, also those of prompts that a method would not
roll out. So a draw is N numbers, the full batch is N others, and nothing here runs the model.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from dppo.methods import Method
from dppo.pruning import Budget, PromptPruning, Pruning
from dppo.rng import Purpose, generator
from dppo.verification.draws import Bias, draw, estimate_bias, full_batch, gradients
from dppo.verification.subject import Subject

NORMAL_95 = 1.959964
"""Standard errors on either side of a 95% interval."""
DRAWS = (Purpose.PROMPT_DRAW, Purpose.PROMPT_SKIP, Purpose.COMPLETION_DRAW)
"""Purposes of the random numbers of a draw."""
AnyPruning = TypeVar("AnyPruning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """M independent draws of a method; a single one if it uses no random numbers."""

    gradient_MN: Tensor
    """(M, N) float64 coefficients of each completion's ``grad sum_t log p_t`` in a draw's gradient."""
    weight_MN: Tensor
    """(M, N) float64 weights, 0 for completions that are not trained on."""
    full_N: Tensor
    """(N,) float64 the same as ``gradient_MN`` for the full batch."""
    exact: bool
    """True if the method uses no random numbers."""


class ChanceNeeded(Exception):
    """A draw asked for a random number."""


class NoChance:
    """A random generator whose every use raises ``ChanceNeeded``."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ChanceNeeded(name)


def once(rule: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function with its results cached: it saves three quarters of the time."""
    known: dict[object, Tensor] = {}

    @functools.wraps(rule)
    def found(*given: Any) -> Tensor:
        key = tuple(map(_key, given))
        if key not in known:
            known[key] = rule(*given)
        return known[key]

    return found


def _key(given: Any) -> object:
    """A hashable key, equal for equal arguments of a rule."""
    if isinstance(given, Budget):
        return tuple(_key(getattr(given, field.name)) for field in fields(given))
    return given.numpy().tobytes() if isinstance(given, Tensor) else given


def remembering(pruning: AnyPruning) -> AnyPruning:
    """The same pruning with the probabilities of equal scores cached."""
    return replace(pruning, rule=once(pruning.rule)) if isinstance(pruning, Pruning | PromptPruning) else pruning


def sample(subject: Subject, method: Method, draws: int, seed: int) -> Sample:
    """Independent draws of a method on a subject, or its only one if it uses no random numbers."""
    method = replace(method, prompts=remembering(method.prompts), completions=remembering(method.completions))
    none = cast(np.random.Generator, NoChance())
    try:
        drawn, exact = [draw(subject, method, lambda purpose, *key: none)], True
    except ChanceNeeded:
        streams = {purpose: generator(seed, purpose) for purpose in DRAWS}
        drawn, exact = [draw(subject, method, lambda purpose, *key: streams[purpose]) for _ in range(draws)], False
    return Sample(
        gradient_MN=gradients(subject, method, drawn),
        weight_MN=torch.stack([one.weight_N for one in drawn]),
        full_N=full_batch(subject, method),
        exact=exact,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawFigures:
    """Numbers of a sample about the expected gradient and single draws; ``g`` is the full batch's gradient."""

    draws: int
    """M; 1 if the method uses no random numbers, and all numbers are exact."""
    relative_bias: float
    """``|E[g_hat] - g| / |g|``: the root of the estimate of its square, 0 if that is below 0."""
    bias_low: float | None
    """Lower end of its 95% interval; None if it is exact."""
    bias_high: float | None
    added_variance: float
    """``E|g_hat - E[g_hat]|^2 / |g|^2`` of one draw, which more draws average out."""
    added_variance_error: float
    """Standard error of it."""

    @property
    def exact(self) -> bool:
        """True if the method uses no random numbers."""
        return self.bias_low is None


def group_norms(full_N: Tensor, gram_NN: Tensor, count: int) -> Tensor:
    """(P,) norm of each group's part of the full batch's gradient; groups have ``count`` completions."""
    size = len(full_N) // count
    block_PGG = torch.stack([gram_NN[i : i + count, i : i + count] for i in range(0, size * count, count)])
    full_PG = full_N.view(size, count)
    return torch.einsum("pg,pgh,ph->p", full_PG, block_PGG, full_PG).clamp_min(0).sqrt()


def bias_of(found: Sample, root_NN: Tensor) -> Bias:
    """The squared relative bias of a sample, without a spread if it is exact; ``root_NN`` is from ``root``."""
    full_K = found.full_N @ root_NN
    error_MK = found.gradient_MN @ root_NN - full_K
    if found.exact:
        squared = float(error_MK.square().sum() / full_K.square().sum())
        return Bias(squared=squared, standard_error=0.0, spectrum=(0.0, 0.0))
    return estimate_bias(error_MK, torch.eye(len(full_K), dtype=torch.float64), full_K)


def figures(found: Sample, bias: Bias, root_NN: Tensor) -> DrawFigures:
    """The numbers of a sample; ``bias`` is from ``bias_of`` and ``root_NN`` from ``root``."""
    full_K, draw_MK = found.full_N @ root_NN, found.gradient_MN @ root_NN
    draws, norm = len(draw_MK), float(full_K.norm())
    low, high = (None, None) if found.exact else bias_interval((draw_MK - full_K) / norm, bias)
    spread_M = (draw_MK - draw_MK.mean(0)).square().sum(1) / norm**2 * draws / max(draws - 1, 1)
    return DrawFigures(
        draws=draws,
        relative_bias=math.sqrt(max(bias.squared, 0.0)),
        bias_low=low,
        bias_high=high,
        added_variance=float(spread_M.mean()),
        added_variance_error=float(spread_M.std()) / math.sqrt(draws) if draws > 1 else 0.0,
    )


def bias_interval(error_MK: Tensor, bias: Bias) -> tuple[float, float]:
    """95% interval of the relative bias: all ``b`` whose square is within 1.96 standard errors of its estimate.

    The variance of the mean of ``<e_a, e_b>`` over pairs of M draws is ``4 b^2 t / M + 2 |S|^2 / M^2`` to first order,
    with ``S`` the covariance of a draw's error and ``t`` its variance in the direction of the bias. It grows with
    ``b``, so the interval solves for ``b``, as Wilson's interval of a share does. It is an interval of the square, so
    near 0 it is wide in the root. Errors are over ``|g|``.
    """
    mean_K = error_MK.mean(0)
    square = float(mean_K.square().sum())
    along = float((error_MK @ mean_K).var()) / square if square > 0 else 0.0
    slope = NORMAL_95**2 * 4 * along / len(error_MK)
    inner = (NORMAL_95 * bias.standard_error) ** 2 + slope * bias.squared + slope**2 / 4
    middle, reach = bias.squared + slope / 2, math.sqrt(max(inner, 0.0))
    return math.sqrt(max(middle - reach, 0.0)), math.sqrt(max(middle + reach, 0.0))
