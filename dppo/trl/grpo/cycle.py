"""How TRL's calls of the loss fall into generations, optimizer steps and passes."""

from dataclasses import dataclass

from trl.trainer.grpo_config import GRPOConfig

from dppo.step import Passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """The calls of the loss from one generation to the next."""

    passes: Passes
    calls: int
    """Calls of the loss that make up one optimizer step's share of a generation, >= 1."""

    @classmethod
    def of(cls, *, steps_per_generation: int, accumulation: int, iterations: int) -> "Cycle":
        """That of TRL's ``steps_per_generation``, ``gradient_accumulation_steps`` and ``num_iterations``."""
        shares = max(1, steps_per_generation // accumulation)
        return cls(passes=Passes(passes=iterations, shares=shares), calls=steps_per_generation // shares)

    @classmethod
    def of_arguments(cls, args: GRPOConfig) -> "Cycle":
        """That of a run's arguments."""
        return cls.of(
            steps_per_generation=args.steps_per_generation or 1,
            accumulation=args.gradient_accumulation_steps,
            iterations=args.num_iterations,
        )

    @property
    def length(self) -> int:
        """Calls of the whole cycle: TRL generates again after as many."""
        return self.passes.steps * self.calls

    def locate(self, phase: int) -> tuple[int, int]:
        """``(draw, call)`` of the cycle's call number ``phase``: which draw it trains on, which part of it."""
        return divmod(phase, self.calls)
