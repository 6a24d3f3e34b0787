"""Prompts that gave nothing time after time are skipped before rollout, but for a share that explores. Biased."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from dppo.errors import raise_problems
from dppo.pruning.groups import mixed
from dppo.pruning.history import PromptHistory
from dppo.pruning.stream import PromptStream

EASY, HARD, NEITHER = 1, -1, 0

Grade = Callable[[Tensor, float, float], Tensor]
"""``grade(reward_PG, low, high) -> (P,) int64``: EASY, HARD or NEITHER, given the range of rewards seen in the run."""


def by_variance(reward_PG: Tensor, low: float, high: float) -> Tensor:
    """EASY or HARD, (P,), where all rewards of a group are equal, NEITHER where they differ.

    EASY is nearer to the highest reward seen in the run than to the lowest, so that it needs no scale: with rewards of
    0 and 1, or of 0, 0.1 and 1, it is "all right". As long as only one reward was ever seen, it is HARD.

    Args:
        reward_PG: (P, G) rewards, NaN where there is none.
        low: lowest reward seen in the run, these included.
        high: highest.

    Source: GRESO, arXiv:2506.02177, section 4.1.
    """
    flat_P = ~mixed(reward_PG) & ~reward_PG.isnan().all(1)
    return _graded(flat_P & (reward_PG.nanmean(1) > (low + high) / 2), flat_P)


def by_mean(reward_PG: Tensor, low: float, high: float, *, easy: float = 0.98, hard: float = 0.11) -> Tensor:
    """EASY or HARD, (P,), by the mean reward of a group alone: mixtures of small rewards count as HARD too.

    Args:
        reward_PG: (P, G) rewards between 0 and 1, NaN where there is none.
        low: not used.
        high: not used.
        easy: lowest mean that is EASY.
        hard: highest mean that is HARD.

    Source: GRESO's code, whose rewards are 0, 0.1 (well-formed) and 1 (right).
    """
    mean_P = reward_PG.nanmean(1)
    return _graded(mean_P >= easy, (mean_P >= easy) | (mean_P <= hard))


def by_value(reward_PG: Tensor, low: float, high: float, *, easy: float = 1.0, hard: float = 0.1) -> Tensor:
    """EASY or HARD, (P,), where all rewards of a group are exactly ``easy`` or ``hard`` in float32: 0 is neither.

    Args:
        reward_PG: (P, G) rewards.
        low: not used.
        high: not used.
        easy: reward of a right answer.
        hard: reward of a well-formed wrong one.

    Source: GRESO's code, where it adjusts its exploration.
    """
    easy_P, hard_P = ((reward_PG.float() == value).all(1) for value in (easy, hard))
    return _graded(easy_P, easy_P | hard_P)


def _graded(easy_P: Tensor, either_P: Tensor) -> Tensor:
    return torch.where(easy_P, EASY, torch.where(either_P, HARD, NEITHER))


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipping:
    """How prompts are skipped by their past. The constants are those of GRESO's code.

    Raises:
        ConfigError: at construction, listing every field that is out of range.
    """

    streak: Grade = by_variance
    """What prolongs a prompt's run of easy or hard groups, or ends it."""
    tally: Grade = by_variance
    """What counts as easy and hard when exploration is adjusted."""
    target: Fraction = Fraction(1, 4)
    """Share of the groups rolled out that may be easy or hard, in (0, 1)."""
    easy_part: Fraction = Fraction(1, 3)
    """Part of ``target`` that may be easy, in [0, 1]; the rest may be hard."""
    start: float = 0.5
    """Both exploration probabilities at the start."""
    change: float = 0.01
    """What they change by, once a step."""
    lowest: float = 0.05
    highest: float = 0.95
    floor: float = 0.01
    """Lowest probability of rolling a prompt out, in (0, 1]."""

    def __post_init__(self) -> None:
        ranges = {
            "target": 0 < self.target < 1,
            "easy_part": 0 <= self.easy_part <= 1,
            "lowest": 0 < self.lowest <= self.start,
            "highest": self.start <= self.highest <= 1,
            "change": 0 <= self.change < 1,
            "floor": 0 < self.floor <= 1,
        }
        wrong = [f"{name}={float(getattr(self, name)):g} is out of range." for name, fine in ranges.items() if not fine]
        raise_problems("Skipping", wrong)

    @property
    def bias(self) -> str:
        """Why the expected gradient is not that of all prompts."""
        return "prompts that are skipped are made up for by no weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """How much is explored at a point of a run, and the rewards seen by then."""

    easy: float
    """Probability of rolling a prompt out after one easy group; after z of them it is this to the power z."""
    hard: float
    low: float | None = None
    """Lowest reward of the run so far; None before the first."""
    high: float | None = None

    @classmethod
    def at_start(cls, skipping: Skipping) -> "Exploration":
        """That of a run that begins.

        Args:
            skipping: how.
        """
        return cls(easy=skipping.start, hard=skipping.start)


def keep_probability(streak_P: Tensor, explore: float, floor: float) -> Tensor:
    """(P,) float64 probability of rolling prompts out: ``explore`` to the power of the run, at least ``floor``.

    Args:
        streak_P: (P,) length of the prompt's most recent run, >= 0; 0 gives 1.
        explore: in (0, 1].
        floor: in (0, 1].

    Source: GRESO, arXiv:2506.02177, equation 5.
    """
    return (explore ** streak_P.double()).clamp_min(floor)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBlock:
    """The candidates of one round, in the order of the stream."""

    row_P: Tensor
    """(P,) dataset rows."""
    prob_P: Tensor
    """(P,) float64 probability of being rolled out."""
    keep_P: Tensor
    """(P,) bool, whether they are."""


def take_round(
    stream: PromptStream,
    history: PromptHistory,
    prompts: int,
    skipping: Skipping | None,
    exploration: Exploration | None,
    rng: np.random.Generator,
) -> RoundBlock:
    """The next rows of the stream, as many as it takes for ``prompts`` of them to be rolled out.

    Each is drawn twice, once against its easy and once against its hard run. A prompt without a run is always kept.

    Args:
        stream: moves on by the rows taken; they may span epochs.
        history: knows the runs.
        prompts: how many to roll out, >= 1.
        skipping: None to skip nothing.
        exploration: probabilities at this point of the run; None as at its start.
        rng: source of randomness; seed it by run, step, purpose and round.
    """
    if skipping is None:
        row_P = stream.take(prompts)
        ones_P = torch.ones(prompts, dtype=torch.float64)
        return RoundBlock(row_P=row_P, prob_P=ones_P, keep_P=ones_P.bool())
    exploration = Exploration.at_start(skipping) if exploration is None else exploration
    rows, probs, keeps, missing = [], [], [], prompts
    while missing:
        ahead_P = stream.peek(2 * missing)
        streak_P = history.streak(ahead_P)
        easy_P = keep_probability(streak_P.clamp_min(0), exploration.easy, skipping.floor)
        hard_P = keep_probability((-streak_P).clamp_min(0), exploration.hard, skipping.floor)
        draw_P2 = torch.from_numpy(rng.random((len(ahead_P), 2)))
        keep_P = (draw_P2[:, 0] >= 1 - easy_P) & (draw_P2[:, 1] >= 1 - hard_P)
        last = (keep_P.cumsum(0) == missing).nonzero()[:1, 0]
        size = int(last) + 1 if len(last) else len(ahead_P)
        rows.append(stream.take(size))
        probs.append((easy_P * hard_P)[:size])
        keeps.append(keep_P[:size])
        missing -= int(keeps[-1].sum())
    return RoundBlock(row_P=torch.cat(rows), prob_P=torch.cat(probs), keep_P=torch.cat(keeps))


def learn(
    skipping: Skipping, exploration: Exploration, reward_PG: Tensor, *, epochs: float
) -> tuple[Tensor, Exploration]:
    """What the groups of a step mean for their prompts' runs, and the exploration of the next step.

    A probability goes down where at least the aimed-at share of groups was of its kind, and up where fewer were. In the
    first epoch, in which nothing was skipped for its run, it stays.

    Args:
        skipping: how.
        exploration: of this step.
        reward_PG: (P, G) rewards of all groups rolled out, those that the step does without included.
        epochs: taken from the stream by now.

    Returns:
        (P,) EASY, HARD or NEITHER for ``PromptHistory.update``, and the new exploration.

    Source: GRESO, arXiv:2506.02177, section 4.2, with the constants of its code.
    """
    seen = reward_PG[~reward_PG.isnan()].tolist()
    known = [value for value in (exploration.low, exploration.high) if value is not None]
    if not seen and not known:
        return torch.zeros(len(reward_PG), dtype=torch.int64), exploration
    low, high = min(seen + known), max(seen + known)
    exploration = replace(exploration, low=low, high=high)
    if epochs > 1:
        tally_P = skipping.tally(reward_PG, low, high)
        easy, hard = (Fraction(int((tally_P == kind).sum()), len(tally_P)) for kind in (EASY, HARD))
        exploration = replace(
            exploration,
            easy=_moved(exploration.easy, easy, skipping.target * skipping.easy_part, skipping),
            hard=_moved(exploration.hard, hard, skipping.target * (1 - skipping.easy_part), skipping),
        )
    return skipping.streak(reward_PG, low, high), exploration


def _moved(probability: float, share: Fraction, target: Fraction, skipping: Skipping) -> float:
    change = -skipping.change if share >= target else skipping.change
    return min(max(probability + change, skipping.lowest), skipping.highest)
