"""Sizes of a step, ways to take it, what it then has to do and how long that takes; the length and price of a run."""

import math
from dataclasses import dataclass
from typing import Literal

from dppo.errors import ConfigError, raise_problems
from dppo.methods.from_settings import DEFAULT_FLOOR, LEAST
from dppo.pruning.tokens import FLOOR

PILOT, FEWEST = 32, 4
"""Prompts of a pilot where none are asked for, and the fewest: two steps of two."""


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
    """Lowest probability of a prompt, or of a completion of mean score, in (0, 1]; half of what is kept where that is
    smaller."""
    least: float | None = LEAST
    """That of a completion of score 0; None where ``prune_floor`` is given, which is then that of all."""
    token_floor: float = FLOOR
    """Lowest probability that a cut leaves a token."""
    every: bool = False
    """Whether completions without an advantage have a gradient too, as under a KL term."""
    token_power: float = 1.0
    """A completion's squared gradient goes by ``A^2 tokens^power``: 1 where losses of tokens are summed, 0 where they
    are averaged over each completion."""
    scaled: Literal["none", "group"] = "none"
    """Whether advantages are divided by the deviation of their group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A way to take a step."""

    name: str
    layout: Literal["padded", "packed", "rows"] = "rows"
    """``padded`` as TRL pads; in ``packed`` rows each completion has its own copy of the prompt."""
    forwarded: Literal["all", "live"] = "live"
    """Which completions are forwarded: all, or those that can have a gradient."""
    completion_rate: float = 0.0
    """Share of completions with a gradient that is pruned, in [0, 1)."""
    prompt_rate: float = 0.0
    """Share of prompts with a history that is pruned, in [0, 1)."""
    token_rate: float = 0.0
    """Share of the tokens of completions with a gradient that lies behind a cut, in [0, 1)."""
    head_rate: float = 0.0
    """Share of the tokens before the cut that does not reach the head, in [0, 1)."""
    baseline: Literal["group", "history"] = "group"
    """What a completion is compared with: its siblings, or these and what its prompt gave before."""
    group: int | None = None
    """Completions of a prompt where not G, >= 1. There are then more prompts, so that completions stay as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is left of completions with a gradient where some, or some of their tokens, are left out."""

    forwarded: float = 1.0
    """Share of their tokens that goes through the body of the model, in (0, 1]."""
    reached: float = 1.0
    """Share of them that is forwarded at all, in (0, 1]."""
    scored: float = 1.0
    """Share of their tokens that reaches the head, in (0, 1]."""
    noise: float = 1.0
    """Second moment of the gradient over that with all of them, >= 1."""

    def then(self, more: "Kept") -> "Kept":
        """What is left where ``more`` follows."""
        return Kept(
            forwarded=self.forwarded * more.forwarded,
            reached=self.reached * more.reached,
            scored=self.scored * more.scored,
            noise=self.noise * more.noise,
        )


EVERYTHING = Kept()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What an optimizer step does on average, over all processes."""

    prompts: float
    """Rolled out per step; with several passes over a generation, a step's share of them."""
    completions: float
    """Rolled out, counted the same way."""
    generated: float
    """Tokens of those."""
    trained: float
    """Completions forwarded with a gradient."""
    forwarded: float
    """Tokens forwarded with a gradient, prompts and padding included."""
    scored: float
    """Completion tokens that reach the head with a gradient."""
    noise: float
    """Second moment of the gradient over that of all completions against their siblings, > 0; 1 for TRL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds of an optimizer step by phase."""

    rollout: float
    reward: float
    """Rewards, draws and bookkeeping of completions."""
    update: float
    """Log-probabilities, forward and backward."""
    rest: float
    """Everything else: optimizer, loading, clipping, logging."""

    @property
    def total(self) -> float:
        """Of the whole step."""
        return self.rollout + self.reward + self.update + self.rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long a run is, in optimizer steps."""

    steps: int
    """>= 1."""
    first_epoch: int
    """Steps whose prompts have no history yet: 0 to ``steps``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What is paid for a run."""

    gpus: int
    """GPUs, or processes without one, that the run is on, >= 1."""
    gpu_hour: float | None = None
    """Price of one of them for an hour, any currency, >= 0; None where it is not known."""
    watts: float | None = None
    """Power of one of them, > 0; None where it is not known."""

    def __post_init__(self) -> None:
        problems = []
        if self.gpus < 1:
            problems.append(f"gpus={self.gpus} must be >= 1. Try --gpus 8.")
        if self.gpu_hour is not None and not 0 <= self.gpu_hour < math.inf:
            problems.append(f"gpu_hour_price={self.gpu_hour:g} must be >= 0. Try --gpu_hour_price 2.5.")
        if self.watts is not None and not 0 < self.watts < math.inf:
            problems.append(f"watts={self.watts:g} must be > 0. Try --watts 700.")
        raise_problems("dppo plan", problems)
