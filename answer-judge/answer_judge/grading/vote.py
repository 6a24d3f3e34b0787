"""Majority votes among the answers to a prompt, and when enough were sampled: pure functions of answers and counts.

The majority stands in for a missing gold answer (TTRL, arXiv:2504.16084), and sampling goes on until it is
settled (OptPO, arXiv:2512.02882). Nothing here ever sees a gold answer. What stopping early does to the reward is in
docs/votes.md: it changes what is estimated.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from answer_judge.errors import DataError, check_fields, is_listed, raise_problems

Same = Callable[[list[tuple[Any, Any]]], Sequence[bool]]
"""``same(pairs)``: for each pair of different answers, whether they are the same answer; the order within a pair must
not matter."""

_TRY = "Stopping(confidence=0.95, vote_odds=3.0, fewest=4, most=16)"
_ROUNDING = 1e-9


def equal(pairs: list[tuple[Any, Any]]) -> list[bool]:
    """``Same`` for answers that are equal values or not the same: numbers, or texts in one spelling."""
    return [one == other for one, other in pairs]


def answer_classes(groups: Sequence[Sequence[Any]], same: Same = equal) -> list[list[int | None]]:
    """The number of the class that each answer of each group is in, from 0 in order of appearance; None for no answer.

    An answer joins the first class whose first answer it is the same as, so classes do not depend on later answers;
    where ``same`` is not transitive (answers within a tolerance) they depend on the order. ``same`` is asked about as
    many pairs of unequal answers at once as can be. ``DataError``: an answer has no hash, or ``same`` is no such thing.
    """
    found: list[dict[Any, int]] = [{} for _ in groups]
    waiting = [list(_counted(group)) for group in groups]
    number = 0
    while any(waiting):
        asked = [(place, answer) for place, answers in enumerate(waiting) for answer in answers[1:]]
        told = same([(waiting[place][0], answer) for place, answer in asked])
        if not is_listed(told) or len(told) != len(asked):
            raise DataError(f"same(pairs) gave {told!r:.80} for {len(asked)} pairs: give one bool for each")
        joined: list[list[Any]] = [answers[:1] for answers in waiting]
        for (place, answer), is_same in zip(asked, told, strict=True):
            if is_same:
                joined[place].append(answer)
        for place, answers in enumerate(joined):
            found[place] |= dict.fromkeys(answers, number)
            waiting[place] = [answer for answer in waiting[place] if answer not in found[place]]
        number += 1
    return [
        [None if answer is None else found[place][answer] for answer in group] for place, group in enumerate(groups)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """How the completions of one prompt voted."""

    votes: Mapping[Any, int]
    """Votes of each answer, >= 1, in the order in which the answers first appeared."""
    silent: int
    """Completions without an answer: they do not vote, so they cannot win."""

    @property
    def winner(self) -> Any:
        """The answer with the most votes, the first to appear where some tie; None without votes."""
        return max(self.votes, key=self.votes.__getitem__, default=None)

    @property
    def tied(self) -> bool:
        """Whether another answer has as many votes as the winner."""
        return list(self.votes.values()).count(max(self.votes.values(), default=0)) > 1

    @property
    def agreement(self) -> float:
        """Share of the completions that voted for the winner, in [0, 1]: the mean reward of the group."""
        return max(self.votes.values(), default=0) / max(sum(self.votes.values()) + self.silent, 1)


def majority(answers: Sequence[Any]) -> Vote:
    """The vote of the answers to one prompt, equal where they are the same; None for no answer; ties go to the first.

    >>> majority(["7", "5", None, "5"]).winner
    '5'

    Source: TTRL, arXiv:2504.16084, and ``Counter.most_common`` in copies of its code. ``DataError``: one has no hash.
    """
    return Vote(votes=_counted(answers), silent=sum(answer is None for answer in answers))


def _counted(answers: Iterable[Any]) -> Counter[Any]:
    """How often each answer was given, in the order of their first appearance."""
    try:
        return Counter(answer for answer in answers if answer is not None)
    except TypeError as error:
        raise DataError(f"answers that vote must be hashable, such as text or numbers: {error}") from error


def vote_rewards(answers: Sequence[Hashable | None]) -> list[float]:
    """1.0 for each answer to a prompt that is the majority's, 0.0 for any other and for none."""
    winner = majority(answers).winner
    return [float(answer is not None and answer == winner) for answer in answers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """When the vote on a prompt is settled: a sequential test of the leading answer against the next one.

    Hypothesis ``j`` says that answer ``j`` is the consensus: a vote is for ``j`` with probability ``p0`` and for each
    other answer with ``p1``. With equal priors the posterior odds of the leader against the runner-up are
    ``vote_odds ** lead``, where ``vote_odds = p0 / p1`` and ``lead`` is by how many votes it leads. Sampling stops when

    - that posterior, ``odds / (1 + odds)``, reaches ``confidence``, or
    - the completions that are left under ``most`` are too few to change the winner, which changes no winner.

    A fixed vote of ``n`` completions is ``Stopping(fewest=n, most=n)``.

    Source: the Bayesian sequential probability ratio test of OptPO, arXiv:2512.02882; docs/votes.md says which parts of
    it could be read and which are choices made here.

    Raises:
        ConfigError: at construction, listing every field that is out of range.
    """

    confidence: float = 0.95
    """Posterior of the leader against the runner-up at which sampling stops, in (0.5, 1]; 1: only when nothing can
    change the winner."""
    vote_odds: float = 3.0
    """How many times likelier a vote is for the consensus than for one given other answer, > 1 and finite."""
    fewest: int = 4
    """Completions of a prompt before the first look, >= 1."""
    most: int = 16
    """Completions of a prompt after which the vote counts as it is, >= fewest."""
    at_once: int = 1
    """Completions of a prompt from one look to the next, >= 1."""

    def __post_init__(self) -> None:
        check_fields(self, _TRY)
        problems = []
        if not 0.5 < self.confidence <= 1:
            problems.append(f"confidence={self.confidence:g} must be in (0.5, 1]. Try confidence=0.95.")
        if not 1 < self.vote_odds < math.inf:
            problems.append(f"vote_odds={self.vote_odds:g} must be above 1 and finite. Try vote_odds=3.0.")
        if not 1 <= self.fewest <= self.most:
            problems.append(f"fewest={self.fewest} must be in [1, most={self.most}]. Try fewest=4, most=16.")
        if self.at_once < 1:
            problems.append(f"at_once={self.at_once} must be >= 1. Try at_once=4.")
        raise_problems("Stopping", problems)

    @property
    def lead(self) -> float:
        """The lead in votes at which the posterior reaches ``confidence``, a whole number >= 1; infinite for 1."""
        if self.confidence == 1:
            return math.inf
        needed = math.log(self.confidence / (1 - self.confidence)) / math.log(self.vote_odds)
        return max(math.ceil(needed - _ROUNDING), 1)

    def more(self, votes: Iterable[int], drawn: int) -> int:
        """How many more completions to sample before the next look, of ``drawn`` in [0, most]; 0: the vote is settled.

        It sees numbers of votes and not which answer has them: renaming answers changes nothing.
        """
        if drawn < self.fewest:
            return self.fewest - drawn
        lead, left = _lead(votes), self.most - drawn
        return 0 if lead >= self.lead or lead > left else min(self.at_once, left)


def _lead(votes: Iterable[int]) -> int:
    first, second, *_ = *sorted(votes, reverse=True), 0, 0
    return first - second
