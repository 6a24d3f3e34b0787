"""``token_prune_rate: auto`` cuts nothing where cuts would gain less than they must, and goes on cutting elsewhere."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from arrays import efficiency, tensor

from dppo.pruning import TokenPruning, tokens
from dppo.pruning.ceiling import rates_to
from dppo.pruning.tokens import TOKEN_AUTO, best_cuts
from dppo.rng import Purpose, generator

COMPLETIONS, TOKENS, GROUP = 64, 50, 4
SPAN_NT = torch.ones(COMPLETIONS, TOKENS).bool()
ALIKE = torch.ones(SPAN_NT.shape, dtype=torch.float64)
NO_LEAST = replace(TOKEN_AUTO, least_gain=1.0)
"""The wrong twin cuts as soon as it gains anything."""
ONE_PERCENT = 1.01
LEVEL = TokenPruning(rate=TOKEN_AUTO.largest, auto=TOKEN_AUTO)


def chosen(moment_NT, cost, auto=TOKEN_AUTO):
    """The rate where a generated token costs ``cost`` of one that is trained on."""
    level = replace(LEVEL, auto=replace(auto, rollout_cost=cost))
    group_N = torch.arange(COMPLETIONS) // GROUP
    return level.at_chosen_rate(moment_NT, SPAN_NT, group_N, rolled_out=SPAN_NT.sum().item()).rate


def gains(moment_NT, cost):
    """What every rate saves at equal variance, by the probabilities that a draw at it would have, 0 included."""
    moment_S, one_S = moment_NT[SPAN_NT], ALIKE[SPAN_NT]
    found = {0.0: 1.0}
    for rate in rates_to(LEVEL.rate):
        reach_NT = best_cuts(moment_NT, SPAN_NT, rate, LEVEL.at_rate(rate).floor)
        found[rate] = efficiency(reach_NT[SPAN_NT], moment_S, one_S, paid=cost * len(one_S))
    return found


def first_tokens(times):
    """The first ten tokens of each completion, that many times as large as the others."""
    return tensor([times] * 10 + [1.0] * (TOKENS - 10)).square().repeat(COMPLETIONS, 1)


def one_of_four(times):
    """The first completion of each group, that many times as large as the others."""
    return tensor([times, 1.0, 1.0, 1.0]).square().repeat(COMPLETIONS // GROUP)[:, None].repeat(1, TOKENS)


CASES = {
    "tokens alike": (ALIKE, 1.0, 0.0),
    "the last tokens are the large ones": (first_tokens(30.0).flip(1), 0.0, 0.0),
    "training is cheap beside the rollout": (first_tokens(30.0), 1024.0, 0.0),
    "a little larger at the start": (first_tokens(1.2), 0.0, 0.0),
    "a little larger in one of four": (one_of_four(1.15), 0.0, 0.0),
    "three times as large at the start": (first_tokens(3.0), 1.0, 0.0),
    "large at the start": (first_tokens(30.0), 1.0, 0.7),
    "large at the start, rollouts cheap": (first_tokens(30.0), 0.0, 0.8),
    "large in one of four": (one_of_four(30.0), 1.0, 0.7),
    "large at the start, rollouts dear": (first_tokens(30.0), 8.0, 0.6),
}
"""Moments, the cost of a generated token, and the rate that is right."""


@pytest.mark.parametrize("case", CASES)
def test_the_rate_has_nearly_all_that_is_gained_and_is_0_where_no_rate_gains_a_percent(case):
    moment_NT, cost, rate = CASES[case]
    found = gains(moment_NT, cost)
    best = max(found.values())
    assert chosen(moment_NT, cost) == rate
    if rate:
        assert min(rate for rate, gain in found.items() if gain >= 1 + TOKEN_AUTO.enough * (best - 1)) == rate
        assert best > TOKEN_AUTO.least_gain
    else:
        assert best < ONE_PERCENT


def test_counting_rollouts_twice_is_caught(monkeypatch):
    right = tokens.selection_ceiling
    monkeypatch.setattr(tokens, "selection_ceiling", lambda *of, paid: right(*of, paid=2 * paid))
    moment_NT, cost, rate = CASES["large at the start, rollouts dear"]
    assert chosen(moment_NT, cost) != rate


def test_of_tokens_of_every_kind_none_is_cut_for_less_than_a_percent(monkeypatch):
    """Sizes and lengths of doubt at random, and what a generated token costs; the wrong twin does cut for less."""
    rng, off, on, twin = generator(0, Purpose.CHECK, 28), 0, 0, 0
    for _ in range(60):
        size_NT = np.exp(rng.uniform(0, 2) * rng.standard_normal((COMPLETIONS, TOKENS)))
        fading_T = np.exp(-rng.uniform(0, 0.1) * np.arange(TOKENS))
        moment_NT, cost = torch.from_numpy((size_NT * fading_T) ** 2), 2.0 ** rng.integers(-3, 6)
        found, rate = gains(moment_NT, cost), chosen(moment_NT, cost)
        assert rate == 0.0 or found[rate] >= TOKEN_AUTO.least_gain
        if max(found.values()) < ONE_PERCENT:
            assert rate == 0.0
            twin += chosen(moment_NT, cost, NO_LEAST) > 0
        monkeypatch.setattr(tokens, "selection_ceiling", lambda *_, **__: np.inf)
        assert chosen(moment_NT, cost) == rate, "a look at every rate finds the same"
        monkeypatch.undo()
        off, on = off + (rate == 0), on + (rate > 0)
    assert min(off, on) > 10 and twin > 3
