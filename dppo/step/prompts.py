"""Which prompts a step rolls out: a stream, a history, and a method's rule. Engines give it rewards, it gives rows.

Everything here is a function of the run's seed, the step's number and what was learned before, so all ranks and a
resumed run agree without a word.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dppo.context import Expected, StepContext
from dppo.errors import CheckpointError, ConfigError, DataError, ShapeError
from dppo.files import finite_numbers
from dppo.methods import Method
from dppo.pruning import (
    PROMPT_AUTO,
    MomentSamples,
    PromptHistory,
    PromptPrior,
    PromptPruning,
    PromptStream,
    PromptValues,
    Skipping,
    spends_budget,
)
from dppo.pruning.ceiling import FEWEST, gain_of, point_ceiling
from dppo.pruning.history import Believed
from dppo.pruning.rounds import take_round
from dppo.pruning.stream import fill_block
from dppo.rng import Purpose, step_streams
from dppo.step.plan import DraftPlan
from dppo.step.records import StepPrompts, drawn_block, in_rounds, side_by_side
from dppo.typed import check
from dppo.types import Block, Draw, Rewards

EVIDENCE = ("visits", "first_visits")
"""Attributes of a source: signals of prompts, as expected and as found."""
HISTORY_FILE = "dppo_history.npz"
LATEST_VISITS = 32
"""Visits at the least by which a denominator follows the lengths of completions: their mean is off by percents."""


class PromptSource:
    """Gives the prompts of each step and remembers what they gave.

    Args:
        stream: order of the dataset's rows; its seed is that of all draws.
        history: of the same rows.
        prompts: P, prompts of a step when nothing is pruned, >= 1.
        fill: whether blocks grow so that about P prompts are rolled out.
        weight_F: (F,) of the reward functions, by which group sizes go; None for 1 each.
        prior: pass rates that the dataset carries, believed until what prompts give says that they mislead.
        values: what a reference policy did on each prompt: of methods whose advantages are from it, and the prior of
            histories; None where it was not sampled.

    Raises:
        ConfigError: both ``values`` and ``prior``, which are two priors.
        DataError: if there are fewer rows than a block has.
        ShapeError: if there are values or pass rates of another number of rows.
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
            raise DataError(
                f"the dataset has {stream.size} prompts, fewer than the {prompts} of one generation. "
                f"Set generation_batch_size to at most {stream.size} * num_generations."
            )
        for what, given in (("values", values), ("a prior", prior)):
            if given is not None and len(given) != stream.size:
                raise ShapeError(
                    f"{what} of {len(given)} prompts, and the dataset has {stream.size}. Give it one each."
                )
        if values is not None and prior is not None:
            raise ConfigError("values and prior are priors of the same prompts. Give one: prior=None.")
        self.stream, self.history, self.prompts, self.fill = stream, history, prompts, fill
        self.weight_F, self.values = weight_F, values
        self._given, self._disbelieved, self.first_visits = prior, False, MomentSamples.none()
        """Pass rates, and whether they were found to mislead; what they expected of prompts at their
        first visit, and what these gave."""
        self._mixed: dict[int, Tensor] = {}
        """By completions of a group, how likely the pass rates make each prompt's rewards differ."""
        self.lines: list[str] = []
        """What is to be said of the run, for whoever trains to take away."""
        self._told_of_rounding = False
        self.learned: Any = None
        """State of the rule that skips prompts, from ``Skipping.learn``; None before its first step."""
        self._of_rule: dict[str, float] = {}
        self.visits = MomentSamples.none()
        """What history expected of prompts that it knew, and what they then gave."""

    def block(
        self, method: Method, step: int, *, generations: int, multiple: int = 1, done: float = 0.0, parts: int = 1
    ) -> StepPrompts:
        """The prompts of a step that is made of one block: one draw for each of its parts, equal on every rank.

        Args:
            method: of the run; ``plan_step`` gets the same.
            step: its number, also the clock of the history.
            generations: G, completions of each prompt.
            multiple: the number of prompts is raised to a multiple of this, >= 1.
            done: share of training done, in [0, 1], for schedules.
            parts: shares of a pass that prompts, where these are pruned, are drawn for: see ``UpdateSchedule.parts``.
        """
        pruning = method.at(done).prompts.at_chosen_rate(self.visits)
        # A prior knows no tokens, and the denominator may be a number of them.
        known = self.history.observations > 0 or not (method.normaliser.counts_tokens or method.entropy_coef)
        if not known:
            pruning = pruning.at_rate(0.0)
        parts = parts if method.prompts.rate else 1
        blocks = self._blocks(pruning, step, generations, multiple=multiple, parts=parts)
        block, part_P = (blocks[0], None) if parts == 1 else side_by_side(blocks)
        if method.prompts.auto is None:
            self._tell_of_rounding(pruning, block)
        context, sizes, size_Q = self.context(method, block.row_Q, step), method.sizes, None
        if sizes is not None and context.expected is not None and known:
            tokens_Q = block.candidates.tokens_P[block.draw.keep_N]
            size_Q = sizes(context.expected, tokens_Q, generations, self.weight_F)
        prompts = replace(drawn_block(block, generations, size_Q, part_P), context=context)
        if prompts.expected_tokens is not None:
            prompts = replace(prompts, expected_tokens=prompts.expected_tokens * self._growth())
        return prompts

    def _tell_of_rounding(self, pruning: PromptPruning, block: Block) -> None:
        """Say once that a given rate leaves out no prompt of a step."""
        whole = bool(block.candidates.seen_P.all()) and bool(block.draw.keep_N.all())
        given = pruning.rate and spends_budget(pruning.rule)
        if whole and given and not self.fill and not self._told_of_rounding:
            self._told_of_rounding = True
            prompts = len(block.candidates.row_P)
            self.lines.append(f"prompt_prune_rate: {pruning.rate:g} of a step's {prompts} prompts rounds to none")

    def _growth(self) -> float:
        """Tokens of the latest visits over what history expected of them: while a run learns, lengths drift.

        It is known before a draw, so a denominator by it stays free of bias. 1 where nothing tells.
        """
        latest = self.visits.part(
            torch.arange(len(self.visits)) >= len(self.visits) - max(LATEST_VISITS, 2 * self.prompts)
        )
        expected, found = ((latest.weight_N * cost_N).sum() for cost_N in (latest.expected_cost_N, latest.cost_N))
        return float(found / expected) if expected > 0 and found > 0 else 1.0

    def _blocks(self, pruning: PromptPruning, step: int, generations: int, *, multiple: int, parts: int) -> list[Block]:
        """The next candidates of the stream in parts, each with a draw of its own.

        What is rounded up in one part is rounded down in the next, by what is expected and not by what was drawn.
        """
        believed, streams = self._believed(generations), step_streams(self.stream.seed, step)
        blocks, owed = list[Block](), 0.0
        for part in range(parts):
            by = pruning
            if self.fill:
                row_P, by = fill_block(
                    self.stream, self.history, pruning, self.prompts, step, believed, part=part, parts=parts
                )
            else:
                row_P = self.stream.take(self.prompts // parts)
            candidates = self.history.candidates(row_P, step, believed)
            rng = streams(Purpose.PROMPT_DRAW, *((part,) if part else ()))
            draw = by.draw(candidates, rng, multiple=multiple, owed=owed)
            owed += by.expected(candidates) - float(draw.prob_N.sum())
            blocks.append(Block(candidates=candidates, draw=draw))
        return blocks

    def rounds(
        self, method: Method, step: int, roll_out: Callable[[int, Block], Rewards], *, multiple: int = 1
    ) -> StepPrompts:
        """The prompts of a step, rolled out round after round until enough groups count.

        Args:
            method: of the run; ``plan_step`` gets the same.
            step: its number.
            roll_out: ``roll_out(number, block)`` rolls the kept prompts of a round out, the first being 0, and gives
                their groups' rewards, of all ranks.
            multiple: the number of prompts of a round is raised to a multiple of this, >= 1.

        Raises:
            RoundsError: the limit of rounds is reached; the stream has moved on all the same.
            ConfigError, ShapeError: the method has no rounds; ``roll_out`` gives other groups than it was asked for.
        """
        if method.rounds is None:
            raise ConfigError(f"method={method.name!r} has no rounds. Use source.block(method, step, generations=8).")
        skipping = method.rounds.skipping

        def chances(row_P: Tensor) -> Tensor:
            assert skipping is not None
            return skipping.chances(self.history.streak(row_P), self._learned(skipping))

        def one_round(number: int, prompts: int, rng: np.random.Generator) -> tuple[Block, Rewards]:
            whole = math.ceil(prompts / multiple) * multiple
            row_P, draw = take_round(self.stream, whole, None if skipping is None else chances, rng)
            block = Block(candidates=self.history.candidates(row_P, step), draw=draw)
            rewards = roll_out(number, block)
            check("roll_out(number, block)", rewards, Rewards, "Rewards.of_groups(reward_PG)")
            if rewards.groups != (asked := len(block.row_Q)):
                raise ShapeError(f"round {number}: {rewards.groups} groups, expected {asked}, one for each row_Q.")
            return block, rewards

        prompts = in_rounds(method.rounds, self.prompts, one_round, step_streams(self.stream.seed, step))
        return replace(prompts, context=self.context(method, prompts.row_Q, step))

    def given(self, method: Method, row_Q: Tensor, step: int, *, generations: int) -> StepPrompts:
        """Prompts that an engine has chosen by itself, (Q,) rows of the dataset, as a whole block: without weights."""
        draw = Draw.whole(torch.ones(len(row_Q), dtype=torch.bool))
        prompts = drawn_block(Block(candidates=self.history.candidates(row_Q, step), draw=draw), generations)
        return replace(prompts, context=self.context(method, row_Q, step))

    def context(self, method: Method, row_Q: Tensor, step: int) -> StepContext:
        """What is known of prompts, (Q,) rows of the dataset, before their completions are looked at.

        ``step`` is now, on the clock of the history.
        """
        value_Q = None if self.values is None else self.values.value_P[row_Q]
        return StepContext(expected=self._expected(method, row_Q, step), value_Q=value_Q)

    def _expected(self, method: Method, row_Q: Tensor, step: int) -> Expected | None:
        """What is expected of prompts from steps before this one: their histories, on top of their prior.

        Values are the prior of a prompt until its first visit alone: later they are of a policy that was left behind
        (docs/a_star_po.md). None where nothing is known, and for methods that do not ask.
        """
        if not method.advantages.from_history:
            return None
        found = self.history.expected(row_Q, step, None if self.prior is None else self.prior.expected(row_Q))
        if self.values is None:
            return found
        before = self.values.expected(row_Q)
        return before if found is None else found.where(self.history.candidates(row_Q, step).seen_P, before)

    def learn(self, plan: DraftPlan, step: int) -> None:
        """Remember what the prompts of a step gave, also those that the step does not train on."""
        prompts, rewards, tokens_N = plan.prompts, plan.rewards, plan.completions.tokens_N
        known = self.history.observations > 0  # before that, what a prior expects has no unit
        if self.prior is not None and known:
            self._judge_prior(plan)
        outcome_Q, skipping = None, plan.method.rounds and plan.method.rounds.skipping
        if skipping is not None:
            outcome_Q, self.learned = skipping.learn(self._learned(skipping), rewards, epochs=self.stream.epochs)
            self._of_rule = skipping.metrics(self.learned)
        self.history.update(prompts.row_Q, rewards, plan.signal_Q, tokens_N, step, outcome_Q=outcome_Q)
        if prompts.collected is None and known:
            self.visits = self.visits.after(
                MomentSamples.of_visits(prompts.candidates, prompts.draw, rewards, plan.signal_Q, tokens_N)
            )

    @property
    def prior(self) -> PromptPrior | None:
        """Pass rates that are believed; None without any, and once they were found to mislead."""
        return None if self._disbelieved else self._given

    def _believed(self, generations: int) -> Believed | None:
        """What is believed of the squared signal of every prompt, worth so many groups."""
        if self.prior is None:
            return None
        if generations not in self._mixed:
            self._mixed[generations] = self.prior.signal_chance_P(generations)
        return self.history.believed(self._mixed[generations], self.prior.completions / generations)

    def _judge_prior(self, plan: DraftPlan) -> None:
        """Stop believing pass rates where pruning by them has cost more than it saved, at first visits of prompts."""
        prompts = plan.prompts
        first = replace(
            prompts.candidates,
            seen_P=prompts.candidates.seen_P & ~self.history.visited(prompts.candidates.row_P),
        )
        found = MomentSamples.of_visits(first, prompts.draw, plan.rewards, plan.signal_Q, plan.completions.tokens_N)
        self.first_visits = self.first_visits.after(found)
        if len(self.first_visits) < PROMPT_AUTO.fewest:
            return
        gain = gain_of(self.first_visits, plan.method.prompts.half(self.first_visits))
        if gain.high < 1:
            self._disbelieved = True
            self.lines.append(
                f"prompt_prior is turned off: of {gain.units} prompts that it spoke of, those that it called worth a "
                f"visit gave no more than others; half of them pruned by it would be worth {gain} of none"
            )

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of where the run stands among its prompts."""
        known = len(self.visits) >= FEWEST
        ceiling = {"prune/prompt_ceiling": point_ceiling(self.visits)} if known else {}
        return {"candidates/epoch": self.stream.epochs} | ceiling | self._of_rule

    def _learned(self, skipping: Skipping) -> Any:
        return skipping.start() if self.learned is None else self.learned

    def save(self, folder: Path) -> dict[str, Any]:
        """Write what was learned of prompts into ``folder`` and return the place among them as JSON values."""
        self.history.save(folder / HISTORY_FILE)
        learned = {} if self.learned is None else {"learned": asdict(self.learned)}
        found = {name: getattr(self, name).saved() for name in EVIDENCE}
        return self.stream.state_dict() | learned | found | {"disbelieved": self._disbelieved}

    def load(self, method: Method, folder: Path, position: dict[str, Any], *, history: bool = True) -> None:
        """Read back what ``save`` wrote and returned, for a run of ``method``.

        Without ``history`` only the place among the prompts is read.

        Raises:
            CheckpointError: if the history is missing, damaged, or of another dataset, or the place is damaged.
        """
        found = self.history.load(folder / HISTORY_FILE) if history else len(self.history)
        if found < len(self.history):
            warnings.warn(
                f"{len(self.history) - found} of {len(self.history)} prompts are not in the checkpoint's dataset: they "
                "start without a history.",
                stacklevel=2,
            )
        if self.weight_F is not None and self.history.functions not in (0, len(self.weight_F)):
            warnings.warn(
                f"the checkpoint has rewards of {self.history.functions} functions, and there are {len(self.weight_F)} "
                "now: what is expected of prompts is learned anew.",
                stacklevel=2,
            )
            self.history.forget_rewards()
        self.stream.load_state_dict(position)
        self.visits, self.first_visits = (MomentSamples.of_saved(position.get(name)) for name in EVIDENCE)
        self._disbelieved = bool(position.get("disbelieved"))
        try:
            self.learned, skipping = None, method.rounds and method.rounds.skipping
            if skipping is not None and "learned" in position:
                self.learned = finite_numbers(type(skipping.start()), position["learned"])
        except (AttributeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"what was learned of prompts and losses is damaged in {folder} ({error}). Resume from an earlier "
                "checkpoint folder."
            ) from error
