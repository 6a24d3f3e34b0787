"""Draws of any method on rollouts that stand still: what a trainer would train on, by the code that it runs.

A draw's gradient is ``sum_i c_i h_i`` with ``h_i`` the gradient of a completion's log-probability, and so is the full
batch's. So a draw is N numbers, and thousands of them cost next to nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from dppo.context import StepContext
from dppo.methods import Method
from dppo.objective import Tokens
from dppo.pruning import Rounds
from dppo.pruning.rounds import take_round
from dppo.rng import Purpose, Streams, step_streams
from dppo.step import StepPrompts, drawn_block, plan_step
from dppo.step.records import in_rounds
from dppo.types import Block, Candidates, Rewards
from dppo.verification.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenDraw:
    """One draw, in the order of the subject's completions."""

    weight_N: Tensor
    """(N,) float64, 0 where a completion is not trained on."""
    advantage_N: Tensor
    """(N,) float64 what completions are trained with."""
    denominator: float
    prompts: int
    """Of the subject that are used: rolled out, and for rounds with rewards that count."""


def draw(subject: Subject, method: Method, streams: Streams) -> FrozenDraw:
    """One draw of prompts, then one of the completions of those that are rolled out."""
    prompts = step_prompts(subject, method, streams)
    weight_N, advantage_N = torch.zeros(2, len(subject.rewards), dtype=torch.float64)
    keep_P = torch.zeros(subject.rewards.groups, dtype=torch.bool)
    keep_P[: len(prompts.draw.keep_N)] = prompts.draw.keep_N  # rounds may end before all candidates were taken
    used = int((prompts.weight_Q > 0).sum())
    if not used:
        return FrozenDraw(weight_N=weight_N, advantage_N=advantage_N, denominator=1.0, prompts=0)
    plan = plan_step(method, subject.rolled_out(keep_P), prompts, streams=streams, max_tokens=subject.max_tokens)
    keep_N = keep_P.repeat_interleave(subject.generations)
    weight_N[keep_N], advantage_N[keep_N] = plan.weight_UN[0], plan.advantage_N
    return FrozenDraw(weight_N=weight_N, advantage_N=advantage_N, denominator=plan.denominator, prompts=used)


def step_prompts(subject: Subject, method: Method, streams: Streams) -> StepPrompts:
    """The prompts of a draw: of one block, or of rounds until as many groups count as the subject wants.

    All groups have as many completions: sizes that a method sets by history are left out.
    """
    candidates, rounds = subject.candidates, method.rounds
    if rounds is None:
        drawn = method.prompts.draw(candidates, streams(Purpose.PROMPT_DRAW))
        prompts = drawn_block(Block(candidates=candidates, draw=drawn), subject.generations)
        if prompts.expected_tokens is not None:  # any number fixed before the draw will do: that of the full batch
            prompts = replace(prompts, expected_tokens=float(subject.tokens_N.sum()))
    else:
        wanted = subject.wanted or subject.rewards.groups
        prompts = known_rounds(rounds, candidates, subject.rewards, subject.earlier_rewards, wanted, streams)
    return with_context(prompts, subject.context)


def with_context(prompts: StepPrompts, context: StepContext) -> StepPrompts:
    """The same prompts with what was known of those that are rolled out.

    The candidates of ``prompts`` are the first of the P prompts of ``context``, in order.
    """
    return replace(prompts, context=context.take(prompts.draw.keep_N.nonzero()[:, 0]))


class Once:
    """P prompts by their places, each there once: a stream that ends."""

    def __init__(self, prompts: int) -> None:
        self.left_P = torch.arange(prompts)

    def peek(self, count: int) -> Tensor:
        """(P,) the next places, at most ``count``."""
        return self.left_P[:count]

    def take(self, count: int) -> Tensor:
        """The same, and moves on."""
        taken_P, self.left_P = self.left_P[:count], self.left_P[count:]
        return taken_P


def known_rounds(
    rounds: Rounds, candidates: Candidates, rewards: Rewards, earlier: Rewards, wanted: int, streams: Streams
) -> StepPrompts:
    """The prompts of a step in rounds over prompts whose rewards are known, each of which can be taken once, in order.

    ``rewards`` are of the group of each prompt, rolled out or not, and ``earlier`` of one earlier group of each, which
    is all the past that skipping goes by. ``wanted`` groups fill the step; candidates may not have as many.
    """
    stream, chances = Once(rewards.groups), None
    if rounds.skipping is not None:
        start = rounds.skipping.start()
        streak_P, _ = rounds.skipping.learn(start, earlier, epochs=0.0)
        chances = rounds.skipping.chances(streak_P, start).__getitem__

    def one_round(number: int, prompts: int, rng: np.random.Generator) -> tuple[Block, Rewards] | None:
        if not len(stream.left_P):
            return None
        place_P, drawn = take_round(stream, prompts, chances, rng)
        taken = Candidates(**{field.name: getattr(candidates, field.name)[place_P] for field in fields(candidates)})
        keep_N = torch.isin(rewards.group_N, place_P[drawn.keep_N])
        return Block(candidates=taken, draw=drawn), rewards.take(keep_N)

    return in_rounds(rounds, wanted, one_round, streams)


def gradients(subject: Subject, method: Method, drawn: Sequence[FrozenDraw]) -> Tensor:
    """(M, N) what each completion's ``grad sum_t log p_t`` is multiplied by in the gradient of each draw."""
    weight_MN = torch.stack([one.weight_N for one in drawn])
    slope_MN = slopes(method, torch.stack([one.advantage_N for one in drawn]).flatten()).view_as(weight_MN)
    denominator_M1 = torch.tensor([[one.denominator] for one in drawn], dtype=torch.float64)
    return weight_MN * slope_MN * _per_token(subject, method) / denominator_M1


def full_batch(subject: Subject, method: Method) -> Tensor:
    """(N,) the same for the full batch, nothing pruned: put together without ``plan_step``."""
    advantage_N = method.advantages(subject.rewards, subject.context)
    tokens = float(subject.tokens_N.sum())
    denominator = method.normaliser.denominator(len(advantage_N), tokens, subject.max_tokens)
    return slopes(method, advantage_N) * _per_token(subject, method) / denominator


def draw_errors(subject: Subject, method: Method, draws: int, seed: int) -> Tensor:
    """(M, N) coefficients of the pruned gradient less those of the full batch, for independent draws."""
    drawn = [draw(subject, method, step_streams(seed, index)) for index in range(draws)]
    return gradients(subject, method, drawn) - full_batch(subject, method)


def slopes(method: Method, advantage_N: Tensor) -> Tensor:
    """(N,) what the gradient of each token's log-probability is multiplied by, before weights and denominator.

    It is the slope of the method's own loss at ratio 1, which for every loss we serve is minus the advantage.
    """
    logp_N1 = torch.zeros(len(advantage_N), 1, dtype=torch.float64, requires_grad=True)
    same_N1 = torch.zeros(len(advantage_N), 1, dtype=torch.float64)
    mask_N1 = torch.ones_like(same_N1, dtype=torch.bool)
    tokens = Tokens(logp_BT=logp_N1, old_logp_BT=same_N1, advantage_B=advantage_N, mask_BT=mask_N1, ref_logp_BT=same_N1)
    (slope_N1,) = torch.autograd.grad(method.loss(tokens).sum(), logp_N1)
    return slope_N1.squeeze(1)


def _per_token(subject: Subject, method: Method) -> Tensor:
    tokens_N = subject.tokens_N.double().clamp_min(1)
    return tokens_N.reciprocal() if method.normaliser.per_sequence else torch.ones_like(tokens_N)
