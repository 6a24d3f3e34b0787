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

    layout: str
    """``padded`` for TRL's own trainer, ``rows`` for ours."""
    generated: float
    """Tokens rolled out for the step; 0 for a step on completions that were made before."""
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
    row_token: float
    """Of a token forwarded in rows, forward and backward."""
    padded_token: float
    """Of one forwarded by TRL's own trainer."""
    rest: float
    """Of a step: optimizer, loading, clipping."""
    processes: int = 1

    def seconds(self, work: Work | Timed, layout: str, processes: int) -> Seconds:
        """Seconds of a step by phase, its work spread evenly over ``processes``."""
        share = self.processes / processes
        token = self.padded_token if layout == "padded" else self.row_token
        return Seconds(
            rollout=self.rollout_fixed + share * self.rollout_token * work.generated,
            reward=share * self.completion * work.completions,
            update=self.update_fixed + share * token * work.forwarded,
            rest=self.rest,
        )

    def of_timed(self, step: Timed) -> Seconds:
        """Seconds of a timed step by these costs, on as many processes."""
        found = self.seconds(step, step.layout, self.processes)
        return found if step.generated > 0 else replace(found, rollout=0.0, reward=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Workload and costs, as measured or as in one resample."""

    workload: Workload
    costs: Costs


def seconds_of(figures: Figures, step: Step, option: Option, processes: int) -> Seconds:
    """Seconds of a step by phase."""
    return figures.costs.seconds(work_of(figures.workload, step, option), option.layout, processes)


def gain(figures: Figures, step: Step, option: Option, processes: int, base: Option = UNPRUNED) -> float:
    """Seconds to equal noise of a step under ``base`` over those under an option, >= 0."""

    def to_equal_noise(option: Option) -> float:
        work = work_of(figures.workload, step, option)
        return figures.costs.seconds(work, option.layout, processes).total * work.noise

    return to_equal_noise(base) / to_equal_noise(option)


def interval(values: Sequence[float]) -> Estimate:
    """The first value, and an interval that holds it and 95% of the others."""
    value, others = float(values[0]), values[1:]
    low, high = np.quantile(others, (TAIL, 1 - TAIL)).tolist() if len(others) else (value, value)
    return Estimate(value, min(low, value), max(high, value))


def fitted(timed: Sequence[Timed], processes: int = 1) -> Costs:
    """Costs that fit one step or more best: least squares, none of them negative.

    If steps forward about equally many tokens, all seconds are attributed to tokens. If only one layout was timed, a
    token costs as much in the other. If fewer tokens took longer, a token costs nothing: see ``free_tokens``.
    """
    rows, padded = ([each for each in timed if (each.layout == "padded") == is_padded] for is_padded in (False, True))
    forwarded = any(each.forwarded for each in rows)
    update_fixed, row_token = _fit(rows if forwarded else padded or rows, "forwarded", "update")
    padded_token, tokens = row_token, sum(each.forwarded * each.steps for each in padded)
    if padded:
        spent = sum(max(each.update - update_fixed, 0.0) * each.steps for each in padded)
        padded_token = spent / tokens if tokens else 0.0
    rolled = [each for each in timed if each.generated > 0]
    rollout_fixed, rollout_token = _fit(rolled, "generated", "rollout")
    completion_I, reward_I, rolled_I = _columns(rolled, "completions", "reward", "steps")
    rest_I, weight_I = _columns(rows or padded, "rest", "steps")
    return Costs(
        rollout_fixed=rollout_fixed,
        rollout_token=rollout_token,
        completion=float(rolled_I @ reward_I) / max(float(rolled_I @ completion_I), 1.0),
        update_fixed=update_fixed,
        row_token=row_token,
        padded_token=padded_token,
        rest=float(weight_I @ rest_I) / float(weight_I.sum()),
        processes=processes,
    )


def with_noise(timed: Sequence[Timed], costs: Costs, rng: np.random.Generator) -> list[Timed]:
    """The steps as the fitted ``costs`` have them, each with the noise of a random step of its layout.

    Noise is widened for the parameters of the fit and for few steps. Source: the bootstrap of residuals, Efron &
    Tibshirani (1993), An Introduction to the Bootstrap, section 9.4.
    """
    fits, found = [costs.of_timed(each) for each in timed], list[Timed]()
    alike = {layout: [k for k, each in enumerate(timed) if each.layout == layout] for layout in ("padded", "rows")}
    for each, fit in zip(timed, fits, strict=True):
        same = alike[each.layout]
        drawn, noisy = same[rng.integers(len(same))], dict[str, float]()
        for name in PHASES:
            line = each.layout != "padded" and name in ("rollout", "update")  # of all else a mean is taken
            noise = getattr(timed[drawn], name) - getattr(fits[drawn], name)
            noisy[name] = max(getattr(fit, name) + _widened(len(same), 2 if line else 1) * noise, 0.0)
        found.append(replace(each, **noisy))
    return found


@cache
def _widened(steps: int, fitted: int) -> float:
    """Factor of the noise for fitted parameters and few steps: Student's t over the normal at 97.5%."""
    free = max(steps - fitted, 0)
    return math.sqrt(steps / free) * float(stats.t.ppf(0.975, free) / stats.norm.ppf(0.975)) if free else 0.0


def free_tokens(timed: Sequence[Timed], costs: Costs) -> tuple[str, ...]:
    """A warning for each phase of the fitted steps whose tokens came out free, which may be noise."""
    prices = ((costs.rollout_token, "generated", "rollout"), (costs.row_token, "forwarded", "update"))
    free = [_measured(timed, amount, phase) for price, amount, phase in prices if price == 0]
    if len(free) == len(prices):
        raise ConfigError(f"the timings are too noisy to tell what a token costs: {'; '.join(free)}. {TOO_NOISY}")
    return tuple(f"A token is taken to cost no seconds here: {each}. {TOO_NOISY}" for each in free)


def _measured(timed: Sequence[Timed], amount: str, phase: str) -> str:
    """Seconds of a phase in which fewer tokens did not take less."""
    pairs = sorted((getattr(each, amount), getattr(each, phase)) for each in timed if getattr(each, amount) > 0)
    if not pairs:
        return f"no step has {amount} tokens"
    (few, one), (many, other) = pairs[0], pairs[-1]
    return f"in {len(pairs)} steps, {phase} took {one:.3g} s for {few:,.0f} tokens and {other:.3g} s for {many:,.0f}"


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
