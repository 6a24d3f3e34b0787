"""Is a random gradient unbiased? Many draws on a frozen subject, and a test with a stated failure rate.

A draw's gradient is ``sum_i c_i h_i`` with ``h_i`` the gradient of a completion's log-probability. So is the full
batch's, and the error is their difference: a row of N numbers, whose inner products with other errors come from the
subject's matrix. Nothing here runs the model.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dppo.methods import Method
from dppo.rng import Purpose, generator
from dppo.trl.completions import CompletionSelector
from dppo.trl.draws import Schedule
from dppo.trl.prompts import Selection
from dppo.verification.subject import Subject

ROUNDING = 1e-12
"""Relative squared errors below this are rounding."""


def coefficients(subject: Subject, method: Method, advantage_N: Tensor) -> Tensor:
    """(n,) what the gradient of each completion's log-probability is multiplied by, before weights and denominator.

    It is the slope of the method's own token loss at ratio 1, which for every loss we serve is minus the advantage,
    divided by the completion's tokens where the normaliser says so.

    Args:
        subject: gives the tokens, of all N completions or of those that ``advantage_N`` is for.
        method: gives the loss and the normaliser.
        advantage_N: (n,) advantages.
    """
    logp_N1 = torch.zeros(len(advantage_N), 1, dtype=torch.float64, requires_grad=True)
    same_N1 = torch.zeros_like(logp_N1)
    loss_N1 = method.loss(logp_N1, same_N1, advantage_N, torch.ones_like(same_N1, dtype=torch.bool), same_N1)
    (slope_N1,) = torch.autograd.grad(loss_N1.sum(), logp_N1)
    return slope_N1.squeeze(1)


def _per_token(subject: Subject, method: Method) -> Tensor:
    tokens_N = subject.tokens_N.double().clamp_min(1)
    return tokens_N.reciprocal() if method.normaliser.per_sequence else torch.ones_like(tokens_N)


def full_batch(subject: Subject, method: Method) -> Tensor:
    """(N,) coefficients of the full batch's gradient, nothing pruned.

    Args:
        subject: the rollouts.
        method: gives advantages, loss and normaliser.
    """
    advantage_N = method.advantages(subject.reward_PG).flatten()
    tokens = float(subject.tokens_N.sum())
    denominator = method.normaliser.denominator(len(advantage_N), tokens, subject.max_tokens)
    return coefficients(subject, method, advantage_N) * _per_token(subject, method) / denominator


def draw_errors(subject: Subject, method: Method, draws: int, seed: int) -> Tensor:
    """(draws, N) coefficients of the pruned gradient less those of the full batch, for independent draws.

    Prompts are drawn by the method, then advantages and completions of those rolled out, through the same code that
    the trainer runs.

    Args:
        subject: the rollouts.
        method: what is pruned, and how.
        draws: how many.
        seed: of the draws.
    """
    prompts, count = subject.reward_PG.shape
    selector = CompletionSelector(
        method=method,
        schedule=Schedule(passes=1, shares=1, calls=1),
        seed=seed,
        group=count,
        processes=1,
        equal_is_zero=True,
        gather=lambda tensor: tensor,
    )
    full_N, per_token_N = full_batch(subject, method), _per_token(subject, method)
    error_MN = torch.zeros(draws, prompts * count, dtype=torch.float64)
    for index in range(draws):
        asked = method.prompts.draw_prompts(subject.candidates, generator(seed, index, Purpose.PROMPT_DRAW))
        selection = Selection(
            row_Q=asked.keep_N.nonzero().squeeze(1),
            weight_Q=asked.weight_N[asked.keep_N],
            candidates=prompts,
            seen_share=1.0,
        )
        if not len(selection.row_Q):
            continue
        kept_N = asked.keep_N.repeat_interleave(count)
        completions = subject.completions(method, asked.keep_N)
        drawn = selector.draw(completions, subject.reward_PG[asked.keep_N].flatten(), selection, index)
        denominator = method.normaliser.denominator(drawn.sequences, drawn.tokens, subject.max_tokens)
        slope_N = coefficients(subject, method, drawn.advantage_N)
        error_MN[index, kept_N] = drawn.weight_SN[0] * slope_N * per_token_N[kept_N] / denominator
    return error_MN - full_N


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """A squared bias as draws see it, relative to the squared norm of the full gradient."""

    squared: float
    """Estimate of ``|E[g_hat] - g|^2 / |g|^2`` whose own mean is right: near 0, on either side, if there is no bias."""
    standard_error: float
    """Of ``squared`` where there is no bias."""
    variance: float
    """``E|g_hat - g|^2 / |g|^2`` of a single draw, its bias included."""
    spectrum: tuple[float, float]
    """``|lambda|_2 / M`` and ``max lambda / M``, of the eigenvalues of the error's covariance over ``|g|^2``."""

    def bound(self, failure_rate: float) -> float:
        """What ``squared`` exceeds with at most this probability if there is no bias.

        Without bias, ``M`` times the squared norm of a mean of M errors is close to ``sum_j lambda_j chi2_j`` with
        the eigenvalues of their covariance (central limit), and ``squared`` is that less its mean, over M. Such a sum
        is above its mean by more than ``2 |lambda|_2 sqrt(x) + 2 max(lambda) x`` with probability at most exp(-x).

        Args:
            failure_rate: in (0, 1).

        Source: Laurent and Massart, Adaptive estimation of a quadratic functional by model selection (2000), lemma 1.
        """
        x = math.log(1 / failure_rate)
        spread, largest = self.spectrum
        return max(2 * spread * math.sqrt(x) + 2 * largest * x, ROUNDING)

    @property
    def chance(self) -> float:
        """The rate at which ``bound`` is ``squared``: at most as likely is so much, or more, if there is no bias."""
        if self.squared <= ROUNDING:
            return 1.0
        spread, largest = self.spectrum
        if largest == 0:
            return 0.0
        root = (math.sqrt(spread**2 + 2 * largest * self.squared) - spread) / (2 * largest)
        return math.exp(-(root**2))


def estimate_bias(error_MN: Tensor, gram_NN: Tensor, full_N: Tensor) -> Bias:
    """The squared bias of draws, from the inner products of different draws' errors.

    ``mean over a != b of <e_a, e_b>`` has exactly ``|E e|^2`` as its mean, whatever the variance.

    Args:
        error_MN: (M, N) coefficients of M independent errors, M >= 2.
        gram_NN: (N, N) inner products of what they multiply.
        full_N: (N,) coefficients of the full gradient.

    Source: Hoeffding, A class of statistics with asymptotically normal distribution (1948).
    """
    draws = len(error_MN)
    norm = float(full_N @ gram_NN @ full_N)
    square_M = ((error_MN @ gram_NN) * error_MN).sum(1)
    total_N = error_MN.sum(0)
    across = float(total_N @ gram_NN @ total_N - square_M.sum()) / (draws * (draws - 1))
    values, vectors = torch.linalg.eigh(gram_NN)
    centred_MN = (error_MN - error_MN.mean(0)) @ (vectors * values.clamp_min(0).sqrt())
    eigenvalue_N = torch.linalg.eigvalsh(centred_MN.T @ centred_MN / (draws - 1)).clamp_min(0)
    spread = float(eigenvalue_N.norm())
    return Bias(
        squared=across / norm,
        standard_error=math.sqrt(2) * spread / (draws * norm),
        variance=float(square_M.mean()) / norm,
        spectrum=(spread / (draws * norm), float(eigenvalue_N.max()) / (draws * norm)),
    )


def deviance(keep_MN: Tensor, prob_N: Tensor) -> float:
    """Largest deviation of an inclusion frequency from its probability over the rows, in standard deviations.

    A row kept in a share f of M draws deviates by ``sqrt(2 M KL(f || prob))``, which for f near prob is the usual
    number of standard deviations, and which for every M exceeds t with probability at most ``2 exp(-t^2 / 2)``.

    Args:
        keep_MN: (M, N) bool.
        prob_N: (N,) float64 in [0, 1].

    Returns:
        Infinite if a row of probability 0 was kept or one of probability 1 was not.

    Source: Chernoff (1952); Hoeffding, Probability inequalities for sums of bounded random variables (1963), thm. 1.
    """
    draws, prob = len(keep_MN), prob_N.numpy()
    share = keep_MN.double().mean(0).numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.where(share > 0, share * np.log(share / prob), 0.0)
        dropped = np.where(share < 1, (1 - share) * np.log((1 - share) / (1 - prob)), 0.0)
    return float(np.sqrt(2 * draws * np.maximum(kept + dropped, 0.0)).max(initial=0.0))


def deviance_bound(rows: int, failure_rate: float) -> float:
    """What ``deviance`` over ``rows`` rows exceeds with at most this probability.

    Args:
        rows: rows compared, of all designs together.
        failure_rate: in (0, 1).
    """
    return math.sqrt(2 * math.log(2 * rows / failure_rate))
