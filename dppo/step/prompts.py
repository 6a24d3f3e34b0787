"""Which prompts a step rolls out: a stream, a history, and a method's rule. Engines give it rewards, it gives rows.

Everything here is a function of the run's seed, the step's number and what was learned before, so all ranks and a
resumed run agree without a word.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dppo.errors import CheckpointError, ConfigError, DataError, ShapeError
from dppo.files import finite_numbers
from dppo.groups import group_sizes
from dppo.methods import Method
from dppo.pruning import Evidence, PromptHistory, PromptStream, Rounds, Skipping
from dppo.pruning.ceiling import FEWEST, point_ceiling
from dppo.pruning.rounds import Collected, fill, take_round
from dppo.pruning.stream import fill_block, thin_block
from dppo.rng import Purpose, Streams, step_streams
from dppo.typed import check, check_fields, typed
from dppo.types import Block, Candidates, Draw, Expected, Rewards, check_lengths

HISTORY_FILE = "dppo_history.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrompts:
    """The prompts of one step: the candidates, those rolled out, and what the step is made of.

    Raises:
        ShapeError: there are no candidates, or numbers of prompts that do not belong together.
    """

    candidates: Candidates
    """(P,) in each field; of all rounds where there are several."""
    draw: Draw
    """(P,) which candidates were rolled out, and with which probability."""
    row_Q: Tensor
    """(Q,) dataset rows rolled out, in the order of their groups; -1 where a prompt has none."""
    prob_Q: Tensor
    """(Q,) float64 probability with which each was rolled out, for figures about all candidates."""
    weight_Q: Tensor
    """(Q,) float64, what multiplies the weights of a group's completions; 0 for groups that the step is not made of."""
    sequences: int
    """Completions that a denominator counts: of all candidates of a block, or of the groups that rounds end with."""
    size_Q: Tensor | None = None
    """(Q,) int64 completions to roll out of each, >= 1; None where all groups have as many."""
    expected: Expected | None = None
    """What history expects of each group rolled out; None where nothing is known."""
    collected: Collected | None = None
    """What the rounds gave; None where there was one block."""

    def __post_init__(self) -> None:
        check_fields(self, "whole_block(groups=4, completions=32)")
        check_lengths(self, len(self.row_Q))
        if self.expected is not None and len(self.expected) != len(self.row_Q):
            raise ShapeError(f"{len(self.row_Q)} rows and {len(self.expected)} in expected: expected.take(keep_P)?")
        candidates, drawn, kept = len(self.candidates.row_P), len(self.draw.keep_N), int(self.draw.keep_N.sum())
        if candidates != drawn or kept != len(self.row_Q) or self.sequences < 0:
            raise ShapeError(
                f"{candidates} candidates, a draw of {drawn} that keeps {kept}, {len(self.row_Q)} rows, sequences="
                f"{self.sequences}: they do not fit. Try whole_block(groups=4, completions=32)."
            )

    @property
    def kept_share(self) -> float:
        """Share of the candidates that were rolled out, in [0, 1]."""
        return len(self.row_Q) / len(self.candidates.row_P)

    @property
    def seen_share(self) -> float:
        """Share of the candidates with a history, in [0, 1]: prompts without one are always rolled out."""
        return self.candidates.seen_P.double().mean().item()

    def groups_reordered(self, order_Q: Tensor) -> "StepPrompts":
        """The same prompts for groups that lie in another order; candidates and their draw stay as they are.

        Args:
            order_Q: (Q,) which group comes first, second, ...
        """
        return replace(
            self,
            row_Q=self.row_Q[order_Q],
            prob_Q=self.prob_Q[order_Q],
            weight_Q=self.weight_Q[order_Q],
            size_Q=None if self.size_Q is None else self.size_Q[order_Q],
            expected=None if self.expected is None else self.expected.take(order_Q),
        )


@typed("whole_block(groups=4, completions=32)")
def whole_block(groups: int, completions: int) -> StepPrompts:
    """All prompts of a step, none of which has a place in a dataset: what a stream of data gives.

    Args:
        groups: Q, prompts, each rolled out.
        completions: N, of all of them.
    """
    if groups < 1:
        raise ShapeError(f"groups={groups} must be >= 1. Try whole_block(groups=4, completions=32).")
    one_Q = torch.ones(groups, dtype=torch.float64)
    row_Q = torch.full((groups,), -1)
    return StepPrompts(
        candidates=Candidates(row_P=row_Q, signal_P=one_Q, tokens_P=one_Q, seen_P=torch.zeros(groups).bool()),
        draw=Draw(keep_N=one_Q.bool(), prob_N=one_Q, weight_N=one_Q),
        row_Q=row_Q,
        prob_Q=one_Q,
        weight_Q=one_Q,
        sequences=completions,
    )


@typed("drawn_block(block, generations=8)")
def drawn_block(block: Block, generations: int, size_Q: Tensor | None = None) -> StepPrompts:
    """The prompts of a step that is made of one block.

    Every prompt counts alike in the full batch, so the completions of a group of n are weighted by ``generations / n``.

    Args:
        block: candidates and their draw.
        generations: G, completions of each candidate, or their mean where sizes differ; what a denominator counts.
        size_Q: (Q,) integer completions of each prompt that is rolled out, >= 1, settled before they are rolled out;
            None for G each.

    Raises:
        ShapeError: sizes of another number of groups, or below 1.
    """
    keep_P = block.draw.keep_N
    weight_Q = block.draw.weight_N[keep_P]
    if size_Q is not None:
        if size_Q.shape != weight_Q.shape or not bool((size_Q >= 1).all()):
            raise ShapeError(f"size_Q is {size_Q.tolist()!r:.80}, expected {len(weight_Q)} numbers >= 1.")
        weight_Q = weight_Q * generations / size_Q
    return StepPrompts(
        candidates=block.candidates,
        draw=block.draw,
        row_Q=block.row_Q,
        prob_Q=block.draw.prob_N[keep_P],
        weight_Q=weight_Q,
        sequences=generations * len(keep_P),
        size_Q=size_Q,
    )


Record = TypeVar("Record", Candidates, Draw)


def joined(records: Sequence[Record]) -> Record:
    """Records of several rounds as one, round after round.

    Args:
        records: at least one.
    """
    names = [field.name for field in fields(records[0])]
    return type(records[0])(**{name: torch.cat([getattr(record, name) for record in records]) for name in names})


OneRound = Callable[[int, int, np.random.Generator], tuple[Block, Rewards] | None]
"""``one_round(number, prompts, rng)`` takes about ``prompts`` prompts with ``take_round``, and gives them with the
rewards of those rolled out; None where no prompts are left."""


def in_rounds(rounds: Rounds, wanted: int, one_round: OneRound, streams: Streams) -> StepPrompts:
    """The prompts of a step that is made of rounds, rolled out by whoever trains, or long before by whoever verifies.

    Args:
        rounds: what counts, how large rounds are, and when to stop.
        wanted: groups that fill the step, >= 1.
        one_round: called for round 0, 1, ... until they do, or no prompts are left.
        streams: random numbers of the step; each round has its own.

    Raises:
        RoundsError: the limit of rounds is reached.
    """
    blocks, sizes = [], []

    def roll_out(number: int, prompts: int) -> Rewards | None:
        found = one_round(number, prompts, streams(Purpose.PROMPT_SKIP, number))
        if found is None:
            return None
        blocks.append(found[0])
        sizes.append(group_sizes(found[1].group_N))
        return found[1]

    filled = fill(rounds, wanted, roll_out)
    draw = joined([block.draw for block in blocks])
    return StepPrompts(
        candidates=joined([block.candidates for block in blocks]),
        draw=draw,
        row_Q=torch.cat([block.row_Q for block in blocks]),
        prob_Q=draw.prob_N[draw.keep_N],
        weight_Q=filled.keep_Q.double(),
        sequences=int(torch.cat(sizes)[filled.keep_Q].sum()),
        collected=filled.collected,
    )


class PromptSource:
    """Gives the prompts of each step and remembers what they gave.

    Args:
        stream: order of the dataset's rows; its seed is that of all draws.
        history: of the same rows.
        method: how prompts are dropped, in one block or in rounds.
        prompts: P, prompts of a step when nothing is pruned, >= 1.
        fill: whether blocks grow so that about P prompts are rolled out.

    Raises:
        DataError: if there are fewer rows than a block has.
    """

    @typed('PromptSource(stream, history, METHODS["dppo"], prompts=16)')
    def __init__(
        self, stream: PromptStream, history: PromptHistory, method: Method, *, prompts: int, fill: bool = False
    ) -> None:
        if stream.size < prompts:
            raise DataError(
                f"the dataset has {stream.size} prompts, fewer than the {prompts} of one generation. "
                f"Set generation_batch_size to at most {stream.size} * num_generations."
            )
        self.stream, self.history, self.method, self.prompts, self.fill = stream, history, method, prompts, fill
        self.learned = None if self._skipping is None else self._skipping.start()
        """What the rule that skips prompts has learned so far; None where there is none."""
        self.visits = Evidence.none()
        """What history expected of prompts that it knew, and what they then gave."""

    def block(self, step: int, *, generations: int, multiple: int = 1, done: float = 0.0) -> StepPrompts:
        """The prompts of a step that is made of one block: one draw, equal on every rank.

        Args:
            step: its number, also the clock of the history.
            generations: G, completions of each prompt.
            multiple: the number of prompts is raised to a multiple of this, >= 1.
            done: share of training done, in [0, 1], for schedules.
        """
        pruning = self.method.at(done).prompts.settled(self.visits)
        if self.fill:
            row_P, pruning = fill_block(self.stream, self.history, pruning, self.prompts, step)
        else:
            row_P = thin_block(self.stream, self.prompts)
        candidates = self.history.candidates(row_P, step)
        rng = step_streams(self.stream.seed, step)(Purpose.PROMPT_DRAW)
        block = Block(candidates=candidates, draw=pruning.draw(candidates, rng, multiple=multiple))
        expected = self.history.expected(block.row_Q, step)
        sizes = self.method.sizes
        size_Q = None if sizes is None else sizes(expected, candidates.tokens_P[block.draw.keep_N], generations)
        return replace(drawn_block(block, generations, size_Q), expected=expected)

    def rounds(self, step: int, roll_out: Callable[[int, Block], Rewards], *, multiple: int = 1) -> StepPrompts:
        """The prompts of a step, rolled out round after round until enough groups count.

        Args:
            step: its number.
            roll_out: ``roll_out(number, block)`` rolls the kept prompts of a round out, the first being 0, and gives
                their groups' rewards, of all ranks.
            multiple: the number of prompts of a round is raised to a multiple of this, >= 1.

        Raises:
            RoundsError: the limit of rounds is reached; the stream has moved on all the same.
            ConfigError, ShapeError: the method has no rounds; ``roll_out`` gives other groups than it was asked for.
        """
        if self.method.rounds is None:
            raise ConfigError(f"method={self.method.name!r} has no rounds. Use source.block(step, generations=8).")
        skipping = self._skipping

        def chances(row_P: Tensor) -> Tensor:
            assert skipping is not None
            return skipping.chances(self.history.streak(row_P), self.learned)

        def one_round(number: int, prompts: int, rng: np.random.Generator) -> tuple[Block, Rewards]:
            whole = math.ceil(prompts / multiple) * multiple
            row_P, draw = take_round(self.stream, whole, None if skipping is None else chances, rng)
            block = Block(candidates=self.history.candidates(row_P, step), draw=draw)
            rewards = roll_out(number, block)
            check("roll_out(number, block)", rewards, Rewards, "Rewards.of_groups(reward_PG)")
            if rewards.groups != (asked := len(block.row_Q)):
                raise ShapeError(f"round {number}: {rewards.groups} groups, expected {asked}, one for each row_Q.")
            return block, rewards

        prompts = in_rounds(self.method.rounds, self.prompts, one_round, step_streams(self.stream.seed, step))
        return replace(prompts, expected=self.history.expected(prompts.row_Q, step))

    def learn(self, prompts: StepPrompts, rewards: Rewards, signal_Q: Tensor, tokens_N: Tensor, step: int) -> None:
        """Remember what the prompts of a step gave, those included that the step does without.

        Args:
            prompts: of the step.
            rewards: of their groups.
            signal_Q: (Q,) size of each group's gradient as far as scores tell: ``StepPlan.signal_Q``.
            tokens_N: (N,) tokens of each completion.
            step: its number.
        """
        outcome_Q = None
        if self._skipping is not None:
            outcome_Q, self.learned = self._skipping.learn(self.learned, rewards, epochs=self.stream.epochs)
        self.history.update(prompts.row_Q, rewards, signal_Q, tokens_N, step, outcome_Q=outcome_Q)
        if prompts.collected is None:
            self.visits = self.visits.after(
                Evidence.of_visits(prompts.candidates, prompts.draw, rewards, signal_Q, tokens_N)
            )

    @property
    def figures(self) -> dict[str, float]:
        """Metrics of where the run stands among its prompts."""
        learned = {} if self._skipping is None else self._skipping.figures(self.learned)
        known = len(self.visits) >= FEWEST
        ceiling = {"prune/prompt_ceiling": point_ceiling(self.visits)} if known else {}
        return {"candidates/epoch": self.stream.epochs} | ceiling | learned

    @property
    def _skipping(self) -> Skipping | None:
        return None if self.method.rounds is None else self.method.rounds.skipping

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the history into ``folder`` and return the place among the prompts as JSON values."""
        self.history.save(folder / HISTORY_FILE)
        learned = {} if self.learned is None else {"learned": asdict(self.learned)}
        return self.stream.state_dict() | learned | {"visits": self.visits.saved()}

    def load(self, folder: Path, position: dict[str, Any]) -> None:
        """Read back what ``save`` wrote and returned.

        Raises:
            CheckpointError: if the history is missing, damaged, or of another dataset, or the place is damaged.
        """
        found = self.history.load(folder / HISTORY_FILE)
        if found < len(self.history):
            warnings.warn(
                f"{len(self.history) - found} of {len(self.history)} prompts are not in the checkpoint's dataset: they "
                "start without a history.",
                stacklevel=2,
            )
        self.stream.load_state_dict(position)
        self.visits = Evidence.of_saved(position["visits"]) if "visits" in position else Evidence.none()
        if self.learned is not None and "learned" in position:
            try:
                self.learned = finite_numbers(type(self.learned), position["learned"])
            except (TypeError, ValueError) as error:
                raise CheckpointError(
                    f"what was learned of prompts to skip is damaged in {folder} ({error}). Resume from an earlier "
                    "checkpoint folder."
                ) from error
