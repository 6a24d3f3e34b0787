"""What a plan is computed from, and the seconds and the gain that follow for one option."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dppo.pruning.ceiling import TAIL
from dppo_lab.planning.costs import Costs
from dppo_lab.planning.records import Option, Seconds, Step, Work
from dppo_lab.planning.tokens import TokenSample
from dppo_lab.planning.work import work_of
from dppo_lab.planning.workload import Workload
from dppo_lab.statistics import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a plan is computed from, as measured or as in one resample."""

    workload: Workload
    costs: Costs
    tokens: TokenSample | None = None
    """Completions token by token; None where the sampler's log-probabilities are not known."""

    def work(self, step: Step, option: Option) -> Work:
        """What a step does under an option."""
        return work_of(self.workload, step, option, self.tokens)


def seconds_of(figures: Figures, step: Step, option: Option, gpus: int) -> Seconds:
    """Seconds of a step by phase."""
    return figures.costs.seconds(figures.work(step, option), option, gpus)


def gain(figures: Figures, step: Step, option: Option, gpus: int, base: Option | None = None) -> float:
    """Seconds to equal noise of a step without pruning, or of ``base``, over those under an option, >= 0."""
    none = replace(option, completion_rate=0.0, prompt_rate=0.0, token_rate=0.0, head_rate=0.0)

    def to_equal_noise(option: Option) -> float:
        work = figures.work(step, option)
        return figures.costs.seconds(work, option, gpus).total * work.noise

    return to_equal_noise(base or none) / to_equal_noise(option)


def interval(values: Sequence[float]) -> Estimate:
    """The first value, and an interval that holds it and 95% of the others."""
    value, others = float(values[0]), values[1:]
    low, high = np.quantile(others, (TAIL, 1 - TAIL)).tolist() if len(others) else (value, value)
    return Estimate(value, min(low, value), max(high, value))
