"""What a plan is made of and what it says, as records."""

import math
from dataclasses import dataclass

from dppo.errors import raise_problems
from dppo_lab.planning.costs import Costs, Seconds
from dppo_lab.planning.records import Option, Step, Work
from dppo_lab.planning.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What is paid for a run.

    Raises:
        ConfigError: a negative price or power, or no GPU.
    """

    gpus: int
    """GPUs, or processes without one, that the run is on, >= 1."""
    gpu_hour: float | None = None
    """Price of one of them for an hour, any currency, >= 0; None for none known."""
    watts: float | None = None
    """Power of one of them, > 0; None for none known."""

    def __post_init__(self) -> None:
        problems = []
        if self.gpus < 1:
            problems.append(f"gpus={self.gpus} must be >= 1. Try --gpus 8.")
        if self.gpu_hour is not None and not 0 <= self.gpu_hour < math.inf:
            problems.append(f"gpu_hour_price={self.gpu_hour:g} must be >= 0. Try --gpu_hour_price 2.5.")
        if self.watts is not None and not 0 < self.watts < math.inf:
            problems.append(f"watts={self.watts:g} must be > 0. Try --watts 700.")
        raise_problems("dppo plan", problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All that a plan is made of: one world, as it was measured or as a resample has it."""

    workload: Workload
    costs: Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long a run is, in optimizer steps."""

    steps: int
    """>= 1."""
    first_epoch: int
    """Of those, the ones whose prompts have no history: 0 to ``steps``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure with its 95% interval; low, value and high are the same where nothing was sampled."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One option of a plan."""

    option: Option
    work: Work
    seconds: Seconds
    """Of an optimizer step whose prompts have a history."""
    per_step: Interval
    """The same added up, s."""
    speedup: Interval
    """Seconds of a step of TRL over these; at equal steps, and so at other noise."""
    noise: Interval
    """Variance of the gradient over that of TRL's step, at its largest: second moments."""
    hours: Interval
    """Of the run, its first epoch unpruned."""
    equal_hours: Interval
    """The same, times the noise: as many steps as give the noise of TRL's."""
    completions: float
    """Rolled out until the noise is that of TRL's run."""
    tokens: float
    """Generated and forwarded until then."""
    price: float | None
    """Of ``hours``, in the currency of the price of a GPU-hour; None where that is not known."""
    kilowatt_hours: float | None
    """Of ``hours``; None where no power is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Whether a level is worth pruning, and at which rate."""

    level: str
    """``prompts`` or ``completions``."""
    rate: float
    """What is recommended, in [0, 1); 0 leaves the level off."""
    gain: Interval
    """Seconds to equal noise of the step without this pruning over those with it, at the best rate looked at."""
    ceiling: Interval
    """What choosing can save at most (``dppo.pruning.selection_ceiling``)."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run costs under each option, and what is worth pruning."""

    title: str
    source: str
    """Where the figures are from."""
    estimate: bool
    """Whether they were given by hand, and nothing was measured."""
    step: Step
    length: Length
    prices: Prices
    figures: Figures
    rows: tuple[Row, ...]
    update_free: Interval
    """What an unpruned step would gain if its update were free (Amdahl): the most that pruning completions can."""
    rollout_free: Interval
    """The same of its rollouts."""
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]
