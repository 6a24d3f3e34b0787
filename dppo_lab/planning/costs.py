"""What work costs: seconds by phase, fitted to steps that were timed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np
from scipy import stats
from scipy.optimize import nnls

from dppo.errors import ConfigError
from dppo_lab.planning.records import Option, Seconds, Work

ALIKE = 0.05
"""Relative spread of tokens below which steps are too alike to tell fixed seconds from those of tokens."""
SAMPLED = 0.5
"""The head's cost is told apart where, of each forwarded token, some step sends it at most this share of the most."""
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
    scored: float = 0.0
    """Completion tokens that reach the head with a gradient; 0 where that is not known."""
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
    """Of a token forwarded in rows, forward and backward; without the head where ``head_token`` is known."""
    padded_token: float
    """Of one forwarded by TRL's own trainer."""
    rest: float
    """Of a step: optimizer, loading, clipping."""
    processes: int = 1
    head_token: float | None = None
    """Of a token that reaches the head, beside ``row_token``; None where it was not told apart."""

    def seconds(self, work: Work, option: Option, processes: int) -> Seconds:
        """Of a step by phase, its work being spread evenly over ``processes``."""
        return self._of(work, option.layout, self.processes / processes)

    def of_timed(self, step: Timed) -> Seconds:
        """What a step that was timed would have taken by these costs, on as many processes."""
        found = self._of(step, step.layout, 1.0)
        return found if step.generated > 0 else replace(found, rollout=0.0, reward=0.0)

    def _of(self, work: Work | Timed, layout: str, share: float) -> Seconds:
        padded = layout == "padded"
        token, head = (self.padded_token, 0.0) if padded else (self.row_token, self.head_token or 0.0)
        return Seconds(
            rollout=self.rollout_fixed + share * self.rollout_token * work.generated,
            reward=share * self.completion * work.completions,
            update=self.update_fixed + share * (token * work.forwarded + head * work.scored),
            rest=self.rest,
        )


def fitted(timed: Sequence[Timed], processes: int = 1) -> Costs:
    """Costs that fit one step or more best: least squares, none of them negative.

    If steps forward about equally many tokens, all seconds are attributed to tokens. If only one layout was timed, or
    rows had nothing to forward, a token of one layout costs as much as one of the other. If fewer tokens took longer, a
    token costs nothing: ``free_tokens`` says whether such timings can be used.
    """
    rows, padded = ([each for each in timed if (each.layout == "padded") == is_padded] for is_padded in (False, True))
    sampled = head_is_told_apart(rows)
    forwarded = any(each.forwarded for each in rows)
    updates = [_fit(rows if forwarded else padded or rows, ("forwarded",), "update")]
    if sampled:  # the lowest of fits that leave one step out: few steps must not make the head dearer than it is
        parts = [[*rows[:place], *rows[place + 1 :]] for place in range(len(rows))]
        parts = [part for part in parts if head_is_told_apart(part)] or [rows]
        updates = [_fit(part, ("forwarded", "scored"), "update") for part in parts]
    update_fixed, row_token, *head = min(updates, key=lambda found: found[-1])
    padded_token, tokens = row_token, sum(each.forwarded * each.steps for each in padded)
    if padded:
        spent = sum(max(each.update - update_fixed, 0.0) * each.steps for each in padded)
        padded_token = spent / tokens if tokens else 0.0
    rolled = [each for each in timed if each.generated > 0]
    rollout_fixed, rollout_token = _fit(rolled, ("generated",), "rollout")
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
        head_token=head[0] if head else None,
    )


def with_noise(timed: Sequence[Timed], costs: Costs, rng: np.random.Generator) -> list[Timed]:
    """The steps as ``costs``, which were fitted to them, have them, each with the noise of a step drawn at random.

    A step's noise is what its phases took beyond their fit, drawn among the steps of its layout, and widened for what
    the fit has taken of it and for how few steps there are. Source: the bootstrap of residuals, Efron & Tibshirani
    (1993), An Introduction to the Bootstrap, section 9.4.
    """
    rows, found = [each for each in timed if each.layout != "padded"], list[Timed]()
    head = costs.head_token is not None
    if head:  # around the fit of all steps, and not around the lowest of those that leave one out
        update_fixed, row_token, head_token = _fit(rows, ("forwarded", "scored"), "update")
        costs = replace(costs, update_fixed=update_fixed, row_token=row_token, head_token=head_token)
    fitted_to_rows = {"rollout": 2, "update": 2 + head}  # of all else a mean is taken
    for each in timed:
        alike = [other for other in timed if other.layout == each.layout]
        drawn = alike[rng.integers(len(alike))]
        fit, before, noisy = costs.of_timed(each), costs.of_timed(drawn), dict[str, float]()
        for name in PHASES:
            scale = _widened(len(alike), 1 if each.layout == "padded" else fitted_to_rows.get(name, 1))
            noisy[name] = max(getattr(fit, name) + scale * (getattr(drawn, name) - getattr(before, name)), 0.0)
        found.append(replace(each, **noisy))
    return found


@cache
def _widened(steps: int, fitted: int) -> float:
    """What the noise of so many steps is multiplied by, for what a fit has taken of it and for how few they are.

    The second as in ``statistics.expanded_tail``: Student's t over the normal at 97.5%.
    """
    free = max(steps - fitted, 0)
    return math.sqrt(steps / free) * float(stats.t.ppf(0.975, free) / stats.norm.ppf(0.975)) if free else 0.0


def head_is_told_apart(rows: Sequence[Timed]) -> bool:
    """Whether steps sent such different shares of their tokens to the head that its cost is known from theirs."""
    share = [each.scored / each.forwarded for each in rows if each.forwarded > 0]
    return len(share) > 2 and max(share) > 0 and sum(value <= SAMPLED * max(share) for value in share) > 1


def free_tokens(timed: Sequence[Timed], costs: Costs) -> tuple[str, ...]:
    """A warning for each phase of the fitted steps whose tokens came out free, which may be noise."""
    prices = ((costs.rollout_token, "generated", "rollout"), (costs.row_token, "forwarded", "update"))
    free = [_measured(timed, amount, phase) for price, amount, phase in prices if price == 0]
    if len(free) == len(prices):
        raise ConfigError(f"the timings are too noisy to tell what a token costs: {'; '.join(free)}. {TOO_NOISY}")
    return tuple(f"A token is taken to cost no seconds here: {each}. {TOO_NOISY}" for each in free)


def _measured(timed: Sequence[Timed], amount: str, phase: str) -> str:
    """What was measured of a phase in which fewer tokens did not take less."""
    pairs = sorted((getattr(each, amount), getattr(each, phase)) for each in timed if getattr(each, amount) > 0)
    if not pairs:
        return f"no step has {amount} tokens"
    (few, one), (many, other) = pairs[0], pairs[-1]
    return f"in {len(pairs)} steps, {phase} took {one:.3g} s for {few:,.0f} tokens and {other:.3g} s for {many:,.0f}"


def _columns(timed: Sequence[Timed], *names: str) -> np.ndarray:
    """(K, I) so many fields of the steps."""
    return np.array([[getattr(each, name) for each in timed] for name in names], dtype=float)


def _fit(timed: Sequence[Timed], amounts: Sequence[str], phase: str) -> tuple[float, ...]:
    """``fixed`` and one price >= 0 for each amount that fit the seconds of a phase best; 0 of no steps."""
    *amount_KI, seconds_I, weight_I = _columns(timed, *amounts, phase, "steps")
    first_I, amount_IK = amount_KI[0], np.stack(amount_KI, axis=1)
    if not len(first_I) or not first_I.sum():
        return 0.0, *(0.0 for _ in amounts)
    if len(amounts) == 1 and first_I.std() < ALIKE * first_I.mean():
        return 0.0, float((weight_I @ seconds_I) / (weight_I @ first_I))
    root_I1, largest_K = np.sqrt(weight_I)[:, None], amount_IK.max(0)
    found, _ = nnls(np.hstack([root_I1, root_I1 * amount_IK / largest_K]), root_I1[:, 0] * seconds_I)
    return float(found[0]), *(found[1:] / largest_K).tolist()
