"""A denominator that is a number of tokens, where prompts are drawn or groups differ in size: what history expects."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from drafts import Run

from dppo.methods import METHODS
from dppo.objective import DAPO_TOKENS
from dppo.pruning import PromptPrior
from dppo.step import RolledOut, drafted
from dppo.step import prompts as step_prompts
from dppo.types import Rewards

SIZE, PROMPTS, GROUP, EPOCHS = 160, 16, 8, 8
PER_EPOCH = SIZE // PROMPTS
TOKENS = replace(METHODS["dppo"], normaliser=DAPO_TOKENS).with_rates(prompt=0.5, completion=0.0)
SIZES = replace(METHODS["dppo_history_sizes"], normaliser=DAPO_TOKENS).with_rates(completion=0.0)


def step(run, number, tokens, rng):
    """The plan of a step whose completions have about so many tokens, each of which may be right or wrong."""
    block = run.block(number, generations=GROUP)
    sizes = torch.full((len(block.row_Q),), GROUP) if block.size_Q is None else block.size_Q
    rewards = Rewards.in_groups(torch.from_numpy(rng.integers(0, 2, (int(sizes.sum()), 1))).double(), sizes)
    drawn = torch.from_numpy(rng.poisson(tokens, int(sizes.sum())))
    plan = drafted(run.method, RolledOut(rewards=rewards, tokens_N=drawn), block, max_tokens=10 * tokens)
    run.learn(plan, number)
    return plan


def lengths(first, last):
    """What all candidates have over the denominator, the mean of each epoch from the second on."""
    run = Run.over(SIZE, TOKENS, prompts=PROMPTS, half_life=3 * PER_EPOCH)
    rng, found = np.random.default_rng(0), []
    steps = PER_EPOCH * EPOCHS
    for number in range(steps):
        tokens = round(first + (last - first) * number / steps)
        found.append(PROMPTS * GROUP * tokens / step(run, number, tokens, rng).sizes.denominator)
    return [float(np.mean(found[at : at + PER_EPOCH])) for at in range(PER_EPOCH, steps, PER_EPOCH)]


@pytest.mark.parametrize(("first", "last"), [(100, 1000), (1000, 100)])
def test_it_follows_the_lengths_of_completions(first, last):
    found = lengths(first, last)
    assert all(abs(each - 1) < 0.2 for each in found), found


def test_wrong_twin_what_history_expects_alone_lags_behind(monkeypatch):
    monkeypatch.setattr(step_prompts.PromptSource, "_growth", lambda self: 1.0)
    assert lengths(100, 1000)[-1] > 1.5 and lengths(1000, 100)[-1] < 0.5


@pytest.mark.parametrize("prior", [None, PromptPrior(rate_P=torch.linspace(0.1, 0.9, 8).double(), completions=4.0)])
def test_group_sizes_by_a_prior_wait_until_tokens_are_known(prior):
    """A prior says nothing of lengths: a denominator by it would be of completions of one token."""
    run, rng = Run.over(8, SIZES, prompts=8, prior=prior), np.random.default_rng(0)
    first, second = (step(run, number, 500, rng) for number in range(2))
    assert first.prompts.size_Q is None and second.prompts.size_Q is not None
    assert abs(first.sizes.denominator / second.sizes.denominator - 1) < 0.05
    by_completions = Run.over(8, METHODS["dppo_history_sizes"], prompts=8, prior=prior)
    assert (by_completions.block(0, generations=GROUP).size_Q is None) == (prior is None)
