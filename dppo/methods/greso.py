"""GRESO, arXiv:2506.02177: prompts with streaks of zero-variance groups are skipped, with some exploration."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from dppo.errors import in_words
from dppo.groups import each_group
from dppo.methods.method import Scheme
from dppo.pruning import RoundRequest, Rounds
from dppo.pruning.rounds import Collected
from dppo.types import Rewards

EASY, HARD, NEITHER = 1, -1, 0

Grade = Callable[[Rewards, float, float], Tensor]
"""``grade(rewards, low, high) -> (Q,) int64``: EASY, HARD or NEITHER, given the range of rewards seen in the run."""


def by_variance(rewards: Rewards, low: float, high: float) -> Tensor:
    """EASY or HARD, (Q,), if all rewards of a group are equal, else NEITHER. Source: GRESO, section 4.1.

    EASY is nearer to the highest reward seen in the run than to the lowest: with rewards of 0 and 1 it is "all right".
    """
    zero_variance_Q = rewards.zero_variance_Q & ~rewards.mean_Q.isnan()
    return _graded(zero_variance_Q & (rewards.mean_Q > (low + high) / 2), zero_variance_Q)


def by_mean(rewards: Rewards, low: float, high: float, *, easy: float = 0.98, hard: float = 0.11) -> Tensor:
    """EASY or HARD, (Q,), by the mean reward alone, as GRESO's code with rewards 0, 0.1 (well-formed) and 1 (right)."""
    easy_Q = rewards.mean_Q >= easy
    return _graded(easy_Q, easy_Q | (rewards.mean_Q <= hard))


def by_value(rewards: Rewards, low: float, high: float, *, easy: float = 1.0, hard: float = 0.1) -> Tensor:
    """EASY or HARD, (Q,), if all rewards are ``easy`` or ``hard`` in float32, as GRESO's code adjusts exploration."""
    total_N = rewards.total_N.float()
    easy_Q, hard_Q = (each_group(lambda is_QG: is_QG.all(1), rewards.group_N, total_N == v) for v in (easy, hard))
    return _graded(easy_Q, easy_Q | hard_Q)


def _graded(easy_Q: Tensor, either_Q: Tensor) -> Tensor:
    return torch.where(easy_Q, EASY, torch.where(either_Q, HARD, NEITHER))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """How much is explored at a point of a run, and the rewards seen by then."""

    easy: float
    """Probability of rolling a prompt out after one easy group; after z of them it is this to the power z."""
    hard: float
    low: float | None = None
    """Lowest reward of the run so far; None before the first."""
    high: float | None = None


TARGET, EASY_PART = Fraction(1, 4), Fraction(1, 3)
"""Share of the groups rolled out that may be easy or hard, and the part of it that may be easy, as in GRESO's code."""
FIRST, CHANGE, LOWEST, HIGHEST = 0.5, 0.01, 0.05, 0.95
"""Exploration probabilities at the start, their change per step and their range, as in GRESO's code."""
FLOOR = 0.01
"""Lowest probability of rolling a prompt out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreakSkipping:
    """Prompts are skipped after easy or hard groups in a row."""

    streak: Grade = by_variance
    """Grade by which a prompt's streak of easy or hard groups goes on or ends."""
    tally: Grade = by_variance
    """Grade by which exploration is adjusted."""

    @property
    def bias(self) -> str:
        """Reason for a biased gradient."""
        return "prompts that are skipped are made up for by no weight"

    def __str__(self) -> str:
        return f"prompts skipped after easy or hard groups in a row ({in_words(self.streak)})"

    def start(self) -> Exploration:
        """The exploration at the start of a run."""
        return Exploration(easy=FIRST, hard=FIRST)

    def chances(self, streak_P: Tensor, learned: Exploration) -> Tensor:
        """(P, 2) float64 coins: exploration to the power of the streak, at least FLOOR. Source: GRESO, equation 5."""
        sides = ((learned.easy, streak_P.clamp_min(0)), (learned.hard, (-streak_P).clamp_min(0)))
        return torch.stack([explore ** z_P.double() for explore, z_P in sides], 1).clamp_min(FLOOR)

    def learn(self, learned: Exploration, rewards: Rewards, *, epochs: float) -> tuple[Tensor, Exploration]:
        """(Q,) EASY, HARD or NEITHER of all groups rolled out, and the exploration of the next step.

        From epoch 2 on a probability falls if the target share of groups was of its kind, else it rises (section 4.2).
        """
        seen = rewards.total_N[~rewards.total_N.isnan()].tolist()
        seen += [value for value in (learned.low, learned.high) if value is not None]
        if not seen:
            return torch.zeros(rewards.groups, dtype=torch.int64), learned
        low, high = min(seen), max(seen)
        learned = replace(learned, low=low, high=high)
        if epochs > 1:
            tally_Q = self.tally(rewards, low, high)
            easy, hard = (Fraction(int((tally_Q == kind).sum()), len(tally_Q)) for kind in (EASY, HARD))
            easy, hard = easy >= TARGET * EASY_PART, hard >= TARGET * (1 - EASY_PART)
            learned = replace(learned, easy=_moved(learned.easy, easy), hard=_moved(learned.hard, hard))
        return self.streak(rewards, low, high), learned

    def metrics(self, learned: Exploration) -> dict[str, float]:
        """Both exploration probabilities."""
        return {"prune/explore_easy": learned.easy, "prune/explore_hard": learned.hard}


def _moved(probability: float, many: bool) -> float:
    return min(max(probability + (-CHANGE if many else CHANGE), LOWEST), HIGHEST)


def mixed(rewards: Rewards) -> Tensor:
    """True, (Q,), for groups in which not all rewards are equal. Source: GRESO, section 3."""
    return ~rewards.zero_variance_Q


def adaptive(
    collected: Collected, *, margin: Fraction = Fraction(5, 4), least: Fraction = Fraction(1, 4)
) -> RoundRequest:
    """The number of prompts that the round before suggests, times ``margin``; the usual number if no group counted.

    It is at most the usual number, and at least the share ``least`` of the groups wanted. A large enough round is last.
    Source: GRESO, section 4.3, with the constants of its code.
    """
    if not collected.last_counted:
        return RoundRequest(prompts=collected.usual)
    enough = int(margin * collected.missing * collected.last_rolled_out / collected.last_counted)
    prompts = max(min(enough, collected.usual), math.ceil(least * collected.wanted))
    return RoundRequest(prompts=prompts, last=enough <= collected.usual)


_PAPER = (
    "arXiv:2506.02177, Act Only When It Pays: Efficient Reinforcement Learning for LLM Reasoning via Selective Rollouts"
)
_AS_CODE = (
    "a step that lacks groups after 10 rounds trains on those there are; the code goes on until it expects a round to "
    "be the last",
    "a round in which no group counts is followed by one of the usual size, where the code divides by 0",
    "the smallest round is a quarter of a step, 64 of 256 in the code; a prompt at a time is taken, in the code 32",
    "rounds are raised to whole groups on every process, where the code leaves prompts out",
    "runs and exploration learn once per step, and draws come from the run's seed",
    "the loss is a mean within each completion, in the code over the tokens of a micro-batch; eps is 1e-4, there 1e-6",
)
_ROUNDS = Rounds(counts=mixed, size=adaptive, factor=1.5, at_limit="train", skipping=StreakSkipping())

GRESO = Scheme(
    name="greso",
    paper=_PAPER,
    rounds=_ROUNDS,
    deviations=(
        "a prompt's run is one of groups without variance, as in the paper, where the code looks at mean rewards",
        "an easy group is nearer to the run's highest reward than to its lowest",
        *_AS_CODE,
    ),
)

GRESO_COMPAT = replace(
    GRESO,
    name="greso_compat",
    paper=f"{_PAPER}, as in its code",
    rounds=replace(_ROUNDS, skipping=StreakSkipping(streak=by_mean, tally=by_value)),
    deviations=("groups have any size, where the code adjusts its exploration by groups of 8", *_AS_CODE),
)
