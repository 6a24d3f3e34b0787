"""What a run does and says of itself: the cycle of its calls, its plan and card, and a record of each generation.

A recorder is told of the records. Nothing here knows of files.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig

from dppo import __version__
from dppo.errors import in_words, raise_problems
from dppo.groups import group_sizes
from dppo.methods import Method
from dppo.pruning import SampledTokens, constant
from dppo.step import StepPlan, UpdateSchedule
from dppo.trl.batch import PADDED, Padded, RankBatch
from dppo.types import Candidates, Completions

WHY = ("kept", "not drawn", "zero advantage", "no tokens", "left out by the rule", "not used by the round")
"""What became of a completion; the first draw of a generation that could have kept it decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulationSchedule:
    """The calls of the loss from one generation to the next."""

    passes: UpdateSchedule
    calls: int
    """Calls of the loss that make up one share of a generation, >= 1: those that are always of one optimizer step."""
    together: int = 1
    """Shares of an optimizer step, of several generations where it is more than one."""

    @classmethod
    def of_arguments(cls, args: GRPOConfig, steps: int | None = None) -> "AccumulationSchedule":
        """That of a run's arguments; ``steps`` are those of a generation, where ``steps_per_generation`` is another.

        Where they and ``gradient_accumulation_steps`` do not divide one another, an optimizer step takes shares of two
        generations, and each has its own draw.
        """
        steps = steps or args.steps_per_generation or 1
        calls = math.gcd(steps, args.gradient_accumulation_steps)
        passes = UpdateSchedule(passes=args.num_iterations, shares=steps // calls)
        return cls(passes=passes, calls=calls, together=args.gradient_accumulation_steps // calls)

    @property
    def length(self) -> int:
        """Calls of the whole cycle: TRL generates again after as many."""
        return self.passes.steps * self.calls

    def locate(self, phase: int) -> tuple[int, int]:
        """``(draw, call)`` of the cycle's call number ``phase``: which draw it trains on, which part of it."""
        return divmod(phase, self.calls)


def prompt_parts(passes: UpdateSchedule, prompts: int, generations: int, processes: int) -> tuple[int, int]:
    """Draws that a block of so many prompts is made of, and what the number of each is a multiple of.

    ``generations`` completions of each prompt make equal numbers of completions on all ``processes``.
    """
    multiple = processes // math.gcd(generations, processes)
    return passes.parts(prompts, multiple), multiple


def steps_of_prompts(args: Any, processes: int) -> int:
    """Optimizer steps that one draw of prompts is trained in, by a run's arguments."""
    (completions, cycle), group = generation_sizes(args, processes), args.num_generations or 1
    return cycle.passes.steps // prompt_parts(cycle.passes, completions // group, group, processes)[0]


def describe_steps(
    args: Any, method: Method, *, prompts_in_dataset: int | None, processes: int | None = None
) -> list[str]:
    """Lines that say what a generation rolls out, what is trained on, and what is biased about it."""
    completions, cycle = generation_sizes(args, processes or args.world_size)
    block = completions // (args.num_generations or 1)
    kept = max(1, round(block * (1 - method.prompts.rate)))
    reasons = method.biases(steps_of_prompts(args, processes or args.world_size))
    prior = args.prompt_prior is not None
    lines = [f"method: {method.name} ({method.paper}), gradient {'BIASED' if reasons else 'unbiased'}"]
    if method.rounds is not None:
        lines.append(f"prompts: {method.rounds}; a step wants {block} groups of {args.num_generations} completions")
    elif not method.prompts.rate:
        each = "on average" if method.sizes is not None else "each"
        lines.append(f"prompts: all {block} of a block are rolled out, {args.num_generations} completions {each}")
    elif (auto := method.prompts.auto) is not None:
        until = f"{auto.fewest} prompts have been visited" if prior else "prompts have come back"
        lines.append(
            f"prompts: all {block} of a block until {until} (prompt_prune_rate: auto starts unpruned, "
            f"without a history to choose from), then up to {method.prompts.rate:g} of them pruned where that pays"
        )
    elif args.prompt_mode == "fill":
        lines.append(f"prompts: blocks of up to {round(block / (1 - method.prompts.rate))}, about {block} rolled out")
    else:
        since = "" if prior else " once all have a history"
        lines.append(f"prompts: of a block of {block}, about {kept} are rolled out{since}")
    if method.sizes is not None:
        most = max(method.sizes.most, args.num_generations)
        lines.append(f"group sizes: by history, 1 to {most} completions of a prompt, {args.num_generations} on average")
    if args.num_generations == 1 and not prior and args.prompt_values is None:
        lines.append("the first generation has no gradient: nothing is known yet that its completions differ from")
    share = f"{1 - method.completions.rate:.0%}"
    if getattr(method.completions, "auto", None) is not None:
        share = f"{share} or more, as their scores say in each step (completion_prune_rate: auto),"
    lines.append(f"completions: of those with a gradient, {share} are trained on; score {method.score_name}")
    if method.tokens.active:
        lines.append(f"tokens of completions with a gradient: {method.tokens}")
    if method.schedule is not constant:
        lines.append(f"rates follow a schedule over the run: {in_words(method.schedule)}")
    if args.advantage_power:
        lines.append(f"advantages: {method.advantages.name}, which is another objective than the reward's")
    lines += _optimizer_lines(cycle, args.gradient_accumulation_steps)
    if prompts_in_dataset is not None and method.prompts.rate:
        first = "" if prior else "; none is pruned in the first one"
        lines.append(f"an epoch is {prompts_in_dataset / block:.0f} generations{first}")
    return lines + [f"biased: {reason}" for reason in reasons]


def _optimizer_lines(cycle: AccumulationSchedule, accumulated: int) -> list[str]:
    """How the calls of a generation are shared out to optimizer steps of so many calls."""
    steps, calls = cycle.passes.steps, cycle.calls * cycle.passes.shares
    if accumulated > cycle.calls and steps > 1:
        return [
            f"an optimizer step takes gradient_accumulation_steps={accumulated} calls, and a generation has "
            f"{cycle.length}: a step may end one generation and begin the next (completions drawn anew every "
            f"{cycle.calls} calls)"
        ]
    each = f"optimizer steps per generation: {steps}" + (" (completions drawn anew for each)" if steps > 1 else "")
    if accumulated == cycle.calls:
        return [each]
    return [
        each,
        f"an optimizer step takes {accumulated // calls} generations: gradient_accumulation_steps={accumulated} calls, "
        f"and a generation has {calls}",
    ]


def generation_sizes(args: Any, processes: int) -> tuple[int, AccumulationSchedule]:
    """Completions of a generation and the cycle of its calls."""
    per_call = args.per_device_train_batch_size * processes
    steps = args.steps_per_generation or 1
    if args.generation_batch_given:
        whole = args.generation_batch_size or per_call
        steps, rest = divmod(whole, per_call)
        problem = (
            f"generation_batch_size={whole} is not a multiple of the {per_call} completions that {processes} processes "
            f"hold at once. Try generation_batch_size: {per_call * (steps or 1)}."
        )
        raise_problems("DPPOConfig", [problem] if rest or not steps else [])
    return per_call * steps, AccumulationSchedule.of_arguments(args, steps)


def card_section(method: Method, optimizer_steps: int) -> str:
    """Method, rates, biases and paper as Markdown, to stand below what TRL writes.

    ``optimizer_steps`` are those of one draw of prompts.
    """
    reasons = method.biases(optimizer_steps)
    rows = {
        "method": f"`{method.name}`",
        "completions pruned": f"{method.completions.rate:.0%} of those with a gradient",
        "prompts pruned": f"{method.prompts.rate:.0%} of those with a history",
        **({"tokens left out": str(method.tokens)} if method.tokens.active else {}),
        "gradient": f"**biased**: {'; '.join(reasons)}" if reasons else "unbiased: the full batch's, in expectation",
        "paper": method.paper,
    }
    for what, level in (("completions pruned", method.completions), ("prompts pruned", method.prompts)):
        if getattr(level, "auto", None) is not None:
            rows[what] = f"up to {rows[what]}, chosen in each step (auto)"
    lines = [f"| {name} | {text.replace('|', chr(92) + '|')} |" for name, text in rows.items()]
    head = f"With dppo {__version__}, Dynamic Pruning Policy Optimization (not Divergence PPO):"
    text = ["## How it was trained: dppo", "", head, "", "| | |", "|---|---|", *lines]
    return "\n".join([*text, "", method.describe(optimizer_steps), ""])


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Padded):
    """One generation of a run, once it is drawn. Tensors are the trainer's own, to be looked at only.

    P candidate prompts, Q of them rolled out, N completions of all ranks, of which this rank has the B from
    ``first_row`` on.
    """

    step: int
    """The first optimizer step that trains on it."""
    steps: int
    """How many optimizer steps do; of parts of several generations, how many draws there are."""
    number: int
    """Generations before it."""
    epoch: float | None
    """Epochs of prompts that were candidates so far; None where that is not known."""
    size_Q: Tensor
    """(Q,) completions of each prompt rolled out."""
    candidate_P: Tensor
    """(P,) dataset rows of the candidates, -1 where not known."""
    prob_P: Tensor
    """(P,) probability of being rolled out."""
    keep_P: Tensor
    """(P,) bool, whether it was."""
    row_Q: Tensor
    """(Q,) dataset rows of the prompts rolled out, in the order of completions."""
    reward_N: Tensor
    """(N,) rewards, NaN where there is none."""
    advantage_N: Tensor
    """(N,) advantages: what kept completions are trained with, and those of whole groups for all others."""
    prob_N: Tensor
    """(N,) probability of the prompt times that of the completion; 0 where there is no gradient."""
    weight_N: Tensor
    """(N,) 0 where it is not trained on."""
    why_N: Tensor
    """(N,) integer, a place in ``WHY``."""
    tokens_N: Tensor
    """(N,) completion tokens that carry loss."""
    first_row: int
    """Where this rank's completions begin among all."""
    expected: Candidates | None = None
    """(P,) what history expected of the candidates; None where there is no history."""
    signal_Q: Tensor | None = None
    """(Q,) size of each group's gradient as far as scores tell, in the unit of what was expected; None as above."""
    sampled: SampledTokens | None = None
    """The tokens of all completions as they were sampled; None where no token of a completion is left out."""
    moment_NT: Tensor | None = None
    """(N, T) guess of the second moment of each token's gradient; None as above."""


class Recorder:
    """What ``DPPOTrainer``, and ``StockWatch`` for TRL's own trainer, tell of a run. Here each method does nothing.

    A recorder must not change what is trained, nor draw from a global generator. All ranks call every method together.
    """

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """A context around ``train``, and in it around what is not training: ``evaluate``, ``save``, ``record``."""
        return nullcontext()

    def rolled_out(self, completions: int, tokens: int) -> None:
        """Count completions that this rank has generated for training, and the tokens that the model wrote."""

    def generation(self, generation: Generation) -> None:
        """Look at a generation, after its draws and before it is trained on."""

    def trained(self, tokens: Tensor) -> None:
        """Count () completion tokens that one call of the loss on this rank trains on."""


def generation_of(
    plan: StepPlan, batch: RankBatch, passes: UpdateSchedule, *, step: int, number: int, epoch: float | None, rank: int
) -> Generation:
    """The record of a generation that was just drawn."""
    prompts, completions = plan.prompts, plan.completions
    first = slice(0, passes.shares)  # one pass: each completion is in exactly one share
    weight_N, prob_N = plan.weight_UN[first].sum(0), plan.prob_UN[first].sum(0)
    kept_N, group_N = weight_N > 0, completions.group_N
    return Generation(
        step=step,
        steps=passes.steps,
        number=number,
        epoch=epoch,
        size_Q=group_sizes(group_N),
        candidate_P=prompts.candidates.row_P,
        prob_P=prompts.draw.prob_N,
        keep_P=prompts.draw.keep_N,
        row_Q=prompts.row_Q,
        reward_N=plan.rewards.total_N,
        advantage_N=torch.where(kept_N, plan.advantage_N, completions.advantage_N),
        prob_N=prob_N * prompts.prob_Q[group_N],
        weight_N=weight_N,
        why_N=_why_of(completions, plan.advantage_N, prob_N, kept_N, (prompts.weight_Q > 0)[group_N]),
        tokens_N=completions.tokens_N,
        first_row=rank * len(batch.prompt_ids),
        **{name: getattr(batch, name) for name in PADDED},
        expected=prompts.candidates,
        signal_Q=plan.signal_Q,
        sampled=plan.sampled,
        moment_NT=plan.moment_NT,
    )


def _why_of(
    completions: Completions, trained_advantage_N: Tensor, prob_N: Tensor, kept_N: Tensor, used_N: Tensor
) -> Tensor:
    """(N,) places in ``WHY``."""
    why_N = torch.full_like(kept_N, WHY.index("not drawn"), dtype=torch.int64)
    why_N[prob_N == 0] = WHY.index("left out by the rule")
    why_N[~completions.live_N | (trained_advantage_N == 0)] = WHY.index("zero advantage")
    why_N[completions.tokens_N == 0] = WHY.index("no tokens")
    why_N[~used_N] = WHY.index("not used by the round")
    why_N[kept_N] = WHY.index("kept")
    return why_N
