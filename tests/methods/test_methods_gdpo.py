"""GDPO: TRL's ``normalize_then_sum`` written out, zeros for silent groups, and why pruning prompts is biased."""

from dataclasses import replace

import torch
from arrays import mean, present, rewards_of, spread, tensor
from hypothesis import given
from hypothesis import strategies as st
from tiny_policy import GRPO_BY_HAND, REWARD_NF, WEIGHT_F, at_rates, expectation, relative_error, z_scores

from dppo.methods import METHODS
from dppo.methods.gdpo import decoupled_advantages
from dppo.objective import group_advantages

GDPO, NAN = METHODS["gdpo"], float("nan")
WITHIN_GROUPS_N = sum(w * z_scores(reward_N) for w, reward_N in zip(WEIGHT_F, REWARD_NF.T, strict=True))
"""Each function's z-scores, weighted and summed: before the second normalisation, over the batch."""
DECOUPLED_N = (WITHIN_GROUPS_N - WITHIN_GROUPS_N.mean()) / (WITHIN_GROUPS_N.std(ddof=1) + 1e-4)
BY_HAND = dict.fromkeys(("gdpo", "dppo_gdpo"), replace(GRPO_BY_HAND, advantage_N=DECOUPLED_N))


def trl_normalize_then_sum(groups, weights):
    """TRL 1.16, one number at a time; groups may differ in size."""
    totals = []
    for group in groups:
        columns = zip(*group, strict=True)
        scaled = [[(v - mean(column)) / (spread(column) + 1e-4) for v in column] for column in columns]
        for row, line in zip(group, zip(*scaled, strict=True), strict=True):
            known = [w * v for w, v in zip(weights, line, strict=True) if v == v]
            totals.append(sum(known) if present(row) else NAN)
    whitened = [(v - mean(totals)) / (spread(totals) + 1e-4) for v in totals]
    return [0.0 if v != v else v for v in whitened]


REWARDS = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0, NAN]), min_size=2, max_size=2)
GROUPS = st.lists(st.lists(REWARDS, min_size=1, max_size=5), min_size=1, max_size=4)


@given(groups=GROUPS, weights=st.sampled_from([[1.0, 1.0], [1.0, 0.25], [2.0, -1.0]]))
def test_it_is_trls_normalize_then_sum_on_groups_of_any_sizes_with_missing_rewards(groups, weights):
    got, wanted = decoupled_advantages(rewards_of(*groups, weights=weights)), trl_normalize_then_sum(groups, weights)
    torch.testing.assert_close(got, tensor(wanted), rtol=1e-6, atol=1e-6)


def test_without_the_check_for_flat_groups_rounding_would_become_an_advantage():
    flat, other = [[0.1, 0.0]] * 3, [[0.0, 1.0], [1.0, 0.0]]
    assert any(trl_normalize_then_sum([flat, other], [1.0, 1.0])[:3])
    assert (decoupled_advantages(rewards_of(flat, other))[:3] == 0).all()


def test_without_the_second_normalisation_pruning_prompts_would_be_exact():
    def within_groups_only(rewards, context):
        functions = [replace(rewards, reward_NF=one_N1, weight_F=None) for one_N1 in rewards.reward_NF.split(1, 1)]
        return sum(w * group_advantages(one) for w, one in zip(rewards.weight_F, functions, strict=True))

    rule = replace(GDPO.advantages, compute=within_groups_only, prompt_exact=True, reason="")
    method = at_rates(GDPO, 0.5, 0.5, advantages=rule)
    wanted = replace(GRPO_BY_HAND, advantage_N=WITHIN_GROUPS_N).gradient()
    assert not method.biases() and relative_error(expectation(method), wanted) < 1e-12
