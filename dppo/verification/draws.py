"""Draws of any method on fixed rollouts, by the code that a trainer runs, and a test for a bias of what they give.

A gradient is ``sum_i c_i h_i`` with ``h_i`` that of completion i's log-probability. So a draw is N numbers, and
thousands of draws need no pass of the model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dppo.methods import Method
from dppo.objective import Tokens
from dppo.pruning import Rounds, TokenDraw
from dppo.pruning.rounds import take_round
from dppo.rng import Purpose, Streams, step_streams
from dppo.session import Session
from dppo.step import StepPrompts, StepSizes, drawn_block
from dppo.step.records import in_rounds
from dppo.types import Block, Rewards, scattered
from dppo.verification.subject import Rollouts, Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenDraw:
    """One draw, in the order of the subject's completions."""

    weight_N: Tensor
    """(N,) float64, 0 for completions that are not trained on."""
    advantage_N: Tensor
    """(N,) float64 advantages in the loss."""
    sizes: StepSizes
    tokens: TokenDraw | None = None
    """Draw of the tokens of all completions; None if none are pruned."""


def draw(made: Rollouts, method: Method, streams: Streams) -> FrozenDraw:
    """One draw of prompts, then of the completions of those that are rolled out, then of their tokens."""
    prompts, count = step_prompts(made, method, streams), len(made.rewards)
    weight_N, advantage_N = torch.zeros(2, count, dtype=torch.float64)
    if not (prompts.weight_Q > 0).any():
        return FrozenDraw(weight_N=weight_N, advantage_N=advantage_N, sizes=StepSizes(1.0, 0.0))
    keep_P = torch.zeros(made.rewards.groups, dtype=torch.bool)
    keep_P[: len(prompts.draw.keep_N)] = prompts.draw.keep_N  # rounds may end before all candidates were taken
    # A new session: one learns from its plans, and draws must be independent.
    session = Session(method, seed=0, generations=made.generations, max_tokens=made.max_tokens)
    session.samples, session.others = made.context.samples, made.context.others
    plan = session.plan(prompts, made.rolled_out(keep_P), streams=streams)
    row_R = keep_P[made.rewards.group_N].nonzero()[:, 0]
    weight_N[row_R], advantage_N[row_R] = plan.weight_UN[0], plan.advantage_N
    tokens = scattered(plan.token_draws[0], row_R, count) if plan.token_draws else None
    return FrozenDraw(weight_N=weight_N, advantage_N=advantage_N, sizes=plan.sizes, tokens=tokens)


def step_prompts(made: Rollouts, method: Method, streams: Streams) -> StepPrompts:
    """Prompts of a draw: of one block, or of rounds until ``made.wanted`` groups count. All groups have one size."""
    # Not by ``session.prompts``: its source draws from its own streams, and its stream of prompts begins anew.
    if method.rounds is None:
        drawn = method.prompts.draw(made.candidates, streams(Purpose.PROMPT_DRAW))
        prompts = drawn_block(Block(candidates=made.candidates, draw=drawn), made.generations)
        if prompts.expected_tokens is not None:  # any number fixed before the draw will do: that of the full batch
            prompts = replace(prompts, expected_tokens=float(made.tokens_N.sum()))
    else:
        prompts = _prompts_in_rounds(made, method.rounds, streams)
    return replace(prompts, context=made.context.take(prompts.draw.keep_N.nonzero()[:, 0]))


class Once:
    """A stream of the numbers 0 to P - 1, each once."""

    def __init__(self, prompts: int) -> None:
        self.left_P = torch.arange(prompts)

    def peek(self, count: int) -> Tensor:
        """(P,) the next numbers, at most ``count``."""
        return self.left_P[:count]

    def take(self, count: int) -> Tensor:
        taken_P, self.left_P = self.left_P[:count], self.left_P[count:]
        return taken_P


def _prompts_in_rounds(made: Rollouts, rounds: Rounds, streams: Streams) -> StepPrompts:
    """Prompts of rounds that take each candidate at most once, in order, and skip some by their earlier rewards."""
    stream, chances = Once(made.rewards.groups), None
    if rounds.skipping is not None:
        start = rounds.skipping.start()
        streak_P, _ = rounds.skipping.learn(start, made.earlier_rewards, epochs=0.0)
        chances = rounds.skipping.chances(streak_P, start).__getitem__

    def one_round(number: int, prompts: int, rng: np.random.Generator) -> tuple[Block, Rewards] | None:
        if not len(stream.left_P):
            return None
        place_P, drawn = take_round(stream, prompts, chances, rng)
        keep_N = torch.isin(made.rewards.group_N, place_P[drawn.keep_N])
        return Block(candidates=made.candidates.take(place_P), draw=drawn), made.rewards.take(keep_N)

    return in_rounds(rounds, made.wanted or made.rewards.groups, one_round, streams)


def gradients(subject: Subject, method: Method, drawn: Sequence[FrozenDraw]) -> Tensor:
    """(M, N) coefficients of each completion's ``grad sum_t log p_t`` in the gradient of each draw.

    The slope of a token's loss at ratio 1 is the method's own: minus the advantage for every loss of this library.
    """
    weight_MN = torch.stack([one.weight_N for one in drawn])
    advantage_B = torch.cat([one.advantage_N for one in drawn])
    logp_B1 = torch.zeros(len(advantage_B), 1, dtype=torch.float64, requires_grad=True)
    same_B1, mask_B1 = logp_B1.detach(), torch.ones(len(advantage_B), 1, dtype=torch.bool)
    tokens = Tokens(logp_BT=logp_B1, old_logp_BT=same_B1, advantage_B=advantage_B, mask_BT=mask_B1, ref_logp_BT=same_B1)
    (slope_B1,) = torch.autograd.grad(method.loss(tokens).sum(), logp_B1)
    coefficient_MN = weight_MN * slope_B1.view_as(weight_MN)
    if method.normaliser.per_sequence:
        coefficient_MN = coefficient_MN * subject.tokens_N.double().clamp_min(1).reciprocal()
    return coefficient_MN / torch.tensor([[one.sizes.denominator] for one in drawn], dtype=torch.float64)


def nothing_pruned(made: Rollouts, method: Method) -> FrozenDraw:
    """All completions at weight 1: the full batch, computed without a plan."""
    advantage_N, tokens = method.advantages(made.rewards, made.context), float(made.tokens_N.sum())
    sizes = StepSizes(method.normaliser.denominator(len(advantage_N), tokens, made.max_tokens), tokens)
    return FrozenDraw(weight_N=torch.ones_like(advantage_N), advantage_N=advantage_N, sizes=sizes)


def full_batch(subject: Subject, method: Method) -> Tensor:
    """(N,) the coefficients of the full batch."""
    return gradients(subject, method, [nothing_pruned(subject, method)])[0]


def draw_errors(subject: Subject, method: Method, draws: int, seed: int) -> Tensor:
    """(M, N) coefficients of the pruned gradient minus those of the full batch, for independent draws."""
    drawn = [draw(subject, method, step_streams(seed, index)) for index in range(draws)]
    return gradients(subject, method, drawn) - full_batch(subject, method)


ROUNDING = 1e-12
"""Relative squared errors below this are rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """Estimate of a squared bias, relative to the squared norm of the full gradient ``g``."""

    squared: float
    """Unbiased estimate of ``|E[g_hat] - g|^2 / |g|^2``: near 0, above or below, if there is no bias."""
    standard_error: float
    """Standard error of ``squared`` if there is no bias."""
    spectrum: tuple[float, float]
    """``|lambda|_2 / M`` and ``max lambda / M``, of the eigenvalues of the error's covariance over ``|g|^2``."""

    def bound(self, failure_rate: float) -> float:
        """A bound that ``squared`` exceeds with at most this probability if there is no bias.

        Without bias, ``M`` times the squared norm of a mean of M errors is close to ``sum_j lambda_j chi2_j`` with the
        eigenvalues of their covariance (central limit), and ``squared`` is that minus its mean, over M. Such a sum
        exceeds its mean by more than ``2 |lambda|_2 sqrt(x) + 2 max(lambda) x`` with probability at most exp(-x).
        """
        x = math.log(1 / failure_rate)
        spread, largest = self.spectrum
        return max(2 * spread * math.sqrt(x) + 2 * largest * x, ROUNDING)


def estimate_bias(error_MN: Tensor, gram_NN: Tensor, full_N: Tensor) -> Bias:
    """The squared bias from M >= 2 independent draws, whose rows in ``error_MN`` are coefficients of errors.

    ``mean over a != b of <e_a, e_b>`` has the mean ``|E e|^2``, for any variance.
    """
    draws = len(error_MN)
    norm = float(full_N @ gram_NN @ full_N)
    total_N, square = error_MN.sum(0), ((error_MN @ gram_NN) * error_MN).sum(1).sum()
    across = float(total_N @ gram_NN @ total_N - square) / (draws * (draws - 1))
    centred_MN = (error_MN - error_MN.mean(0)) @ root(gram_NN)
    eigenvalue_N = torch.linalg.eigvalsh(centred_MN.T @ centred_MN / (draws - 1)).clamp_min(0)
    spread = float(eigenvalue_N.norm())
    return Bias(
        squared=across / norm,
        standard_error=math.sqrt(2) * spread / (draws * norm),
        spectrum=(spread / (draws * norm), float(eigenvalue_N.max()) / (draws * norm)),
    )


def root(gram_NN: Tensor) -> Tensor:
    """(N, N) matrix R with ``R R^T = gram``: coefficients times R have the inner products of the gradients."""
    values, vectors = torch.linalg.eigh(gram_NN)
    return vectors * values.clamp_min(0).sqrt()


def deviance(keep_MN: Tensor, prob_N: Tensor) -> float:
    """Largest deviation of an inclusion frequency from its probability over N units, in standard deviations.

    A unit kept in a share f of M draws deviates by ``sqrt(2 M KL(f || prob))``. For every M it exceeds t with
    probability at most ``2 exp(-t^2 / 2)``. It is infinite if a unit of probability 0 was kept, or one of probability 1
    was not.
    """
    draws, prob = len(keep_MN), prob_N.numpy()
    share = keep_MN.double().mean(0).numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.where(share > 0, share * np.log(share / prob), 0.0)
        dropped = np.where(share < 1, (1 - share) * np.log((1 - share) / (1 - prob)), 0.0)
    return float(np.sqrt(2 * draws * np.maximum(kept + dropped, 0.0)).max(initial=0.0))


def deviance_bound(units: int, failure_rate: float) -> float:
    """A bound that ``deviance`` over ``units`` units of all designs exceeds with at most this probability."""
    return math.sqrt(2 * math.log(2 * units / failure_rate))
