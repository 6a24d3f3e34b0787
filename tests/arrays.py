"""Small inputs that tests write out: numbers in double precision, and rewards of groups of any sizes."""

import torch

from dppo.types import Rewards


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
