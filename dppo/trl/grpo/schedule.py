"""The schedule of a run's calls of the loss between two generations, and the draws of prompts that it allows."""

import math
from dataclasses import dataclass
from typing import Any

from dppo.errors import raise_problems
from dppo.step import UpdateSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulationSchedule:
    """The calls of the loss from one generation to the next."""

    passes: UpdateSchedule
    calls: int
    """Calls of the loss in one share of a generation, >= 1: all of them are of one optimizer step."""
    together: int
    """Shares in an optimizer step, >= 1; if more than one, they are of several generations."""
    completions: int
    """Completions of a generation on all processes."""
    prompts: int
    """Prompts of a generation, those not rolled out included."""
    multiple: int
    """Prompts of a draw are a multiple of it: all processes can share them equally."""

    @classmethod
    def of_arguments(cls, args: Any, processes: int) -> "AccumulationSchedule":
        """The schedule of a run; ``ConfigError`` if the processes cannot share a generation equally.

        If ``gradient_accumulation_steps`` and the calls of a generation do not divide one another, an optimizer step
        takes shares of two generations. Each share has its own draw.
        """
        per_call, group = args.per_device_train_batch_size * processes, args.num_generations or 1
        steps = args.steps_per_generation or 1
        if args.generation_batch_given:
            completions = args.generation_batch_size or per_call
            steps, rest = divmod(completions, per_call)
            problem = (
                f"generation_batch_size={completions} is not a multiple of the {per_call} completions that {processes} "
                f"processes hold at once. Try generation_batch_size: {per_call * (steps or 1)}."
            )
            raise_problems("DPPOConfig", [problem] if rest or not steps else [])
        calls = math.gcd(steps, args.gradient_accumulation_steps)
        return cls(
            passes=UpdateSchedule(passes=args.num_iterations, shares=steps // calls),
            calls=calls,
            together=args.gradient_accumulation_steps // calls,
            completions=per_call * steps,
            prompts=per_call * steps // group,
            multiple=processes // math.gcd(group, processes),
        )

    @property
    def length(self) -> int:
        """Calls of the loss between two generations."""
        return self.passes.steps * self.calls

    @property
    def parts(self) -> int:
        """Draws of the prompts of a generation."""
        return self.passes.parts(self.prompts, self.multiple)

    @property
    def steps_of_prompts(self) -> int:
        """Optimizer steps that one draw of prompts is trained in."""
        return self.passes.steps // self.parts

    def locate(self, call: int) -> tuple[int, int]:
        """Draw that call number ``call`` of a run trains on, and the call's number within it."""
        return divmod(call % self.length, self.calls)
