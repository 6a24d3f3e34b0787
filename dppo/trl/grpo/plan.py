"""What a run does and says of itself: the cycle of its calls, the plan of a step, its card, what pruning can save."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trl.trainer.grpo_config import GRPOConfig

from dppo import __version__
from dppo.errors import raise_problems
from dppo.methods import Method, in_words
from dppo.pruning import COMPLETION_AUTO, PROMPT_AUTO, Choice, Evidence, PromptPruning, Pruning, ceiling_of, constant
from dppo.step import Passes, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """The calls of the loss from one generation to the next."""

    passes: Passes
    calls: int
    """Calls of the loss that make up one share of a generation, >= 1: those that are always of one optimizer step."""

    @classmethod
    def of_arguments(cls, args: GRPOConfig, steps: int | None = None) -> "Cycle":
        """That of a run's arguments; ``steps`` are those of a generation, where ``steps_per_generation`` is another.

        Where they and ``gradient_accumulation_steps`` do not divide one another, an optimizer step takes shares of two
        generations, and each has its own draw.
        """
        steps = steps or args.steps_per_generation or 1
        calls = math.gcd(steps, args.gradient_accumulation_steps)
        return cls(passes=Passes(passes=args.num_iterations, shares=steps // calls), calls=calls)

    @property
    def length(self) -> int:
        """Calls of the whole cycle: TRL generates again after as many."""
        return self.passes.steps * self.calls

    def locate(self, phase: int) -> tuple[int, int]:
        """``(draw, call)`` of the cycle's call number ``phase``: which draw it trains on, which part of it."""
        return divmod(phase, self.calls)


def step_plan(args: Any, method: Method, *, prompts_in_dataset: int | None, processes: int | None = None) -> list[str]:
    """Lines that say what a generation rolls out, what is trained on, and what is biased about it."""
    completions, cycle = generation_sizes(args, processes or args.world_size)
    block = completions // (args.num_generations or 1)
    kept = max(1, round(block * (1 - method.prompts.rate)))
    reasons = method.biases(cycle.passes.steps)
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


def _optimizer_lines(cycle: Cycle, accumulated: int) -> list[str]:
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


def generation_sizes(args: Any, processes: int) -> tuple[int, Cycle]:
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
    return per_call * steps, Cycle.of_arguments(args, steps)


def card_section(method: Method, optimizer_steps: int) -> str:
    """Method, rates, biases and paper as Markdown, to stand below what TRL writes."""
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


class CeilingLines:
    """One line per level as soon as there is enough to go by, and one more where ``auto`` begins to prune later."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._said: dict[str, bool] = {}
        """By level, once it has a line: whether no other will follow."""

    def tell(self, method: Method, plan: StepPlan, visits: Evidence | None) -> None:
        """Look at a generation that was planned."""
        prompts, completions, found = method.prompts, method.completions, plan.completions
        rounds = method.rounds is not None
        if visits is not None and not rounds and len(visits) >= (prompts.auto or PROMPT_AUTO).fewest:
            dropped = plan.figures["prune/prompt_rate"]
            self._level("prompt", prompts, visits, lambda: prompts.choice(visits), dropped, "")
        if not isinstance(completions, Pruning) or plan.evidence is None:
            return
        evidence, completions = plan.evidence, completions.informed(found)
        if len(evidence) >= (completions.auto or COMPLETION_AUTO).fewest:
            live = int(found.live_N.sum())
            beside = f" of the update, beside the {1 - live / len(found.live_N):.0%} without a gradient,"
            dropped = plan.draw_figures[0]["prune/completion_rate"]
            self._level("completion", completions, evidence, lambda: completions.choice(evidence), dropped, beside)

    def _level(
        self,
        what: str,
        level: Pruning | PromptPruning,
        evidence: Evidence,
        choice: Callable[[], Choice],
        dropped: float,
        beside: str,
    ) -> None:
        """Say something the first time, and again where a level that was left off begins to drop."""
        if what in self._said and (self._said[what] or not dropped):
            return
        chosen = None if level.auto is None else choice()
        if what in self._said and not (chosen and chosen.rate):
            return  # what it had begun to drop by, it would not choose any more
        self._said[what] = chosen is None or chosen.rate > 0
        ceiling = ceiling_of(evidence)
        verdict = chosen.why if chosen else f"the rate is {level.rate:g}" if level.rate else "left off"
        if not chosen and level.rate and ceiling.value < PROMPT_AUTO.least_gain:
            verdict += f". It costs variance and saves next to nothing: turn it off, {what}_prune_rate: 0"
        self._say(f"dppo | {what} pruning can save at most {ceiling}{beside} here: {verdict}")
