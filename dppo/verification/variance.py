"""What each rule and score costs in precision on a given subject, next to the best that is possible."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dppo.methods import Method
from dppo.pruning import (
    Pruning,
    Rule,
    Score,
    Selection,
    absolute_advantage,
    advantage_with_confidence,
    advantage_with_length,
    effective_sample_size,
    proportional,
    threshold,
    uniform,
    uniform_score,
)
from dppo.rng import Purpose, generator
from dppo.types import Completions
from dppo.verification.controls import TopOfLive
from dppo.verification.draws import full_batch
from dppo.verification.findings import VarianceRow
from dppo.verification.subject import Subject

KEEPS = (0.75, 0.5, 0.25)
"""Expected shares of the completions with a gradient that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the table: a rule with a score."""

    rule: str
    score: str
    pruning: Selection
    """Its rate is replaced by the one that keeps as much as asked for."""


def entries(method: Method, norm_N: Tensor) -> list[Entry]:
    """The lines of the table, the paper's and the field's rules and ours.

    The method gives floor and kind of scores (of token sums or of token means); ``norm_N`` are the true norms.
    """

    def oracle(completions: Completions) -> Tensor:
        return norm_N

    floor = getattr(method.completions, "floor", Pruning().floor)

    def entry(rule: str, score: str, function: Rule, scored: Score) -> Entry:
        return Entry(rule=rule, score=score, pruning=Pruning(score=scored, rule=function, floor=floor))

    found = [entry("uniform", "none", uniform, uniform_score)]
    scores = {
        "abs(A)": absolute_advantage,
        "abs(A) sqrt(length)": advantage_with_length,
        "abs(A) s": advantage_with_confidence,
        "oracle": oracle,
    }
    for name, score in scores.items():
        found.append(entry("threshold", name, threshold, score))
    for name, score in scores.items():
        found.append(entry("proportional", name, proportional, score))
    top = TopOfLive(score=absolute_advantage, rate=0.0)
    return [*found, Entry(rule="top k (CPPO)", score="abs(A)", pruning=top)]


def variance_table(subject: Subject, methods: Sequence[Method], *, draws: int, seed: int) -> tuple[VarianceRow, ...]:
    """Every line at every share kept, for each method's normaliser; lines of equal meaning only once.

    Methods give advantages, loss, normaliser and floor; their own pruning is not used.
    """
    rows = []
    for method in {m.normaliser.per_sequence: m for m in reversed(methods)}.values():
        full_N = full_batch(subject, method)
        norm_N = (full_N.square() * subject.gram_NN.diagonal()).sqrt()
        completions = subject.completions(method)
        for entry in entries(method, norm_N):
            for keep in KEEPS:
                pruning = at_share(entry.pruning, completions, keep)
                rows.append(_row(subject, method, entry, keep, pruning, draws, seed))
    return tuple(rows)


def at_share(pruning: Selection, completions: Completions, keep: float) -> Selection | None:
    """The selection at the rate that keeps a share of the completions with a gradient; None if no rate keeps as few.

    A rate is what a rule applies to the rows it may prune. For the threshold rule these are only those below the
    mean, so its rate must be higher to drop as much as others do.
    """
    wanted = keep * int(completions.live_N.sum())

    def at(rate: float) -> Selection:
        if isinstance(pruning, Pruning):  # its own floor as far as the rate leaves room for it
            return replace(pruning, rate=rate, floor=min(pruning.floor, 1 - rate))
        return pruning.at_rate(rate)

    def kept(rate: float) -> float:
        return float(at(rate).draw(completions, generator(0, Purpose.CHECK)).prob_N.sum())

    low, high = 1 - keep, 1 - 1e-3
    if kept(low) <= wanted * (1 + 1e-9):
        high = low
    elif kept(high) > wanted:
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) > wanted else (low, middle)
    return at(high)


def _row(
    subject: Subject, method: Method, entry: Entry, keep: float, pruning: Selection | None, draws: int, seed: int
) -> VarianceRow:
    """One line at one share kept, from many draws."""
    labels = {"normaliser": method.normaliser.name, "rule": entry.rule, "score": entry.score, "keep": keep}
    figures = ("added_variance", "added_variance_error", "effective_rows", "largest_weight")
    if pruning is None:
        return VarianceRow(**labels, **dict.fromkeys(figures, None), biased=False)
    completions, full_N = subject.completions(method), full_batch(subject, method)
    weight_MN = torch.zeros(draws, len(full_N), dtype=torch.float64)
    for index in range(draws):
        rng = generator(seed, Purpose.CHECK, index)
        weight_MN[index] = pruning.draw(completions, rng).weight_N
    error_MN = (weight_MN - 1) * full_N
    square_M = ((error_MN @ subject.gram_NN) * error_MN).sum(1) / float(full_N @ subject.gram_NN @ full_N)
    return VarianceRow(
        **labels,
        added_variance=float(square_M.mean()),
        added_variance_error=float(square_M.std()) / math.sqrt(draws),
        effective_rows=sum(map(effective_sample_size, weight_MN)) / draws,
        largest_weight=float(weight_MN.max()),
        biased=bool(pruning.bias),
    )
