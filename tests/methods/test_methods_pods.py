"""PODS: the subset of largest variance by brute force, and advantages of that subset alone."""

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
from dppo.methods.pods import at_least_two, widest
from dppo.methods.ranking import largest
from dppo.objective import group_advantages
from dppo.pruning import POISSON

PODS = METHODS["pods"]
GROUPS = ([1, 0, 0, 1, 0, 0, 0, 0], [0] * 8, [1, 0, 1, 1, 0, 1, 0, 0.5])


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
