"""Rounds of rollouts: prompts are rolled out until enough groups have a signal. Biased by design."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from dppo.errors import DesignError, in_words
from dppo.typed import check_fields
from dppo.types import Draw, Rewards


class PromptQueue(Protocol):
    """Prompts in the order in which rounds take them: a ``PromptStream``, or a list, which gives fewer at its end."""

    def peek(self, count: int, /) -> Tensor: ...

    def take(self, count: int, /) -> Tensor: ...


class Skipping(Protocol):
    """A method's rule that skips prompts by their past, before a round is rolled out; ``str`` describes it."""

    @property
    def bias(self) -> str:
        """Reason for a biased gradient."""
        ...

    def start(self) -> Any:
        """State of the rule at the start of a run: a frozen dataclass of numbers, saved in checkpoints."""
        ...

    def chances(self, streak_P: Tensor, learned: Any, /) -> Tensor:
        """(P, coins) probabilities of independent coins; a prompt is rolled out if all of its coins are heads.

        ``streak_P`` (P,) int64 counts a prompt's last groups of one kind: z easy ones, -z hard ones, or 0.
        """
        ...

    def learn(self, learned: Any, rewards: Rewards, /, *, epochs: float) -> tuple[Tensor, Any]:
        """(Q,) int64 outcome of each group of a step (1 easy, -1 hard, 0 neither), and the next state."""
        ...

    def metrics(self, learned: Any, /) -> dict[str, float]:
        """The state as metrics, by the names of docs/metrics.md."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Numbers of groups in the rounds of one step so far."""

    wanted: int
    """Groups that fill the step, >= 1."""
    usual: int
    """Prompts of a round before anything is known of how many are needed, >= 1."""
    counted: int = 0
    """Groups of all rounds that count."""
    rounds: int = 0
    rolled_out: int = 0
    """Groups of all rounds."""
    last_rolled_out: int = 0
    last_counted: int = 0
    """The same of the last round."""

    @property
    def missing(self) -> int:
        """Groups that the step still lacks, >= 0."""
        return max(self.wanted - self.counted, 0)

    def after(self, counts_P: Tensor) -> "Collected":
        """Numbers after one more round, of which the groups of ``counts_P`` count."""
        groups, counted = len(counts_P), int(counts_P.sum())
        last = {"last_rolled_out": groups, "last_counted": counted, "rounds": self.rounds + 1}
        return replace(self, counted=self.counted + counted, rolled_out=self.rolled_out + groups, **last)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRequest:
    """A round to be rolled out."""

    prompts: int
    """Number of prompts, >= 1."""
    last: bool = False
    """True if the step trains on the groups there are after this round, even on too few."""


def fixed(collected: Collected) -> RoundRequest:
    """Request the same number of prompts in every round. Source: DAPO, arXiv:2503.14476, section 3.2."""
    return RoundRequest(prompts=collected.usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rounds in which the prompts of a step are rolled out, and the groups that it trains on."""

    counts: Callable[[Rewards], Tensor]
    """``counts(rewards) -> (Q,) bool``: True for groups that a step may train on."""
    size: Callable[[Collected], RoundRequest] = fixed
    factor: float = 1.0
    """Usual prompts of a round over the groups that a step wants, > 0."""
    limit: int = 10
    """Most rounds of a step; 0 for no limit."""
    at_limit: Literal["stop", "train"] = "stop"
    """At the limit, ``stop`` is an error. ``train`` is a step on the groups that count; without any it is an error."""
    skipping: Skipping | None = None
    """Rule that skips prompts by their past; None to skip none."""

    def __post_init__(self) -> None:
        ranges = {"factor": "(0, inf)", "limit": "[0, inf)", "at_limit": ("stop", "train")}
        check_fields(self, 'replace(METHODS["dapo"].rounds, factor=1.0, limit=10, at_limit="stop")', **ranges)

    @property
    def bias(self) -> str:
        """Reasons for a biased gradient."""
        reason = (
            "a step is divided by the groups that count, not by all that were rolled out, and it rolls out until they "
            "are enough: a ratio of two random numbers"
        )
        return reason if self.skipping is None else f"{reason}; {self.skipping.bias}"

    def __str__(self) -> str:
        ending = {"stop": "an error there", "train": "then a step on those there are"}[self.at_limit]
        limit = f"at most {self.limit} rounds ({ending})" if self.limit else "without a limit of rounds"
        wants = f"{in_words(self.size)} rounds of {self.factor:g} times what a step wants"
        skipped = "" if self.skipping is None else f", {self.skipping}"
        return f"{wants} until as many groups have rewards that differ, {limit}{skipped}"


def take_round(
    stream: PromptQueue, prompts: int, chances: Callable[[Tensor], Tensor] | None, rng: np.random.Generator
) -> tuple[Tensor, Draw]:
    """Take prompts, (P,), until ``prompts`` of them are rolled out or none are left; return them and their draw.

    ``chances`` gives (P, coins) probabilities > 0 as in ``Skipping``; None skips nothing. No weight makes up for skips.
    """
    rows, probs, keeps, missing = [], [], [], prompts
    while missing and len(ahead_P := stream.peek(missing if chances is None else 2 * missing)):
        chance = torch.ones(len(ahead_P), 0, dtype=torch.float64) if chances is None else chances(ahead_P)
        if never := int((chance <= 0).any(1).sum()):
            gives = f"skipping gives {never} prompts probability 0, and their rounds never end"
            raise DesignError(f"{gives}. Give every prompt a probability above 0, such as 0.05.")
        keep_P = torch.ones(len(ahead_P), dtype=torch.bool)
        if chance.numel():  # without coins nothing is random, and frozen comparisons tell by the generator
            coins = rng.random(chance.numel()) >= (1 - chance).flatten().numpy()
            keep_P = torch.from_numpy(coins).view_as(chance).all(1)
        last = (keep_P.cumsum(0) == missing).nonzero()[:1, 0]
        size = int(last) + 1 if len(last) else len(ahead_P)
        rows.append(stream.take(size))
        probs.append(chance.prod(1)[:size])
        keeps.append(keep_P[:size])
        missing -= int(keeps[-1].sum())
    keep_P = torch.cat(keeps)
    return torch.cat(rows), Draw(keep_N=keep_P, prob_N=torch.cat(probs), weight_N=keep_P.double())
