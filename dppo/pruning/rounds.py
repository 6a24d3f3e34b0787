"""Rounds of rollouts: prompts are rolled out until enough groups can be learned from. Biased by design."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from dppo.errors import DesignError, RoundsError, in_words, require
from dppo.typed import check_fields
from dppo.types import Draw, Rewards

Counts = Callable[[Rewards], Tensor]
"""``counts(rewards) -> (Q,) bool``: which groups a step may be made of."""
RoundSize = Callable[["Collected"], "RoundRequest"]
"""``size(collected) -> Request``: the next round, from what there is."""


class Ahead(Protocol):
    """Prompts in the order in which rounds take them: ``PromptStream``, which never ends, or a list that does."""

    def peek(self, count: int, /) -> Tensor:
        """(P,) the next ``count`` of them; fewer where there are no more."""
        ...

    def take(self, count: int, /) -> Tensor:
        """The same, and moves on."""
        ...


class Skipping(Protocol):
    """How prompts are skipped by their past, before a round is rolled out: a method's own rule."""

    @property
    def bias(self) -> str:
        """Why the expected gradient is not that of all prompts."""
        ...

    def start(self) -> Any:
        """What the rule has learned at the start of a run: a frozen dataclass of numbers, saved in checkpoints."""
        ...

    def chances(self, streak_P: Tensor, learned: Any, /) -> Tensor:
        """(P, coins) probabilities: a prompt is rolled out if each of its independent coins says so.

        ``streak_P`` (P,) int64 counts a prompt's last groups of one kind: z easy ones, -z hard ones, or 0.
        """
        ...

    def learn(self, learned: Any, rewards: Rewards, /, *, epochs: float) -> tuple[Tensor, Any]:
        """(Q,) int64 what the groups of a step are, 1 easy, -1 hard, 0 neither, and what is learned from them."""
        ...

    def metrics(self, learned: Any, /) -> dict[str, float]:
        """What is learned as metrics, by the names of docs/metrics.md."""
        ...

    def __str__(self) -> str:
        """Which prompts are skipped, in words."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What the rounds of one step have given so far, all counted in groups."""

    wanted: int
    """Groups that fill the step, >= 1."""
    usual: int
    """Prompts of a round where nothing is known of how many are needed, >= 1."""
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
        """The same after one more round."""
        groups, counted = len(counts_P), int(counts_P.sum())
        return replace(
            self,
            counted=self.counted + counted,
            rounds=self.rounds + 1,
            rolled_out=self.rolled_out + groups,
            last_rolled_out=groups,
            last_counted=counted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRequest:
    """A round to be rolled out."""

    prompts: int
    """How many, >= 1."""
    last: bool = False
    """True where the step is made of what there is after this round, be it too little."""


def fixed(collected: Collected) -> RoundRequest:
    """As many prompts in every round.

    Source: DAPO, arXiv:2503.14476, section 3.2.
    """
    return RoundRequest(prompts=collected.usual)


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
        check_fields(self, 'replace(METHODS["dapo"].rounds, limit=10)')
        at_limit = f"at_limit={self.at_limit!r} must be 'stop' or 'train'. Try at_limit='stop'."
        ranges = {
            f"factor={self.factor:g} must be greater than 0. Try factor=1.0.": 0 < self.factor < math.inf,
            f"limit={self.limit} must be >= 0, 0 for no limit. Try limit=10.": self.limit >= 0,
            at_limit: self.at_limit in ("stop", "train"),
        }
        require("Rounds", ranges)

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
        skipped = "" if self.skipping is None else f", {self.skipping}"
        return (
            f"{in_words(self.size)} rounds of {self.factor:g} times what a step wants until as many groups have "
            f"rewards that differ, {limit}{skipped}"
        )


def fill(rounds: Rounds, wanted: int, roll_out: Callable[[int, int], Rewards | None]) -> tuple[Tensor, Collected]:
    """Rounds of rollouts until ``wanted`` groups count, and the first ``wanted`` of those.

    ``roll_out(number, prompts)`` gives the rewards of the groups of round ``number`` (from 0) of about ``prompts``
    prompts; None where no prompts are left, so that there is what there is.

    Returns:
        (Q,) bool, which groups the step is made of, round after round, and what all rounds gave.

    Raises:
        RoundsError: the limit is reached, and what there is may not be trained on.
    """
    collected, parts = Collected(wanted=wanted, usual=max(round(rounds.factor * wanted), 1)), []
    while True:
        request = rounds.size(collected)
        rewards = roll_out(collected.rounds, request.prompts)
        if rewards is None:
            break
        parts.append(rounds.counts(rewards))
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
    if not parts:
        raise RoundsError("there was no prompt to roll out. Give a dataset with at least one.")
    counts_Q = torch.cat(parts)
    return counts_Q & (counts_Q.cumsum(0) <= wanted), collected


def take_round(
    stream: Ahead, prompts: int, chances: Callable[[Tensor], Tensor] | None, rng: np.random.Generator
) -> tuple[Tensor, Draw]:
    """(P,) the next prompts of the stream, until ``prompts`` of them are rolled out or it ends, and which those are.

    ``chances`` gives (P, coins) probabilities of prompts (P,), each > 0, as of ``Skipping``; None to skip nothing. No
    weight makes up for a prompt that is skipped.

    Raises:
        DesignError: a prompt has no chance to be rolled out.
    """
    rows, probs, keeps, missing = [], [], [], prompts
    while missing and len(ahead_P := stream.peek(missing if chances is None else 2 * missing)):
        if chances is None:
            prob_P = torch.ones(len(ahead_P), dtype=torch.float64)
            keep_P = prob_P.bool()
        else:
            chance = chances(ahead_P)
            if bool((chance <= 0).any()):
                raise DesignError(
                    f"skipping gives {int((chance <= 0).any(1).sum())} prompts no chance: where all are such, rounds "
                    "never end. Give every prompt a chance above 0, such as 0.05."
                )
            coins = rng.random(chance.numel()) >= (1 - chance).flatten().numpy()
            keep_P = torch.from_numpy(coins).view_as(chance).all(1)
            prob_P = chance.prod(1)
        last = (keep_P.cumsum(0) == missing).nonzero()[:1, 0]
        size = int(last) + 1 if len(last) else len(ahead_P)
        rows.append(stream.take(size))
        probs.append(prob_P[:size])
        keeps.append(keep_P[:size])
        missing -= int(keeps[-1].sum())
    keep_P = torch.cat(keeps)
    return torch.cat(rows), Draw(keep_N=keep_P, prob_N=torch.cat(probs), weight_N=keep_P.double())
