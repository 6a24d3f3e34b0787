"""Rounds of rollouts: prompts are rolled out until enough groups can be learned from. Biased by design."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor

from dppo.errors import RoundsError, raise_problems
from dppo.pruning.exploration import Skipping
from dppo.pruning.groups import Counts

RoundSize = Callable[["Collected", int], "Request"]
"""``size(collected, default) -> Request``: the next round, from what there is and the usual prompts of a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What the rounds of one step have given so far, all counted in groups."""

    wanted: int
    """Groups that fill the step, >= 1."""
    counted: int = 0
    """Groups so far that count."""
    rounds: int = 0
    rolled_out: int = 0
    """Groups rolled out in all rounds."""
    last_rolled_out: int = 0
    """Groups of the round before."""
    last_counted: int = 0
    """Groups of the round before that count."""

    @property
    def missing(self) -> int:
        """Groups that the step still lacks, >= 0."""
        return max(self.wanted - self.counted, 0)

    def after(self, counts_P: Tensor) -> "Collected":
        """The same after one more round.

        Args:
            counts_P: (P,) bool, which of its groups count.
        """
        groups, counted = len(counts_P), int(counts_P.sum())
        return Collected(
            wanted=self.wanted,
            counted=self.counted + counted,
            rounds=self.rounds + 1,
            rolled_out=self.rolled_out + groups,
            last_rolled_out=groups,
            last_counted=counted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A round to be rolled out."""

    prompts: int
    """How many, >= 1."""
    last: bool = False
    """True where the step is made of what there is after this round, be it too little."""


def fixed(collected: Collected, default: int) -> Request:
    """As many prompts in every round.

    Args:
        collected: not used.
        default: prompts of a round, >= 1.

    Source: DAPO, arXiv:2503.14476, section 3.2.
    """
    return Request(prompts=default)


def adaptive(
    collected: Collected, default: int, *, margin: Fraction = Fraction(5, 4), least: Fraction = Fraction(1, 4)
) -> Request:
    """As many prompts as the round before suggests: at most the usual number, and if that is enough, for the last time.

    Where no group of the round before counts it says nothing about how many are needed: the usual number then.

    Args:
        collected: what there is.
        default: prompts of a round, >= 1.
        margin: what the estimate is multiplied by, to be rather too many.
        least: fewest prompts of a round, as a share of the groups that a step wants.

    Source: GRESO, arXiv:2506.02177, section 4.3, with the constants of its code.
    """
    if not collected.last_counted:
        return Request(prompts=default)
    enough = int(margin * collected.missing * collected.last_rolled_out / collected.last_counted)
    return Request(prompts=max(min(enough, default), math.ceil(least * collected.wanted)), last=enough <= default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How the prompts of a step are rolled out in rounds, and which groups it is made of.

    Raises:
        ConfigError: at construction, listing every field that is out of range.
    """

    counts: Counts
    size: RoundSize = fixed
    factor: float = 1.0
    """Usual prompts of a round, as a multiple of the groups that a step wants, > 0."""
    limit: int = 10
    """Most rounds of a step; 0 for no limit."""
    at_limit: Literal["stop", "train"] = "stop"
    """What happens at the limit: an error, or a step on the groups there are, an error only if there are none."""
    skipping: Skipping | None = None
    """How prompts are skipped by their past; None to skip none."""

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.factor < math.inf:
            problems.append(f"factor={self.factor:g} must be greater than 0. Try factor=1.0.")
        if self.limit < 0:
            problems.append(f"limit={self.limit} must be >= 0, 0 for no limit. Try limit=10.")
        if self.at_limit not in ("stop", "train"):
            problems.append(f"at_limit={self.at_limit!r} must be 'stop' or 'train'. Try at_limit='stop'.")
        raise_problems("Rounds", problems)

    @property
    def bias(self) -> str:
        """Why the expected gradient is not that of all prompts asked for."""
        reason = (
            "a step is divided by the groups that count, not by all that were rolled out, and it rolls out until they "
            "are enough: a ratio of two random numbers"
        )
        return reason if self.skipping is None else f"{reason}; {self.skipping.bias}"

    def __str__(self) -> str:
        """How prompts are rolled out, in words."""
        ending = {"stop": "an error there", "train": "then a step on those there are"}[self.at_limit]
        limit = f"at most {self.limit} rounds ({ending})" if self.limit else "without a limit of rounds"
        grade = "" if self.skipping is None else _name(self.skipping.streak).replace("_", " ")
        skipped = f", prompts skipped after easy or hard groups in a row ({grade})" if grade else ""
        return (
            f"{_name(self.size)} rounds of {self.factor:g} times what a step wants until as many groups have rewards "
            f"that differ, {limit}{skipped}"
        )

    def request(self, collected: Collected) -> Request:
        """The next round of a step.

        Args:
            collected: what there is.
        """
        return self.size(collected, max(round(self.factor * collected.wanted), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The groups that a step is made of."""

    keep_P: Tensor
    """(P,) bool, one entry per group rolled out, round after round."""
    collected: Collected
    """What all rounds gave."""


def fill(rounds: Rounds, wanted: int, roll_out: Callable[[int, int], Tensor]) -> Filled:
    """Rounds of rollouts until ``wanted`` groups count, and the first ``wanted`` of those.

    Args:
        rounds: what counts, how large rounds are, and when to stop.
        wanted: groups that fill a step, >= 1.
        roll_out: ``roll_out(number, prompts) -> reward_PG`` for round ``number`` (from 0) of about ``prompts`` prompts;
            rewards are those of the groups that were rolled out.

    Raises:
        RoundsError: the limit is reached, and what there is may not be trained on.
    """
    collected, parts = Collected(wanted=wanted), []
    while True:
        request = rounds.request(collected)
        parts.append(rounds.counts(roll_out(collected.rounds, request.prompts)))
        collected = collected.after(parts[-1])
        if not collected.missing or (request.last and collected.counted):
            break
        if rounds.limit and collected.rounds >= rounds.limit:
            if rounds.at_limit == "train" and collected.counted:
                break
            raise RoundsError(
                f"after {collected.rounds} rounds {collected.counted} of {collected.rolled_out} groups have rewards "
                f"that differ, and a step needs {wanted if rounds.at_limit == 'stop' else 1}. Set max_rounds: "
                f"{2 * rounds.limit} (0 for no limit), or train on prompts that are solved at times."
            )
    counts_P = torch.cat(parts)
    return Filled(keep_P=counts_P & (counts_P.cumsum(0) <= wanted), collected=collected)


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", type(function).__name__)
