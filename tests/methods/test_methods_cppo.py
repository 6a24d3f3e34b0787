"""CPPO: the paper's rule and its two codes, against losses written out by hand."""

from dataclasses import replace

import pytest
import torch
from arrays import rewards_of, tensor
from one_step import kept, loss_of, step_of
from tiny_policy import GRPO_BY_HAND

from dppo.methods import METHODS
from dppo.methods.cppo import kept_tokens
from dppo.objective import group_advantages

BY_HAND = {"cppo_trl": replace(GRPO_BY_HAND, divided="bnpo")}
CPPO, CPPO_TRL, CPPO_VERL = (METHODS[name] for name in ("cppo", "cppo_trl", "cppo_verl"))
GROUPS = ([1, 0, 0, 1, 0, 0, 0, 0], [0] * 8, [1, 0, 1, 1, 0, 1, 0, 0.5])
ADVANTAGE_N = group_advantages(rewards_of(*GROUPS))


def ranked(first, size):
    """So many rows from ``first`` on by the size of their advantage, ties by index, in plain Python."""
    return sorted(range(first, first + size), key=lambda i: (-abs(ADVANTAGE_N[i].item()), i))


@pytest.mark.parametrize(("rate", "count"), [(0.5, 4), (0.75, 2), (0.875, 1), (0.3, 5), (0.9, 1)])
def test_the_largest_of_each_group_are_kept_and_averaged(rate, count):
    """The paper: in each group floor(G * (1 - P)) of the largest, one at least, and a mean over them."""
    method = CPPO.with_rates(completion=rate)
    plan, rows = step_of(method, *GROUPS), [i for first in (0, 8, 16) for i in ranked(first, 8)[:count]]
    assert kept(plan) == sorted(i for i in rows if ADVANTAGE_N[i])
    by_hand = -ADVANTAGE_N[rows].sum().item() / len(rows)
    assert loss_of(method, plan) == pytest.approx(by_hand, abs=1e-12), "those without a gradient count in the mean"


@pytest.mark.parametrize(
    ("processes", "rate", "dropped"), [(1, 0.5, 12), (1, 0.9, 21), (1, 0.3, 7), (3, 0.5, 4), (3, 0.9, 7), (3, 0.3, 2)]
)
def test_cppo_as_in_its_code_for_trl(processes, rate, dropped):
    """Each process drops int(N * P) rows of its own and takes a mean over the tokens left."""
    method, size = CPPO_TRL.with_rates(completion=rate), 24 // processes
    plan, means = step_of(method, *GROUPS, process_N=torch.arange(24) // size), []
    tokens_N = plan.completions.tokens_N
    for first in range(0, 24, size):
        rows = ranked(first, size)[: size - dropped]
        means.append(-(ADVANTAGE_N[rows] * tokens_N[rows]).sum().item() / tokens_N[rows].sum().item())
    assert loss_of(method, plan) == pytest.approx(sum(means) / processes, abs=1e-12)


@pytest.mark.parametrize(("rate", "count"), [(0.5, 12), (0.9, 2), (0.3, 16)])
def test_cppo_as_in_its_code_for_verl(rate, count):
    """Over the whole step int(N * (1 - P)) rows are kept; their sum of means is divided by all N: (1 - P) smaller."""
    method, rows = CPPO_VERL.with_rates(completion=rate), ranked(0, 24)[:count]
    by_hand = -ADVANTAGE_N[rows].sum().item() / 24
    assert loss_of(method, step_of(method, *GROUPS)) == pytest.approx(by_hand, abs=1e-12)


def test_dividing_by_the_tokens_kept_is_biased_with_the_right_weights_too():
    """The wrong twin of a fixed denominator: a ratio of two random numbers, here over every independent draw."""
    value, tokens, prob = (tensor(v) for v in ([1, -2, 4], [5, 1, 2], [0.5, 0.5, 0.5]))
    masks = [torch.tensor([bool(n & 1), bool(n & 2), bool(n & 4)]) for n in range(8)]
    exact = (value * tokens).sum() / tokens.sum()
    fixed = sum((keep / prob * value * tokens).sum() for keep in masks) / 8 / tokens.sum()
    ratio = [kept_tokens(keep, tokens, torch.zeros(3, dtype=torch.int64)) / prob for keep in masks]
    assert abs(fixed - exact) < 1e-12
    assert abs(sum((w * value * tokens).sum() for w in ratio) / 8 / tokens.sum() - exact) > 0.05
    assert "sums are divided by the tokens that are kept" in CPPO_TRL.biases()[0]
