"""Estimates from samples: pure functions of counts and votes. Their intervals are in ``answer_judge.statistics``."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from math import comb
from typing import Any

import numpy as np

from answer_judge.errors import ConfigError
from answer_judge.grading.brackets import Unreadable
from answer_judge.grading.numbers import read_number
from answer_judge.grading.text import tidy
from answer_judge.statistics import problem_interval

LONGEST_VOTE = 200
"""Characters; a longer answer votes by its hash, as it is."""


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The probability that at least one of ``k`` samples is right, from ``samples`` drawn: unbiased, in [0, 1].

    ``1 - C(n - c, k) / C(n, k)``, the share of the subsets of size k that hold a right one. At k = 1 it is the mean.

    Args:
        samples: n, drawn for the problem.
        right: c, how many of them are right, in [0, n].
        k: in [1, n].

    Raises:
        ConfigError: k or c out of range.

    Source: Chen et al. (2021), arXiv:2107.03374, section 2.1.
    """
    if not (1 <= k <= samples and 0 <= right <= samples):
        raise ConfigError(f"pass@{k} of {samples} samples, {right} right: k must be in [1, samples]. Try k={samples}")
    return 1.0 - comb(samples - right, k) / comb(samples, k)


def maj_at_k(votes: Sequence[str | None], right: Sequence[bool], k: int) -> float:
    """The probability that the most frequent answer of ``k`` samples is right: mean over blocks of k samples in order.

    A sample votes for its answer. Samples judged right agree with each other, however they are spelt; others agree when
    their votes are equal. Samples without an answer do not vote; without any vote, 0. A tie is decided by lot: where m
    answers lead and one is right, 1/m. Samples after the last whole block do not count.

    Args:
        votes: the answer of each sample, in a form that is equal for equal answers; None for none.
        right: whether each was judged right.
        k: samples of a vote, in [1, samples].

    Raises:
        ConfigError: k out of range, or not as many votes as verdicts.
    """
    if len(votes) != len(right):
        raise ConfigError(f"{len(votes)} votes but {len(right)} verdicts: give one of each per sample")
    if not 1 <= k <= len(votes):
        raise ConfigError(f"maj@{k} of {len(votes)} samples: k must be in [1, samples]. Try k={len(votes)}")
    starts = range(0, len(votes) - k + 1, k)
    return sum(_vote(votes[start : start + k], right[start : start + k]) for start in starts) / len(starts)


def _vote(votes: Sequence[str | None], right: Sequence[bool]) -> float:
    answers = [(True, "") if good else (False, vote) for vote, good in zip(votes, right, strict=True) if good or vote]
    counts = Counter(answers)
    front = [answer for answer, count in counts.items() if count == max(counts.values())]
    return ((True, "") in front) / len(front) if front else 0.0


def voting_form(answer: str) -> str:
    r"""An answer, not empty, as it votes: equal for answers that are the same number, or the same text up to spelling.

    ``0.50``, ``.5``, ``1/2`` and ``\dfrac{1}{2}`` vote alike, and so do ``1,200`` and ``1200``; others vote as the
    verifier spells them, without spaces. Equal values in other forms, such as ``\sqrt 8`` and ``2\sqrt 2``, do not.
    """
    try:
        text = tidy(answer) if len(answer) <= LONGEST_VOTE else answer
    except Unreadable:
        text = answer
    if number := read_number(text):
        with suppress(ValueError):  # more digits than Python writes: 10^{5000}
            return str(number.value)
    text = "".join(text.split()) or answer.strip()
    if len(text) <= LONGEST_VOTE:
        return text
    return "blake2b:" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def default_ks(samples: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to ``samples``, and ``samples`` itself."""
    powers = [1 << power for power in range(samples.bit_length()) if 1 << power <= samples]
    return tuple(dict.fromkeys([*powers, samples]))


def breakdown(labels: Sequence[str | None], value_P: np.ndarray, rng: np.random.Generator) -> dict[str, dict[str, Any]]:
    """The mean of each label's problems, by label in sorted order; empty where no problem has one.

    A label None is counted as ``unknown`` where others have labels. ``value_P`` is one figure per problem.
    """
    if not any(label is not None for label in labels):
        return {}
    names = np.array([label if label is not None else "unknown" for label in labels])
    groups = {str(name): value_P[names == name] for name in sorted(set(names.tolist()))}
    return {name: {"problems": len(values), **asdict(problem_interval(values, rng))} for name, values in groups.items()}
