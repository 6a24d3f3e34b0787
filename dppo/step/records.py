"""Records of a step: its prompts, of one block, of rounds or of a stream of data; and its rollouts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dppo.context import NOTHING_KNOWN, StepContext
from dppo.errors import DataError, RoundsError, ShapeError
from dppo.groups import each_group, group_sizes
from dppo.methods import Method
from dppo.pruning import Rounds, SampledTokens
from dppo.pruning.rounds import Collected
from dppo.rng import Purpose, Streams
from dppo.typed import check_fields
from dppo.types import Block, Candidates, Completions, Draw, Rewards, check_lengths, concatenated, each_tensor


class StepSizes(NamedTuple):
    """Divisors of sums over a step: numbers of the full batch, fixed before anything is dropped.

    If every candidate was rolled out, they are counted. Otherwise history estimates them before any draw: counts of the
    drawn rollouts would be random, and the gradient biased.
    """

    denominator: float
    """Divisor of the loss of a pass."""
    tokens: float
    """Completion tokens, over which an entropy bonus is a mean."""
    attended: float = 0.0
    """Tokens with those of prompts, over which a router loss is a mean; 0 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrompts:
    """Prompts of one step: the candidates, those rolled out, and their weights."""

    candidates: Candidates
    """(P,) in each field, of all rounds."""
    draw: Draw
    """(P,) in each field, of the candidates."""
    row_Q: Tensor
    """(Q,) dataset rows rolled out, in the order of their groups; -1 for a prompt without a row."""
    prob_Q: Tensor
    """(Q,) float64 probability of having been rolled out, for metrics about all candidates."""
    weight_Q: Tensor
    """(Q,) float64 factor of the weights of a group's completions; 0 for groups that the step does not train on."""
    sequences: int
    """Completions that a denominator counts: of all candidates of a block, or of the groups that rounds end with."""
    size_Q: Tensor | None = None
    """(Q,) int64 completions to roll out of each, >= 1; None if all groups are equally large."""
    context: StepContext = NOTHING_KNOWN
    """Knowledge of each group from before its rollout."""
    expected_tokens: float | None = None
    """Tokens of all candidates as history expects them, fixed before any prompt is drawn; None if they are counted."""
    collected: Collected | None = None
    """Numbers of the rounds; None for one block."""
    part_Q: Tensor | None = None
    """(Q,) int64 share of a pass that each prompt was drawn for; None if completions are dealt to shares one by one."""

    def __post_init__(self) -> None:
        check_fields(self, "whole_block(groups=4, completions=32)")
        check_lengths(self, len(self.row_Q))
        if self.context.groups not in (None, len(self.row_Q)):
            raise ShapeError(f"{len(self.row_Q)} rows and {self.context.groups} in context: context.take(keep_P)?")
        candidates, drawn, kept = len(self.candidates.row_P), len(self.draw.keep_N), int(self.draw.keep_N.sum())
        if candidates != drawn or kept != len(self.row_Q) or self.sequences < 0:
            numbers = f"{candidates} candidates, a draw of {drawn} that keeps {kept}, {len(self.row_Q)} rows"
            more = f"sequences={self.sequences}: they do not fit"
            raise ShapeError(f"{numbers}, {more}. Try whole_block(groups=4, completions=32).")

    @classmethod
    def of(cls, block: Block, weight_Q: Tensor, sequences: int, **more: Any) -> "StepPrompts":
        """The kept prompts of a block; ``more`` are further fields."""
        more |= {"row_Q": block.row_Q, "prob_Q": block.draw.prob_N[block.draw.keep_N]}
        return cls(candidates=block.candidates, draw=block.draw, weight_Q=weight_Q, sequences=sequences, **more)

    def groups_reordered(self, order_Q: Tensor) -> "StepPrompts":
        """The prompts for groups in another order; candidates and their draw are unchanged."""
        turned = each_tensor(self, lambda value_Q: value_Q[order_Q])
        return replace(turned, context=self.context.take(order_Q))


def whole_block(groups: int, completions: int) -> StepPrompts:
    """Prompts of a step of a stream of data: ``groups`` (Q) without rows, of ``completions`` (N) in all."""
    if groups < 1:
        raise ShapeError(f"groups={groups} must be >= 1. Try whole_block(groups=4, completions=32).")
    one_Q, unseen_Q = torch.ones(groups, dtype=torch.float64), torch.zeros(groups, dtype=torch.bool)
    candidates = Candidates(row_P=torch.full((groups,), -1), signal_P=one_Q, tokens_P=one_Q, seen_P=unseen_Q)
    return replace(drawn_block(Block(candidates=candidates, draw=Draw.whole(~unseen_Q)), 1), sequences=completions)


def side_by_side(blocks: Sequence[Block]) -> tuple[Block, Tensor]:
    """Concatenate blocks; return the (P,) int64 index of each candidate's block too."""
    kept, whole = [block.draw.keep_N for block in blocks], concatenated(*blocks)
    part_P = torch.arange(len(blocks)).repeat_interleave(torch.tensor([len(keep_P) for keep_P in kept]))
    # The first kept prompts come first, then the second ones, so a slice has prompts of every block.
    place_P = torch.cat([torch.where(keep_P, keep_P.cumsum(0), len(keep_P) + 1) for keep_P in kept])
    order_P = place_P.argsort(stable=True)
    return Block(candidates=whole.candidates.take(order_P), draw=whole.draw.take(order_P)), part_P[order_P]


def drawn_block(
    block: Block, generations: int, size_Q: Tensor | None = None, part_P: Tensor | None = None
) -> StepPrompts:
    """Prompts of a step that is one block, or one block for each share of a pass.

    Every prompt counts alike in the full batch: the completions of a group of n are weighted by ``generations / n``,
    with ``generations`` G or the mean of the sizes. ``size_Q`` (Q,) are the completions of each kept prompt, >= 1, from
    before the rollout; None for G. ``part_P`` (P,) is the share of a pass of each candidate; None for one draw for all.
    """
    keep_P = block.draw.keep_N
    weight_Q = block.draw.weight_N[keep_P]
    if size_Q is not None:
        if size_Q.shape != weight_Q.shape or not bool((size_Q >= 1).all()):
            raise ShapeError(f"size_Q is {size_Q.tolist()!r:.80}, expected {len(weight_Q)} numbers >= 1.")
        weight_Q = weight_Q * generations / size_Q
    estimated = size_Q is not None or bool((block.draw.prob_N < 1).any())
    expected_tokens = generations * float(block.candidates.tokens_P.double().sum()) if estimated else None
    part_Q = None if part_P is None else part_P[keep_P]
    more = {"size_Q": size_Q, "expected_tokens": expected_tokens, "part_Q": part_Q}
    return StepPrompts.of(block, weight_Q, generations * len(keep_P), **more)


OneRound = Callable[[int, int, np.random.Generator], tuple[Block, Rewards] | None]


def in_rounds(rounds: Rounds, wanted: int, one_round: OneRound, streams: Streams) -> StepPrompts:
    """Prompts of a step, rolled out in rounds until ``wanted`` groups count; the first of them have weight 1.

    ``one_round(number, prompts, rng)`` takes about ``prompts`` prompts and returns them with the rewards of those
    rolled out, now or for a proof earlier; None if no prompts are left, which ends the rounds. Too few groups at the
    limit are a ``RoundsError``.
    """
    collected = Collected(wanted=wanted, usual=max(round(rounds.factor * wanted), 1))
    blocks, counts, sizes = list[Block](), list[Tensor](), list[Tensor]()
    while True:
        request, number = rounds.size(collected), collected.rounds
        found = one_round(number, request.prompts, streams(Purpose.PROMPT_SKIP, number))
        if found is None:
            break
        block, rewards = found
        blocks.append(block)
        counts.append(rounds.counts(rewards))
        sizes.append(group_sizes(rewards.group_N))
        collected = collected.after(counts[-1])
        at_limit = 0 < rounds.limit <= collected.rounds
        last = request.last or (at_limit and rounds.at_limit == "train")
        if not collected.missing or (last and collected.counted):
            break
        if at_limit:
            counted = f"after {collected.rounds} rounds {collected.counted} of {collected.rolled_out} groups"
            needed = f"a step needs {wanted if rounds.at_limit == 'stop' else 1}. Set max_rounds: {2 * rounds.limit}"
            raise RoundsError(f"{counted} have rewards that differ; {needed} (0: no limit), or take easier prompts.")
    if not blocks:
        raise RoundsError("there was no prompt to roll out. Give a dataset with at least one.")
    counts_Q = torch.cat(counts)
    keep_Q = counts_Q & (counts_Q.cumsum(0) <= wanted)
    sequences = int(torch.cat(sizes)[keep_Q].sum())
    return StepPrompts.of(concatenated(*blocks), keep_Q.double(), sequences, collected=collected)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledOut:
    """Rollouts of all ranks for a step: whole groups, completion after completion."""

    rewards: Rewards
    tokens_N: Tensor
    """(N,) tokens of each completion that carry loss, >= 0."""
    attended_N: Tensor | None = None
    """(N,) tokens of each prompt and completion together; None without a router loss."""
    uncertainty_N: Tensor | None = None
    """(N,) ``sqrt(sum_t (1 - p_t)^2)``; None without the sampler's log-probabilities."""
    process_N: Tensor | None = None
    """(N,) process that rolled each completion out; None for a single one."""
    sampled: SampledTokens | None = None
    """Log-probabilities of each token, for token pruning; None without it or without log-probabilities."""

    def __post_init__(self) -> None:
        check_fields(self, "RolledOut(rewards=Rewards.of_groups(reward_PG), tokens_N=tokens_N)")
        check_lengths(self, len(self.rewards))
        if self.sampled is not None and len(self.sampled.mask_NT) != len(self.rewards):
            raise ShapeError(f"sampled has {len(self.sampled.mask_NT)} completions and rewards {len(self.rewards)}.")
        if not (self.tokens_N >= 0).all():
            raise DataError(f"tokens_N must be >= 0; the smallest is {self.tokens_N.min()}. Pass mask_NT.sum(1).")


Live = Callable[[Tensor], Tensor]
"""``live(advantage_N) -> (N,) bool``: completions that are worth a forward pass."""


def completions_of(
    method: Method,
    rolled_out: RolledOut,
    context: StepContext,
    live: Live | None = None,
    weight_N: Tensor | None = None,
) -> Completions:
    """Completions as pruning sees them: advantages of whole groups, and which completions have a gradient.

    ``weight_N`` (N,) is a factor of each completion's loss: 0 for groups that the step does not train on, None for 1.
    """
    rewards, tokens_N = rolled_out.rewards, rolled_out.tokens_N
    advantage_N, used_N = method.advantages(rewards, context), torch.ones(len(rewards), dtype=torch.bool)
    if weight_N is not None and not (used_N := weight_N > 0).all():
        # Unused groups have advantages for the history, but must not count in a standard deviation over the batch.
        advantage_N = torch.where(used_N, method.advantages(rewards.only(used_N), context), advantage_N)
    return Completions(
        advantage_N=advantage_N,
        tokens_N=tokens_N,
        group_N=rewards.group_N,
        live_N=(live or method.live)(advantage_N) & (tokens_N > 0) & used_N,
        averaged_N=tokens_N.clamp_min(1) if method.normaliser.per_sequence else None,
        uncertainty_N=rolled_out.uncertainty_N,
        process_N=rolled_out.process_N,
        weight_N=weight_N,
        beta=method.beta,
        other=method.other_terms(context),
    )


def scores(method: Method, completions: Completions) -> Tensor:
    """(N,) float64 estimate of each completion's gradient norm, any unit; 0 without a gradient."""
    # ``method.live``, not the caller's ``live``: a completion that is forwarded for its metrics still has no signal.
    has_gradient_N = method.live(completions.advantage_N) & (completions.tokens_N > 0)
    return method.score(completions).double() * has_gradient_N


def signals_of(score_N: Tensor, group_N: Tensor) -> Tensor:
    """(Q,) root of the sum of squared scores of each group."""
    return each_group(lambda score_QG: score_QG.square().sum(1).sqrt(), group_N, score_N)
