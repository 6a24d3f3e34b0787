"""What a majority vote rewards on average, by enumeration: of a fixed size, and stopped when it is settled.

python -m judge_benchmarks.votes

The table of docs/votes.md. Seconds; nothing is sampled: every sequence of answers has its chance. The pseudo-label and
the share that agrees with it depend on how many answers were sampled, and on the rule that stopped the sampling.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from answer_judge.errors import ConfigError
from answer_judge.grading.vote import Stopping, majority

MOST = 16
RULE = Stopping(confidence=0.95, vote_odds=3.0, fewest=4, most=MOST)
PROBABILITIES = ((0.9, 0.1), (0.6, 0.4), (0.5, 0.3, 0.2), (0.4, 0.35, 0.25), (0.3, 0.2, 0.1))
"""Of each answer; what is missing to 1 is the chance of no answer."""
HEAD = ("answers", "votes", "completions", "becomes the label", "expected reward", "agreement", "gradient", "to 16")


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteOutcome:
    """One way that the vote on a prompt can end."""

    votes: tuple[int, ...]
    """Of each answer, in the order of its probabilities, >= 0."""
    silent: int
    """Completions without an answer."""
    winner: int | None
    """Which answer, counted from 0; None without votes."""
    chance: float
    """In [0, 1]; all outcomes' chances sum to 1."""

    @property
    def drawn(self) -> int:
        """Completions sampled: when it stopped."""
        return sum(self.votes) + self.silent

    @property
    def rewards(self) -> tuple[float, ...]:
        """What a completion with each of the answers was worth, 1.0 or 0.0."""
        return tuple(float(answer == self.winner) for answer in range(len(self.votes)))


_State = tuple[tuple[tuple[int, int], ...], int]
"""(answer, votes) in the order in which answers appeared, and how many had none: all that a rule and a tie ask of a
sequence. Sequences that agree in this are carried on as one."""


def outcomes(prob: Sequence[float], rule: Stopping) -> list[VoteOutcome]:
    """Every way the vote on a prompt can end, with its chance; the rule must stop after finitely many completions.

    ``prob`` is each answer's, > 0; what is missing to 1 is the chance of no answer. ``ConfigError``: it is none.
    """
    silence = 1 - math.fsum(prob)
    if not (len(prob) and all(chance > 0 for chance in prob) and silence > -1e-9):
        raise ConfigError(f"prob={list(prob)} must be above 0 and sum to at most 1. Try prob=[0.5, 0.3, 0.2]")
    ways: list[tuple[int | None, float]] = [*enumerate(prob), *([(None, silence)] if silence > 1e-9 else [])]
    ended: dict[tuple[tuple[int, ...], int, int | None], float] = defaultdict(float)
    states: dict[tuple[_State, int], float] = {(((), 0), 0): 1.0}
    """Of each state and the completions before the next look, the chance."""
    while states:
        following: dict[tuple[_State, int], float] = defaultdict(float)
        for ((seen, silent), more), chance in states.items():
            votes = dict(seen)
            more = more or rule.more(votes.values(), sum(votes.values()) + silent)
            if more == 0:
                winner = majority([answer for answer, count in seen for _ in range(count)]).winner
                ended[tuple(votes.get(answer, 0) for answer in range(len(prob))), silent, winner] += chance
                continue
            for answer, probability in ways:
                counted = {} if answer is None else {answer: votes.get(answer, 0) + 1}
                state = tuple((votes | counted).items()), silent + (answer is None)
                following[state, more - 1] += chance * probability
        states = following
    return [VoteOutcome(votes=v, silent=s, winner=winner, chance=chance) for (v, s, winner), chance in ended.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimand:
    """What a vote's rewards and its gradient are on average. Lists have an entry for each answer."""

    drawn: float
    """Mean completions of a prompt."""
    label: tuple[float, ...]
    """Probability that each answer becomes the pseudo-label."""
    reward: tuple[float, ...]
    """Expected reward of a completion with each answer: its rewards over its completions, both summed over groups."""
    agreement: float
    """Mean share of a group that agrees with its majority: the mean reward that a run logs per group."""
    gradient: tuple[float, ...]
    """Expected ascent direction on the logit of each answer, from the mean over a group of advantage times gradient of
    the log-probability, with the advantage the reward minus its group's mean. With the one of no answer they sum to
    0."""
    pooled: tuple[float, ...]
    """The same where completions of all prompts are averaged together, so that a group counts by its size."""


def estimand(prob: Sequence[float], rule: Stopping) -> Estimand:
    """What a rule's votes reward, for a policy that is a softmax over answers with the probabilities of ``outcomes``.

    Since advantages of a group sum to 0, the gradient of a group with shares ``s`` and winner ``w`` is
    ``s_a * (1[a = w] - s_w)`` for answer ``a``.
    """
    ends, answers = outcomes(prob, rule), range(len(prob))
    drawn = math.fsum(end.chance * end.drawn for end in ends)

    def share(end: VoteOutcome, answer: int | None) -> float:
        return 0.0 if answer is None else end.votes[answer] / end.drawn

    def gradient(end: VoteOutcome, answer: int) -> float:
        return share(end, answer) * (end.rewards[answer] - share(end, end.winner))

    return Estimand(
        drawn=drawn,
        label=tuple(math.fsum(end.chance for end in ends if end.winner == a) for a in answers),
        reward=tuple(
            math.fsum(end.chance * end.votes[a] * end.rewards[a] for end in ends)
            / math.fsum(end.chance * end.votes[a] for end in ends)
            for a in answers
        ),
        agreement=math.fsum(end.chance * share(end, end.winner) for end in ends),
        gradient=tuple(math.fsum(end.chance * gradient(end, a) for end in ends) for a in answers),
        pooled=tuple(math.fsum(end.chance * end.drawn * gradient(end, a) for end in ends) / drawn for a in answers),
    )


def fixed(votes: int) -> Stopping:
    """A vote with a fixed number of completions."""
    return Stopping(fewest=votes, most=votes)


def rows(prob: Sequence[float]) -> list[tuple[str, ...]]:
    """Cells of the table for a policy that gives answers with these probabilities."""
    base = estimand(prob, fixed(MOST)).gradient[0]
    near = round(estimand(prob, RULE).drawn)
    rules = {
        f"{MOST}": fixed(MOST),
        "until nothing can change": Stopping(confidence=1.0, fewest=RULE.fewest, most=MOST),
        "until settled": RULE,
        f"{near}": fixed(near),
    }
    found = []
    for name, rule in rules.items():
        of = estimand(prob, rule)
        size = f"{of.gradient[0] / base:.2f}, {of.pooled[0] / base:.2f}"
        cells = (f"{of.drawn:.2f}", joined(of.label), joined(of.reward), f"{of.agreement:.3f}", joined(of.gradient))
        found.append((joined(prob, places=2), name, *cells, size))
    return found


def joined(figures: Sequence[float], places: int = 3) -> str:
    """Several figures in one cell."""
    return " ".join(f"{figure:.{places}f}" for figure in figures)


def table() -> str:
    """All rows, as a table for a page."""
    lines = [HEAD, ("---",) * len(HEAD), *(row for prob in PROBABILITIES for row in rows(prob))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    print(table())


if __name__ == "__main__":
    main()
