"""Prompts of each step: a stream, a history and a method's rule give rows; engines give back their rewards.

Everything follows from the run's seed, the step and earlier steps: ranks and a resumed run agree without communication.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dppo.context import StepContext
from dppo.errors import ConfigError, DataError, ShapeError
from dppo.methods import Method
from dppo.pruning import MomentSamples, PromptHistory, PromptPruning, PromptStream
from dppo.pruning.ceiling import FEWEST, point_ceiling
from dppo.pruning.prior import CheckedPrior, PromptPrior, PromptValues
from dppo.pruning.probabilities import stated
from dppo.pruning.prompts import fill_block
from dppo.pruning.rounds import Skipping, take_round
from dppo.rng import Purpose, step_streams
from dppo.step.plan import DraftPlan
from dppo.step.records import StepPrompts, drawn_block, in_rounds, side_by_side
from dppo.typed import check
from dppo.types import Block, Draw, Rewards

HISTORY_FILE = "dppo_history.npz"
LATEST_VISITS = 32
"""Fewest visits from which a denominator follows the lengths of completions; their mean is off by a few percent."""


class PromptSource:
    """Gives the prompts of each step and learns from their rewards.

    Args:
        stream: order of the dataset's rows; its seed is that of all draws.
        history: of the same rows.
        prompts: P, prompts of a step without pruning, >= 1.
        fill: True if blocks grow until about P prompts are rolled out.
        weight_F: (F,) of the reward functions, for group sizes; None for 1 each.
        prior: pass rates that the dataset carries, used until the rewards show that they mislead.
        values: of each prompt under a reference policy: baselines of some methods, and the prior of histories.
    """

    def __init__(
        self,
        stream: PromptStream,
        history: PromptHistory,
        *,
        prompts: int,
        fill: bool = False,
        weight_F: Tensor | None = None,
        values: PromptValues | None = None,
        prior: PromptPrior | None = None,
    ) -> None:
        if stream.size < prompts:
            few = f"the dataset has {stream.size} prompts, fewer than the {prompts} of one generation"
            raise DataError(f"{few}. Set generation_batch_size to at most {stream.size} * num_generations.")
        for name, given in (("values", values), ("a prior", prior)):
            if given is not None and len(given) != stream.size:
                raise ShapeError(f"{name} of {len(given)} prompts; the dataset has {stream.size}. Give one for each.")
        if values is not None and prior is not None:
            raise ConfigError("values and prior are priors of the same prompts. Give one: prior=None.")
        self.stream, self.history, self.prompts, self.fill = stream, history, prompts, fill
        self.weight_F, self.values, self.checked_prior = weight_F, values, CheckedPrior(prior)
        self.visits = MomentSamples.none()
        """Signals that the history expected of prompts, and those found at their next visit."""
        self.learned: Any = None
        """State of the rule that skips prompts, from ``Skipping.learn``; None before its first step."""
        self._skip_metrics: dict[str, float] = {}
        self.messages: list[str] = []
        """Messages for the user that no one has read yet."""
        self._rounding_reported = False

    def block(
        self, method: Method, step: int, *, generations: int, multiple: int = 1, done: float = 0.0, parts: int = 1
    ) -> StepPrompts:
        """Prompts of a step that is one block, with one draw for each part; equal on every rank.

        ``step`` is also the clock of the history. The number of prompts is raised to a multiple of ``multiple``.
        ``done`` is the share of training done, in [0, 1]. ``parts`` are those of ``UpdateSchedule.parts``.
        """
        pruning = method.at(done).prompts.at_chosen_rate(self.visits)
        # A prior has no lengths, and the denominator may be a number of tokens.
        known = self.history.observations > 0 or not (method.normaliser.counts_tokens or method.entropy_coef)
        if not known:
            pruning = pruning.at_rate(0.0)
        parts = parts if method.prompts.rate else 1
        blocks = self._blocks(pruning, step, generations, multiple=multiple, parts=parts)
        block, part_P = (blocks[0], None) if parts == 1 else side_by_side(blocks)
        if method.prompts.auto is None:
            self._report_rounding(pruning, block)
        context, size_Q = self.context(method, block.row_Q, step), None
        if method.sizes is not None and context.expected is not None and known:
            tokens_Q = block.candidates.tokens_P[block.draw.keep_N]
            size_Q = method.sizes(context.expected, tokens_Q, generations, self.weight_F)
        prompts = replace(drawn_block(block, generations, size_Q, part_P), context=context)
        if prompts.expected_tokens is None:
            return prompts
        return replace(prompts, expected_tokens=prompts.expected_tokens * self._growth())

    def _report_rounding(self, pruning: PromptPruning, block: Block) -> None:
        """Add a message, once, if a given rate leaves out no prompt of a step."""
        whole = bool(block.candidates.seen_P.all()) and bool(block.draw.keep_N.all())
        given = pruning.rate and stated(pruning.rule).spends_budget
        if whole and given and not self.fill and not self._rounding_reported:
            self._rounding_reported = True
            prompts = len(block.candidates.row_P)
            self.messages.append(f"prompt_prune_rate: {pruning.rate:g} of a step's {prompts} prompts rounds to none")

    def _growth(self) -> float:
        """Tokens of the latest visits over those expected, since lengths drift while a run learns; 1 if unknown."""
        # Known before the draw: a denominator times it stays free of bias.
        visits, latest = self.visits, slice(-max(LATEST_VISITS, 2 * self.prompts), None)
        costs = visits.expected_cost_N, visits.cost_N
        expected, found = ((visits.weight_N * cost_N)[latest].sum() for cost_N in costs)
        return float(found / expected) if expected > 0 and found > 0 else 1.0

    def _blocks(self, pruning: PromptPruning, step: int, generations: int, *, multiple: int, parts: int) -> list[Block]:
        """Next candidates of the stream in parts, each with its own draw."""
        prior, streams = self.checked_prior.of_signals(self.history, generations), step_streams(self.stream.seed, step)
        blocks, owed = list[Block](), 0.0
        for part in range(parts):
            if self.fill:
                known = self.stream, self.history, pruning, self.prompts, step, prior
                candidates, by = fill_block(*known, part=part, parts=parts)
            else:
                candidates, by = self.history.candidates(self.stream.take(self.prompts // parts), step, prior), pruning
            rng = streams(Purpose.PROMPT_DRAW, *((part,) if part else ()))
            draw = by.draw(candidates, rng, multiple=multiple, owed=owed)
            # What rounding added here is taken off the next part, of the expected number: draws stay independent.
            owed += by.expected(candidates) - float(draw.prob_N.sum())
            blocks.append(Block(candidates=candidates, draw=draw))
        return blocks

    def rounds(
        self, method: Method, step: int, roll_out: Callable[[int, Block], Rewards], *, multiple: int = 1
    ) -> StepPrompts:
        """Prompts of a step, rolled out in rounds until enough groups count.

        ``roll_out(number, block)`` rolls out the kept prompts of round ``number``, from 0, and returns the rewards of
        their groups, of all ranks. A round has a multiple of ``multiple`` prompts. At the limit of rounds it is a
        ``RoundsError``; the stream has moved on nevertheless.
        """
        if method.rounds is None:
            raise ConfigError(f"method={method.name!r} has no rounds. Use source.block(method, step, generations=8).")
        skipping = method.rounds.skipping
        chances = None if skipping is None else partial(self._chances, skipping)

        def one_round(number: int, prompts: int, rng: np.random.Generator) -> tuple[Block, Rewards]:
            whole = math.ceil(prompts / multiple) * multiple
            row_P, draw = take_round(self.stream, whole, chances, rng)
            block = Block(candidates=self.history.candidates(row_P, step), draw=draw)
            rewards = roll_out(number, block)
            check("roll_out(number, block)", rewards, Rewards, "Rewards.of_groups(reward_PG)")
            if rewards.groups != (asked := len(block.row_Q)):
                raise ShapeError(f"round {number}: {rewards.groups} groups, expected {asked}, one for each row_Q.")
            return block, rewards

        prompts = in_rounds(method.rounds, self.prompts, one_round, step_streams(self.stream.seed, step))
        return replace(prompts, context=self.context(method, prompts.row_Q, step))

    def given(self, method: Method, row_Q: Tensor, step: int, *, generations: int) -> StepPrompts:
        """A whole block without weights of prompts that an engine chose, (Q,) rows of the dataset."""
        draw = Draw.whole(torch.ones(len(row_Q), dtype=torch.bool))
        prompts = drawn_block(Block(candidates=self.history.candidates(row_Q, step), draw=draw), generations)
        return replace(prompts, context=self.context(method, row_Q, step))

    def context(self, method: Method, row_Q: Tensor, step: int) -> StepContext:
        """Expectations and values of prompts, (Q,) rows of the dataset, from before ``step`` on the history's clock."""
        value_Q = None if self.values is None else self.values.value_P[row_Q]
        if not method.advantages.from_history:
            return StepContext(value_Q=value_Q)
        rates = self.checked_prior.rates
        expected = self.history.expected(row_Q, step, None if rates is None else rates.expected(row_Q))
        if self.values is not None:
            # Until the first visit only: later the values are of a policy that was left behind (docs/a_star_po.md).
            before, seen_Q = self.values.expected(row_Q), self.history.visited(row_Q)
            expected = before if expected is None else expected.where(seen_Q, before)
        return StepContext(expected=expected, value_Q=value_Q)

    def learn(self, plan: DraftPlan, step: int) -> None:
        """Record the groups of a step, also those that it does not train on."""
        prompts, rewards, tokens_N = plan.prompts, plan.rewards, plan.completions.tokens_N
        of_step = prompts.draw, rewards, plan.signal_Q, tokens_N
        candidates, known = prompts.candidates, self.history.observations > 0  # before that, a prior has no unit
        if self.checked_prior.rates is not None and known:
            first = replace(candidates, seen_P=candidates.seen_P & ~self.history.visited(candidates.row_P))
            self.messages += self.checked_prior.after(MomentSamples.of_visits(first, *of_step), plan.method.prompts)
        outcome_Q, skipping = None, plan.method.rounds and plan.method.rounds.skipping
        if skipping is not None:
            outcome_Q, self.learned = skipping.learn(self._learned(skipping), rewards, epochs=self.stream.epochs)
            self._skip_metrics = skipping.metrics(self.learned)
        self.history.update(prompts.row_Q, rewards, plan.signal_Q, tokens_N, step, outcome_Q=outcome_Q)
        if prompts.collected is None and known:
            self.visits = self.visits.after(MomentSamples.of_visits(candidates, *of_step))

    @property
    def metrics(self) -> dict[str, float]:
        """Epochs taken, the ceiling of prompt pruning, and the state of the rule that skips."""
        ceiling = {"prune/prompt_ceiling": point_ceiling(self.visits)} if len(self.visits) >= FEWEST else {}
        return {"candidates/epoch": self.stream.epochs} | ceiling | self._skip_metrics

    def _learned(self, skipping: Skipping) -> Any:
        return skipping.start() if self.learned is None else self.learned

    def _chances(self, skipping: Skipping, row_P: Tensor) -> Tensor:
        return skipping.chances(self.history.streak(row_P), self._learned(skipping))

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the history into ``folder``; return the rest of the state as JSON values."""
        self.history.save(folder / HISTORY_FILE)
        return self.stream.state_dict() | {
            "learned": None if self.learned is None else asdict(self.learned),
            "visits": self.visits.saved(),
            "first_visits": self.checked_prior.first_visits.saved(),
            "prior_rejected": self.checked_prior.rejected,
        }

    def load(self, method: Method, folder: Path, state: Mapping[str, Any], *, history: bool = True) -> None:
        """Read the files and the state of ``save``, for a run of ``method``; without ``history`` the state alone."""
        found = self.history.load(folder / HISTORY_FILE) if history else len(self.history)
        if found < len(self.history):
            new = f"{len(self.history) - found} of {len(self.history)} prompts are not in the checkpoint's dataset"
            warnings.warn(f"{new}: they start without a history.", stacklevel=2)
        if self.weight_F is not None and self.history.functions not in (0, len(self.weight_F)):
            before = f"the checkpoint has rewards of {self.history.functions} functions; this run has"
            warnings.warn(f"{before} {len(self.weight_F)}. Expected rewards of prompts are learned anew.", stacklevel=2)
            self.history.forget_rewards()
        self.stream.load_state_dict(state)
        self.visits = MomentSamples.of_saved(state["visits"])
        self.checked_prior.first_visits = MomentSamples.of_saved(state["first_visits"])
        self.checked_prior.rejected, learned = state["prior_rejected"], state["learned"]
        skipping = method.rounds and method.rounds.skipping
        self.learned = None if skipping is None or learned is None else type(skipping.start())(**learned)
