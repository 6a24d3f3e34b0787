"""What a majority vote rewards on average, by enumeration: of a fixed size, and stopped when it is settled.

python -m benchmarks.judge.votes

The table of docs/votes.md. Seconds; nothing is sampled.
"""

import argparse
from collections.abc import Sequence

from answer_judge.grading.vote import Stopping
from answer_judge.grading.vote_outcomes import estimand

MOST = 16
RULE = Stopping(confidence=0.95, vote_odds=3.0, fewest=4, most=MOST)
PROBABILITIES = ((0.9, 0.1), (0.6, 0.4), (0.5, 0.3, 0.2), (0.4, 0.35, 0.25), (0.3, 0.2, 0.1))
"""Of each answer; what is missing to 1 is the chance of no answer."""
HEAD = ("answers", "votes", "completions", "becomes the label", "expected reward", "agreement", "gradient", "to 16")


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
