"""The schedule of a run's calls of the loss between two generations, and the draws of prompts that it allows."""

import math
from dataclasses import dataclass
from typing import Any

from trl.trainer.grpo_config import GRPOConfig

from dppo.errors import raise_problems
from dppo.step import UpdateSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulationSchedule:
    """The calls of the loss from one generation to the next."""

    passes: UpdateSchedule
    calls: int
    """Calls of the loss in one share of a generation, >= 1: all of them are of one optimizer step."""
    together: int = 1
    """Shares in an optimizer step, >= 1; if more than one, they are of several generations."""

    @classmethod
    def of_arguments(cls, args: GRPOConfig, steps: int | None = None) -> "AccumulationSchedule":
        """The schedule of a run; ``steps`` are calls in one pass, by default ``steps_per_generation``.

        If ``gradient_accumulation_steps`` and the calls of a generation do not divide one another, an optimizer step
        takes shares of two generations. Each share has its own draw.
        """
        steps = steps or args.steps_per_generation or 1
        calls = math.gcd(steps, args.gradient_accumulation_steps)
        passes = UpdateSchedule(passes=args.num_iterations, shares=steps // calls)
        return cls(passes=passes, calls=calls, together=args.gradient_accumulation_steps // calls)

    @property
    def length(self) -> int:
        """Calls of the loss between two generations."""
        return self.passes.steps * self.calls

    def locate(self, phase: int) -> tuple[int, int]:
        """Draw that call number ``phase`` of a generation trains on, and the call's number within it."""
        return divmod(phase, self.calls)

    def prompt_parts(self, prompts: int, generations: int, processes: int) -> tuple[int, int]:
        """Draws of a block of prompts, and the multiple of prompts in each that all processes can share equally."""
        multiple = processes // math.gcd(generations, processes)
        return self.passes.parts(prompts, multiple), multiple


def generation_sizes(args: Any, processes: int) -> tuple[int, AccumulationSchedule]:
    """Completions of a generation and its schedule; ``ConfigError`` if the processes cannot share it equally."""
    per_call = args.per_device_train_batch_size * processes
    steps = args.steps_per_generation or 1
    if args.generation_batch_given:
        completions = args.generation_batch_size or per_call
        steps, rest = divmod(completions, per_call)
        problem = (
            f"generation_batch_size={completions} is not a multiple of the {per_call} completions that {processes} "
            f"processes hold at once. Try generation_batch_size: {per_call * (steps or 1)}."
        )
        raise_problems("DPPOConfig", [problem] if rest or not steps else [])
    return per_call * steps, AccumulationSchedule.of_arguments(args, steps)


def steps_of_prompts(args: Any, processes: int) -> int:
    """Optimizer steps that one draw of prompts is trained in, by a run's arguments."""
    (completions, schedule), group = generation_sizes(args, processes), args.num_generations or 1
    parts, _ = schedule.prompt_parts(completions // group, group, processes)
    return schedule.passes.steps // parts
