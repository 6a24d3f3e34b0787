"""Rankings: whom a completion competes with, CPPO as in its paper and codes, and PODS, by hand and by brute force."""

from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch
from arrays import rewards_of, tensor
from hypothesis import given
from hypothesis import strategies as st
from one_step import kept, loss_of, step_of
from tiny_policy import GRPO_BY_HAND, at_rates, expectation, relative_error

from dppo.context import NOTHING_KNOWN
from dppo.methods import METHODS
from dppo.methods.cppo import all_but_dropped, kept_tokens
from dppo.methods.pods import at_least_two, widest
from dppo.methods.ranking import Ranking, kept_share, largest, one_each
from dppo.objective import group_advantages
from dppo.pruning import POISSON, absolute_advantage
from dppo.rng import generator
from dppo.types import Completions

CPPO, CPPO_TRL, CPPO_VERL, PODS = (METHODS[name] for name in ("cppo", "cppo_trl", "cppo_verl", "pods"))
GROUPS = ([1, 0, 0, 1, 0, 0, 0, 0], [0] * 8, [1, 0, 1, 1, 0, 1, 0, 0.5])
ADVANTAGE_N = group_advantages(rewards_of(*GROUPS))
RANKING = Ranking(
    score=absolute_advantage, choose=largest, count=kept_share, weigh=one_each, reasons=("ranked", "weighted")
)


def chosen(*values, groups=None, process_N=None, **changes):
    """Places that are kept of completions with these advantages."""
    rows = Completions(
        advantage_N=tensor(values),
        tokens_N=torch.ones(len(values)),
        group_N=torch.zeros(len(values), dtype=torch.int64) if groups is None else torch.tensor(groups),
        live_N=tensor(values) != 0,
        process_N=process_N,
    )
    return replace(RANKING, **changes).draw(rows, generator(0)).keep_N.nonzero()[:, 0].tolist()


def test_counts_are_exact_whatever_a_rate_is_in_binary():
    """The wrong twin rounds 1 - 0.9 in binary, and keeps one less."""
    for rate in (0.0, 0.1, 0.3, 0.5, 0.7, 0.75, 0.8, 0.875, 0.9, 0.9375, 0.95):
        exact = Fraction(str(rate))
        for size in (*range(1, 65), 160):
            assert kept_share(size, exact) == max(size * (1 - exact) // 1, 1)
            assert all_but_dropped(size, exact) == size - size * exact // 1
            if rate:
                assert len(chosen(*range(1, size + 1), rate=rate)) == kept_share(size, exact)
                counted = chosen(*range(1, size + 1), rate=rate, count=all_but_dropped)
                assert len(counted) == all_but_dropped(size, exact)
    assert int(160 * (1 - 0.9)) == 15 and kept_share(160, Fraction("0.9")) == 16


def test_rows_compete_with_those_of_the_same_number_wherever_they_lie():
    values = (5, 6, 7, 8, 1, 2, 3, 4)
    assert chosen(*values, groups=[9, 9, 9, 9, 4, 4, 4, 4]) == [2, 3, 6, 7]
    assert chosen(*values, compete="step") == [0, 1, 2, 3]
    assert chosen(*values, groups=[0, 1] * 4) == [0, 1, 2, 3]
    assert chosen(*values, process_N=torch.tensor([0, 0, 0, 0, 0, 0, 1, 1]), compete="process") == [1, 2, 3, 7]
    assert chosen(*values, compete="process") == [0, 1, 2, 3], "one process where none is named"


def test_a_competition_across_prompts_is_no_choice_within_a_prompt():
    assert RANKING.prompt_exact
    for compete in ("step", "process"):
        across = replace(RANKING, compete=compete)
        assert not across.prompt_exact and across.at_rate(0.0).prompt_exact


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


SCORE = st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.5, 2.0]) | st.floats(0, 3)


@given(score=st.lists(SCORE, min_size=2, max_size=8), data=st.data())
def test_the_widest_subset_is_the_best_of_all_subsets(score, data):
    count = data.draw(st.integers(2, len(score)))
    places = widest(np.array(score), count)
    assert len(set(places.tolist())) == count
    best = max(np.var(subset) for subset in combinations(score, count))
    assert np.var(np.array(score)[places]) == pytest.approx(best, rel=1e-9, abs=1e-9)


def test_the_largest_deviations_are_not_the_widest_subset_which_has_two_members_at_least():
    """The wrong twin: two far from the mean on the same side differ little from each other."""
    score = np.array([0, 0.1, 0.2, 5, 5, 5, 5])
    farthest = score[largest(np.abs(score - score.mean()), 3)]
    assert farthest.tolist() == [0, 0.1, 0.2] and score[widest(score, 3)].var() > 10 * farthest.var()
    assert [at_least_two(size, Fraction(9, 10)) for size in (1, 2, 10, 30)] == [1, 2, 2, 3]


def test_both_ends_of_each_group_are_trained_with_statistics_of_their_own():
    plan = step_of(PODS, *GROUPS)
    assert kept(plan) == [0, 1, 2, 3, 16, 17, 18, 20], "of the silent group nothing is forwarded"
    first_N = tensor([1.0, -1, -1, 1, 0, 0, 0, 0]) * 0.865875
    torch.testing.assert_close(plan.advantage_N[:8], first_N, atol=1e-6, rtol=0)
    assert plan.advantage_N.nonzero()[:, 0].tolist() == kept(plan)
    assert plan.advantage_N[:8].sum().abs() < 1e-12, "unlike those of top k, which sum to 2.16"
    assert set(plan.weight_UN.flatten().tolist()) == {0.0, 2.0}
    subsets = [GROUPS[0][i] for i in (0, 1, 2, 3)], [GROUPS[2][i] for i in (0, 1, 2, 4)]
    by_hand = -group_advantages(rewards_of(*subsets)).sum().item() / 12
    assert loss_of(PODS, plan) == pytest.approx(by_hand, abs=1e-12)


def test_statistics_of_those_kept_are_biased_under_any_draw():
    dppo, wanted = METHODS["dppo"], GRPO_BY_HAND.gradient()
    method = at_rates(dppo, 0.0, 0.5, statistics=PODS.statistics)
    assert "of the completions kept" in method.selection_bias[0]
    whole = at_rates(method, 0.5, 0.0)  # with no completion pruned they are those of the whole group
    assert not whole.biases() and relative_error(expectation(whole), wanted) < 1e-12

    def own_statistics(outcome):
        of_kept = partial(PODS.statistics.compute, method.advantages, outcome.plan.rewards, NOTHING_KNOWN)
        return outcome.at_advantages(outcome.weight_UN, map(of_kept, outcome.weight_UN > 0))

    for design in (dppo.completions.design, POISSON):
        plain = replace(dppo, completions=replace(dppo.completions, design=design))
        assert relative_error(expectation(plain, own_statistics), wanted) > 1e-2
