"""Seconds by phase, fitted to steps that were timed, and the gain of an option at those costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np
from scipy import stats
from scipy.optimize import nnls

from dppo.errors import ConfigError
from dppo.lab.planning.records import Option, Seconds, Step, Work
from dppo.lab.planning.work import UNPRUNED, work_of
from dppo.lab.planning.workload import Workload
from dppo.lab.statistics import Estimate
from dppo.pruning.ceiling import TAIL

ALIKE = 0.05
"""Relative spread of tokens below which steps are too alike to tell fixed seconds from those of tokens."""
PHASES = tuple(field.name for field in fields(Seconds))
TOO_NOISY = "Time larger steps, on a machine that does nothing else: --pilot 64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed(Seconds):
    """An optimizer step that was timed, or the mean of several; work and seconds of all processes."""

    generated: float
    """Tokens rolled out for the step."""
    completions: float
    """Completions rolled out."""
    forwarded: float
    """Tokens forwarded with a gradient, prompts and padding included."""
    steps: float = 1.0
    """Optimizer steps that this is the mean of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds on ``processes`` processes, none below 0."""

    rollout_fixed: float = 0.0
    """Of a step's rollouts, at any number of tokens."""
    rollout_token: float
    """Of a generated token."""
    completion: float = 0.0
    """Of a completion: reward, draw, bookkeeping."""
    update_fixed: float = 0.0
    """Of a step's forward and backward passes, at any number of tokens."""
    token: float
    """Of a forwarded token, forward and backward; in rows or padded."""
    rest: float
    """Of a step: optimizer, loading, clipping."""
    processes: int = 1

    def seconds(self, work: Work | Timed, processes: int) -> Seconds:
        """Seconds of a step by phase, its work spread evenly over ``processes``."""
        share = self.processes / processes
        return Seconds(
            rollout=self.rollout_fixed + share * self.rollout_token * work.generated,
            reward=share * self.completion * work.completions,
            update=self.update_fixed + share * self.token * work.forwarded,
            rest=self.rest,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Workload and costs, as measured or as in one resample."""

    workload: Workload
    costs: Costs


def gain(figures: Figures, step: Step, option: Option, processes: int) -> float:
    """Seconds to equal noise of an unpruned step over those under an option, >= 0."""
    unpruned, work = (work_of(figures.workload, step, each) for each in (UNPRUNED, option))
    seconds = figures.costs.seconds(work, processes).total
    return figures.costs.seconds(unpruned, processes).total * unpruned.noise / (seconds * work.noise)


def interval(values: Sequence[float]) -> Estimate:
    """The first value, and an interval that holds it and 95% of the others."""
    value, others = float(values[0]), values[1:]
    low, high = np.quantile(others, (TAIL, 1 - TAIL)).tolist() if len(others) else (value, value)
    return Estimate(value, min(low, value), max(high, value))


def fitted(timed: Sequence[Timed], processes: int = 1) -> Costs:
    """Costs that fit one step or more best: least squares, none of them negative.

    If steps forward about equally many tokens, all seconds are attributed to tokens. If fewer tokens took longer, a
    token costs nothing: see ``free_tokens``.
    """
    rollout_fixed, rollout_token = _fit(timed, "generated", "rollout")
    update_fixed, token = _fit(timed, "forwarded", "update")
    completion_I, reward_I, rest_I, steps_I = _columns(timed, "completions", "reward", "rest", "steps")
    return Costs(
        rollout_fixed=rollout_fixed,
        rollout_token=rollout_token,
        completion=float(steps_I @ reward_I) / max(float(steps_I @ completion_I), 1.0),
        update_fixed=update_fixed,
        token=token,
        rest=float(steps_I @ rest_I) / float(steps_I.sum()),
        processes=processes,
    )


def with_noise(timed: Sequence[Timed], costs: Costs, rng: np.random.Generator) -> list[Timed]:
    """The steps as the fitted ``costs`` have them, each with the noise of a random step.

    Noise is widened for the parameters of the fit and for few steps. Source: the bootstrap of residuals, Efron &
    Tibshirani (1993), An Introduction to the Bootstrap, section 9.4.
    """
    fits, found = [costs.seconds(each, costs.processes) for each in timed], list[Timed]()
    for each, fit, drawn in zip(timed, fits, rng.integers(len(timed), size=len(timed)), strict=True):
        noisy = dict[str, float]()
        for name in PHASES:
            noise = getattr(timed[drawn], name) - getattr(fits[drawn], name)
            fitted = 2 if name in ("rollout", "update") else 1  # a line; of all else a mean is taken
            noisy[name] = max(getattr(fit, name) + _widened(len(timed), fitted) * noise, 0.0)
        found.append(replace(each, **noisy))
    return found


@cache
def _widened(steps: int, fitted: int) -> float:
    """Factor of the noise for fitted parameters and few steps: Student's t over the normal at 97.5%."""
    free = max(steps - fitted, 0)
    return math.sqrt(steps / free) * float(stats.t.ppf(0.975, free) / stats.norm.ppf(0.975)) if free else 0.0


def free_tokens(timed: Sequence[Timed], costs: Costs) -> tuple[str, ...]:
    """A warning for each phase of the fitted steps whose tokens came out free, which may be noise."""
    free = []
    for phase, price, amount in (("rollout", costs.rollout_token, "generated"), ("update", costs.token, "forwarded")):
        if price == 0:
            pairs = sorted((getattr(each, amount), getattr(each, phase)) for each in timed)
            ends = (f"{seconds:.3g} s for {tokens:,.0f} tokens" for tokens, seconds in (pairs[0], pairs[-1]))
            free.append(f"{phase} took {', '.join(ends)}")
    if len(free) == 2:
        raise ConfigError(f"the timings are too noisy to tell what a token costs: {'; '.join(free)}. {TOO_NOISY}")
    return tuple(f"A token is taken to cost no seconds here: {each}. {TOO_NOISY}" for each in free)


def _columns(timed: Sequence[Timed], *names: str) -> np.ndarray:
    """(K, I) fields of the steps."""
    return np.array([[getattr(each, name) for each in timed] for name in names], dtype=float)


def _fit(timed: Sequence[Timed], amount: str, phase: str) -> tuple[float, float]:
    """Fixed seconds and seconds of a token, both >= 0, that fit a phase best; 0 of no steps."""
    amount_I, seconds_I, weight_I = _columns(timed, amount, phase, "steps")
    if not amount_I.sum():
        return 0.0, 0.0
    if amount_I.std() < ALIKE * amount_I.mean():
        return 0.0, float((weight_I @ seconds_I) / (weight_I @ amount_I))
    root_I, largest = np.sqrt(weight_I), amount_I.max()
    found, _ = nnls(np.stack([root_I, root_I * amount_I / largest], axis=1), root_I * seconds_I)
    return float(found[0]), float(found[1] / largest)
