"""A denominator that is a number of tokens, where prompts are drawn or groups differ in size: what history expects."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from drafts import Run

from dppo.methods import METHODS
from dppo.objective import DAPO_TOKENS
from dppo.pruning import PromptPrior
from dppo.step import PromptSource, RolledOut, drafted
from dppo.types import Rewards

SIZE, PROMPTS, GROUP, EPOCHS = 160, 16, 8, 8
PER_EPOCH = SIZE // PROMPTS
TOKENS = replace(METHODS["dppo"], normaliser=DAPO_TOKENS).with_rates(prompt=0.5, completion=0.0)
SIZES = METHODS["dppo_history_sizes"].with_rates(completion=0.0)
PRIOR = PromptPrior(rate_P=torch.linspace(0.1, 0.9, 8).double(), completions=4.0)


def step(run, number, tokens, rng):
    """The plan of a step whose completions have about so many tokens, each of which may be right or wrong."""
    block = run.block(number, generations=GROUP)
    sizes = torch.full((len(block.row_Q),), GROUP) if block.size_Q is None else block.size_Q
    rewards = Rewards.in_groups(torch.from_numpy(rng.integers(0, 2, (int(sizes.sum()), 1))).double(), sizes)
    drawn = torch.from_numpy(rng.poisson(tokens, len(rewards)))
    plan = drafted(run.method, RolledOut(rewards=rewards, tokens_N=drawn), block, max_tokens=10 * tokens)
    run.learn(plan, number)
    return plan


def lengths(first, last):
    """What all candidates have over the denominator, the mean of each epoch from the second on."""
    run, rng = Run.over(SIZE, TOKENS, prompts=PROMPTS, half_life=3 * PER_EPOCH), np.random.default_rng(0)
    tokens = np.linspace(first, last, PER_EPOCH * EPOCHS, endpoint=False).round().astype(int)
    wanted = [step(run, number, count, rng).sizes.denominator for number, count in enumerate(tokens.tolist())]
    return (PROMPTS * GROUP * tokens / np.array(wanted)).reshape(EPOCHS, PER_EPOCH).mean(1)[1:]


@pytest.mark.parametrize(("first", "last"), [(100, 1000), (1000, 100)])
def test_it_follows_the_lengths_of_completions(first, last):
    found = lengths(first, last)
    assert (abs(found - 1) < 0.2).all(), found


def test_wrong_twin_what_history_expects_alone_lags_behind(monkeypatch):
    monkeypatch.setattr(PromptSource, "_growth", lambda self: 1.0)
    assert lengths(100, 1000)[-1] > 1.5 and lengths(1000, 100)[-1] < 0.5


@pytest.mark.parametrize("prior", [None, PRIOR])
def test_group_sizes_by_a_prior_wait_until_tokens_are_known(prior):
    """A prior says nothing of lengths: a denominator by it would be of completions of one token."""
    run = Run.over(8, replace(SIZES, normaliser=DAPO_TOKENS), prompts=8, prior=prior)
    rng = np.random.default_rng(0)
    first, second = (step(run, number, 500, rng) for number in range(2))
    assert first.prompts.size_Q is None and second.prompts.size_Q is not None
    assert abs(first.sizes.denominator / second.sizes.denominator - 1) < 0.05
    by_completions = Run.over(8, SIZES, prompts=8, prior=prior).block(0, generations=GROUP)
    assert (by_completions.size_Q is None) == (prior is None)
