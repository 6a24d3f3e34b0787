"""Sizes of a step, ways to take it, the work and the seconds that follow, and the length of a run."""

from dataclasses import dataclass
from typing import Literal

from dppo.errors import ConfigError
from dppo.methods.from_settings import DEFAULT_FLOOR, LEAST

PILOT, FEWEST = 32, 4
"""Prompts of a pilot by default, and the fewest: two steps of two."""


def check_pilot(prompts: int) -> None:
    """Raise a ``ConfigError`` for a number of prompts that does not make two equal steps."""
    if prompts < FEWEST or prompts % 2:
        raise ConfigError(f"--pilot {prompts} must be an even number of prompts >= {FEWEST}. Try --pilot {PILOT}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Sizes of an optimizer step."""

    prompts: int
    """P, candidate prompts whose completions are trained on, >= 1."""
    generations: int
    """G, completions of each, >= 1."""
    passes: int = 1
    """Optimizer steps that train on each completion, >= 1."""
    shares: int = 1
    """Optimizer steps that a generation is dealt out to, >= 1."""
    floor: float = DEFAULT_FLOOR
    """Lowest probability of a prompt, or of a completion of mean score, in (0, 1]; half of what is kept if that is
    smaller."""
    least: float | None = LEAST
    """Lowest probability of a completion of score 0; None with a ``prune_floor``, which then holds for all."""
    every: bool = False
    """True if completions without an advantage have a gradient too, as under a KL term."""
    token_power: float = 1.0
    """A completion's squared gradient goes by ``A^2 tokens^power``: 1 if losses of tokens are summed, 0 if they are
    averaged over each completion."""
    scaled: Literal["none", "group"] = "none"
    """``group`` if advantages are divided by the deviation of their group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A way to take a step."""

    name: str
    layout: Literal["padded", "rows"] = "rows"
    """``padded`` as TRL pads; in ``rows`` the completions of a group share their prompt."""
    forwarded: Literal["all", "live"] = "live"
    """Completions that are forwarded: all, or those that can have a gradient."""
    completion_rate: float = 0.0
    """Share of completions with a gradient that is pruned, in [0, 1)."""
    prompt_rate: float = 0.0
    """Share of prompts with a history that is pruned, in [0, 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Expected work of an optimizer step over all processes."""

    completions: float
    """Completions rolled out; with several passes over a generation, a step's share of them."""
    generated: float
    """Their tokens."""
    forwarded: float
    """Tokens forwarded with a gradient, prompts and padding included."""
    noise: float
    """Second moment of the gradient over that of all completions, > 0; 1 for TRL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds of an optimizer step by phase."""

    rollout: float
    reward: float
    """Rewards, draws and bookkeeping of completions."""
    update: float
    """Log-probabilities, forward and backward."""
    rest: float
    """Optimizer, loading, clipping, logging."""

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return self.rollout + self.reward + self.update + self.rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Length of a run in optimizer steps."""

    steps: int
    """>= 1."""
    first_epoch: int
    """Steps whose prompts have no history yet: 0 to ``steps``."""
