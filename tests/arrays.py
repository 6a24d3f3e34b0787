"""Small inputs that tests write out, in double precision, and what probabilities save, by its formula."""

import torch

from dppo.types import Candidates, Rewards


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def rewards_of(*groups, weights=None):
    """Rewards of groups of any sizes; a reward is a number, or a list with one of each function."""
    rows = [row if isinstance(row, list) else [float(row)] for group in groups for row in group]
    return Rewards(
        reward_NF=tensor(rows),
        group_N=torch.tensor([number for number, group in enumerate(groups) for _ in group]),
        weight_F=None if weights is None else tensor(weights),
    )


def candidates_of(signal, *, tokens=None, seen=None, rows=None):
    """Candidates with these signals; by default of one token each, in the rows 0, 1, ..., all with a history."""
    size = len(signal)
    return Candidates(
        row_P=torch.arange(size) if rows is None else torch.tensor(rows),
        signal_P=tensor(signal),
        tokens_P=tensor([1.0] * size if tokens is None else tokens),
        seen_P=torch.tensor([True] * size if seen is None else seen, dtype=torch.bool),
    )


def present(values):
    """What is there of some numbers, one at a time."""
    return [value for value in values if value == value]


def mean(values):
    known = present(values)
    return sum(known) / len(known) if known else float("nan")


def spread(values):
    """Their deviation with n - 1; without a second value there is none."""
    known = present(values)
    return (sum((v - mean(known)) ** 2 for v in known) / (len(known) - 1)) ** 0.5 if len(known) > 1 else float("nan")


def efficiency(prob_N, value_N, cost_N, *, paid=0.0):
    """Variance times cost of everything over that of what probabilities keep; ``paid`` is no choice's."""
    live_N = value_N > 0
    if not live_N.any():
        return 1.0
    whole, kept = paid + cost_N.sum(), paid + (prob_N * cost_N).sum()
    return float(value_N[live_N].sum() / (value_N / prob_N)[live_N].sum() * (whole / kept))
