"""Cuts and head sampling: mean weights, the best allocation, and rates that ``auto`` chooses.

``tests/methods/test_methods_nat.py`` enumerates draws, beside wrong twins.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from arrays import efficiency, tensor
from refusals import refused
from scipy.optimize import isotonic_regression, minimize

from dppo.errors import DesignError, ShapeError
from dppo.pruning import TokenPruning
from dppo.pruning import tokens as tokens_module
from dppo.pruning.ceiling import rates_to
from dppo.pruning.tokens import TOKEN_AUTO, SampledTokens, best_cuts, by_uncertainty, draw_cuts, draw_tokens
from dppo.rng import Purpose, generator

LENGTHS = (4, 3, 1)
MASK_NT = torch.arange(4) < torch.tensor(LENGTHS)[:, None]
MOMENT_NT = torch.tensor([[4.0, 1.0, 2.0, 0.5], [0.0, 3.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]).double()
TOTAL = sum(LENGTHS)


def rng(*key):
    return generator(0, Purpose.CHECK, *key)


def reach_of(share=0.5, floor=0.05):
    return best_cuts(MOMENT_NT, MASK_NT, 1 - share, floor)


@pytest.mark.parametrize("head", [None, 0.6])
def test_drawn_weights_average_to_one(head):
    reach_NT = reach_of()
    head_NT = None if head is None else by_uncertainty(MOMENT_NT, MASK_NT, 1 - head, 0.2)
    draws = [draw_tokens(reach_NT, head_NT, rng(place)) for place in range(6000)]
    weight_MNT = torch.stack([draw.weight_NT for draw in draws])
    error_NT = (weight_MNT.mean(0) - 1.0) / (weight_MNT.std(0) / len(draws) ** 0.5).clamp_min(1e-9)
    # Eight tokens, a bound of 4.5 standard errors: missed by chance once in 20,000 builds.
    assert error_NT[MASK_NT].abs().max() < 4.5
    for draw in draws[:50]:
        kept_NT = draw.weight_NT > 0
        assert torch.equal(draw.weight_NT[kept_NT], 1 / draw.prob_NT[kept_NT])
        assert not (kept_NT & (torch.arange(4) >= draw.length_N[:, None])).any()


def test_tokens_kept_cost_the_budget_and_vary_less_than_with_independent_cuts():
    reach_NT = reach_of().repeat(8, 1)
    kept = np.array([draw_cuts(reach_NT, rng(place)).sum().item() for place in range(2000)])
    apart = np.array([(reach_NT.numpy() > rng(place).random((24, 1))).sum() for place in range(2000)])
    assert kept.mean() == pytest.approx(0.5 * TOTAL * 8, rel=0.01)
    assert kept.std() < 0.8 * apart.std()


def test_pooling_is_isotonic_regression():
    for seed in range(50):
        moment, cost = rng(seed).random((2, 12)) + 0.01
        owner = np.repeat([0, 1, 2], [5, 1, 6])
        pool_moment, pool_cost, pool = tokens_module.pool_numbers(moment, cost, owner)
        found = (pool_moment / pool_cost)[pool]
        for completion in range(3):
            own = owner == completion
            wanted = isotonic_regression(moment[own] / cost[own], weights=cost[own], increasing=False).x
            assert np.allclose(found[own], wanted)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_no_other_probabilities_that_never_rise_have_less_variance(share):
    reach_NT = reach_of(share)
    found = reach_NT[MASK_NT].numpy()
    assert found.sum() == pytest.approx(share * TOTAL) and found.min() >= 0.05 and found.max() <= 1
    moment, owner = MOMENT_NT[MASK_NT].numpy(), MASK_NT.nonzero()[:, 0].numpy()
    inside = np.flatnonzero(owner[1:] == owner[:-1])
    best = minimize(
        lambda prob: (moment / prob).sum(),
        np.full(TOTAL, share),
        bounds=[(0.05, 1)] * TOTAL,
        constraints=[
            {"type": "eq", "fun": lambda prob: prob.sum() - share * TOTAL},
            {"type": "ineq", "fun": lambda prob: prob[inside] - prob[inside + 1]},
        ],
    )
    assert (moment / found).sum() == pytest.approx(best.fun, rel=1e-5)
    assert (np.diff(found)[inside] <= 0).all()


def test_moments_are_zero_where_the_policy_was_sure_and_where_there_is_no_token():
    logp_NT = torch.tensor([[0.0, -float("inf"), np.log(0.5), float("nan")]])
    tokens = SampledTokens(logp_NT=logp_NT, mask_NT=torch.tensor([[True, True, True, False]]))
    assert tokens.moments(torch.tensor([-2.0])).tolist() == [[0.0, 4.0, pytest.approx(1.0), 0.0]]


def test_bad_calls_are_named_and_only_beside_a_cut_are_tokens_said_to_stand_before_it():
    with refused(ShapeError, "gap"):
        best_cuts(MOMENT_NT, torch.tensor([[1, 0, 1, 0]]).bool().expand(3, 4), 0.5, 0.1)
    with refused(ShapeError, "bool"):
        by_uncertainty(MOMENT_NT, MASK_NT.long(), 0.5, 0.1)
    with refused(DesignError, "floor=0.5"):
        best_cuts(MOMENT_NT, MASK_NT, 7 / 8, 0.5)
    with refused(DesignError, "head_NT"):
        draw_tokens(reach_of(), MASK_NT * 0.0, rng())
    assert str(TokenPruning(head_rate=0.5)).startswith("0.5 of the tokens withheld from the head (")
    assert "; 0.5 of the tokens before it withheld from the head (" in str(TokenPruning(rate=0.5, head_rate=0.5))


# ``token_prune_rate: auto`` cuts nothing where cuts would gain less than they must.

COMPLETIONS, TOKENS = 64, 50
ALIKE = torch.ones(COMPLETIONS, TOKENS, dtype=torch.float64)
SPAN_NT = ALIKE.bool()
LEVEL = TokenPruning(rate=TOKEN_AUTO.largest, auto=TOKEN_AUTO)


def chosen(moment_NT, cost, auto=TOKEN_AUTO):
    """The rate where a generated token costs ``cost`` of one that is trained on; groups have four completions."""
    level = replace(LEVEL, auto=replace(auto, rollout_cost=cost))
    return level.at_chosen_rate(moment_NT, SPAN_NT, torch.arange(COMPLETIONS) // 4, rolled_out=ALIKE.numel()).rate


def gains(moment_NT, cost):
    """What every rate saves at equal variance, by the probabilities that a draw at it would have, 0 included."""
    found, (moment_S, one_S) = {0.0: 1.0}, (moment_NT[SPAN_NT], ALIKE[SPAN_NT])
    for rate in rates_to(LEVEL.rate):
        reach_NT = best_cuts(moment_NT, SPAN_NT, rate, LEVEL.at_rate(rate).floor)
        found[rate] = efficiency(reach_NT[SPAN_NT], moment_S, one_S, paid=cost * len(one_S))
    return found


def first_tokens(times):
    """The first ten tokens of each completion, that many times as large as the others."""
    return tensor([times] * 10 + [1.0] * (TOKENS - 10)).square() * ALIKE


def one_of_four(times):
    """The first completion of each group, that many times as large as the others."""
    return tensor([times, 1.0, 1.0, 1.0]).square().repeat(COMPLETIONS // 4)[:, None] * ALIKE


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
    assert best > TOKEN_AUTO.least_gain if rate else best < 1.01
    assert not rate or min(r for r, gain in found.items() if gain >= 1 + TOKEN_AUTO.enough * (best - 1)) == rate


def test_counting_rollouts_twice_is_caught(monkeypatch):
    right = tokens_module.selection_ceiling
    monkeypatch.setattr(tokens_module, "selection_ceiling", lambda *of, paid: right(*of, paid=2 * paid))
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
        if max(found.values()) < 1.01:
            assert rate == 0.0
            twin += chosen(moment_NT, cost, replace(TOKEN_AUTO, least_gain=1.0)) > 0
        monkeypatch.setattr(tokens_module, "selection_ceiling", lambda *_, **__: np.inf)
        assert chosen(moment_NT, cost) == rate, "a look at every rate finds the same"
        monkeypatch.undo()
        off, on = off + (rate == 0), on + (rate > 0)
    assert min(off, on) > 10 and twin > 3
