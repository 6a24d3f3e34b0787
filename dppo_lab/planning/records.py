"""Sizes of a step, ways to take it, and what it then has to do."""

from dataclasses import dataclass, replace
from typing import Literal

from dppo.errors import raise_problems

FLOOR = 0.2
"""Lowest probability of a unit where a run does not say; half of what is kept where that is smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Sizes of an optimizer step.

    Raises:
        ConfigError: a size out of range.
    """

    prompts: int
    """P, candidate prompts whose completions are trained on, >= 1."""
    generations: int
    """G, completions of each, >= 1."""
    passes: int = 1
    """Optimizer steps that train on each completion, >= 1."""
    shares: int = 1
    """Optimizer steps that a generation is dealt out to, >= 1."""
    floor: float = FLOOR
    """``prune_floor``, in (0, 1]."""
    token_power: float = 1.0
    """A completion's squared gradient goes by ``A^2 tokens^power``: 1 where losses of tokens are summed, 0 where they
    are averaged over each completion."""
    scaled: Literal["none", "group"] = "none"
    """Whether advantages are divided by the deviation of their group."""

    def __post_init__(self) -> None:
        wrong = {name: getattr(self, name) for name in ("prompts", "generations", "passes", "shares")}
        problems = [f"{name}={value} must be >= 1. Try {name}=8." for name, value in wrong.items() if value < 1]
        if not 0 < self.floor <= 1:
            problems.append(f"floor={self.floor:g} must be in (0, 1]. Try floor={FLOOR:g}.")
        raise_problems("Step", problems)

    def unscaled(self) -> "Step":
        """The same step with advantages that nothing divides."""
        return replace(self, scaled="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A way to take a step.

    Raises:
        ConfigError: a rate or size out of range.
    """

    name: str
    layout: Literal["padded", "packed", "rows"] = "rows"
    """``padded`` as TRL pads; ``packed`` is rows of which each completion has its own prompt."""
    forwarded: Literal["all", "live"] = "live"
    """Which completions are forwarded: all, or those that can have a gradient."""
    completion_rate: float = 0.0
    """Share of completions with a gradient that is pruned, in [0, 1)."""
    prompt_rate: float = 0.0
    """Share of prompts with a history that is pruned, in [0, 1)."""
    baseline: Literal["group", "history"] = "group"
    """What a completion is compared with: its siblings, or these and what its prompt gave before."""
    group: int | None = None
    """Completions of a prompt where not G; prompts are then as many more as completions stay the same in number."""

    def __post_init__(self) -> None:
        rates = {"completion_rate": self.completion_rate, "prompt_rate": self.prompt_rate}
        problems = [
            f"{name}={rate:g} must be in [0, 1). Try {name}=0.5." for name, rate in rates.items() if not 0 <= rate < 1
        ]
        if self.group is not None and self.group < 1:
            problems.append(f"group={self.group} must be >= 1. Try group=2.")
        raise_problems(f"Option {self.name!r}", problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What an optimizer step does on average, over all processes."""

    prompts: float
    """Rolled out, per step: with several passes over a generation the share of a step."""
    completions: float
    """Rolled out, likewise."""
    generated: float
    """Tokens of those."""
    trained: float
    """Completions forwarded with a gradient."""
    forwarded: float
    """Tokens forwarded with a gradient, prompts and padding included."""
    noise: float
    """Second moment of the gradient over that of all completions against their siblings, > 0; 1 for TRL."""
