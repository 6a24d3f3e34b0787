"""DPPO: the paper's rule drawn at random, ours, Algorithm 1, a control without weights, and what they go on top of."""

import pytest
import torch
from one_step import kept, step_of
from refusals import refused
from tiny_policy import at_rates, full_gradient, relative_error

from dppo.errors import ConfigError
from dppo.methods import METHODS, OBJECTIVES, SCHEMES, combined
from dppo.pruning import KEPT_MEAN

DPPO, THRESHOLD = METHODS["dppo"], METHODS["dppo_threshold"]
RARE = [1, 0, 0, 0, 0, 0, 0, 0]
"""The mean of abs(A) is between the one that is right, 2.47, and the others, 0.35."""


def test_the_papers_rule_drops_completions_below_the_mean_with_the_rate():
    for rate in (0.3, 0.5, 0.7):
        plan = step_of(THRESHOLD.with_rates(completion=rate), RARE, RARE)
        assert plan.prob_UN[0].view(2, 8).tolist() == [[1.0] + [1 - rate] * 7] * 2
        low = plan.weight_UN[0].view(2, 8)[:, 1:]
        assert set(low.flatten().tolist()) <= {0.0, 1 / (1 - rate)}, "one over the probability, not over what is kept"
        assert int((low > 0).sum()) in (int(14 * (1 - rate)), int(14 * (1 - rate)) + 1), "a fixed size"


def test_ours_draws_in_proportion_to_the_expected_gradient():
    """Tokens 1 and 4 of a mean within completions: |A| / sqrt(n) is 1 : 1/2."""
    plan = step_of(DPPO, [1, 0] * 4, tokens=[1, 4] * 4)
    assert plan.prob_UN[0].tolist() == pytest.approx([2 / 3, 1 / 3] * 4)
    assert len(kept(plan)) == 4


def test_algorithm_1_keeps_the_same_rows_whatever_the_seed_and_weighs_them_as_if_they_were_drawn():
    method = METHODS["dppo_deterministic"]
    plans = [step_of(method, RARE, [0, 0, 0, 2, 0, 0, 0, 0], seed=seed) for seed in range(5)]
    assert all(torch.equal(plan.weight_UN, plans[0].weight_UN) for plan in plans)
    assert {0, 11} <= set(kept(plans[0])) and len(kept(plans[0])) == 9, "2 for certain, and half of 14"
    assert set(plans[0].weight_UN.flatten().tolist()) == {0.0, 1.0, 2.0}
    assert len({tuple(kept(step_of(THRESHOLD, RARE, RARE, seed=seed))) for seed in range(5)}) > 1


def test_the_control_is_a_plain_mean_over_what_is_kept():
    method = METHODS["dppo_unweighted"]
    plan = step_of(method, RARE, RARE)
    assert plan.weight_UN[0][kept(plan)].tolist() == [16 / len(kept(plan))] * len(kept(plan))
    assert torch.equal(plan.prob_UN, step_of(DPPO, RARE, RARE).prob_UN)
    assert method.prompts.weighting is KEPT_MEAN


def test_a_method_is_no_scheme():
    """The wrong twin lost DAPO's loss without a word."""
    with refused(ConfigError, "dppo_dapo is a method", "beside gspo", "SCHEMES['dppo']"):
        combined(OBJECTIVES["gspo"], METHODS["dppo_dapo"])


@pytest.mark.parametrize("pruning", ["dppo", "dppo_threshold", "infobatch", "pods"])
@pytest.mark.parametrize("base", ["dr_grpo", "dapo", "gspo"])
def test_a_scheme_changes_what_is_dropped_and_nothing_else(base, pruning):
    method = combined(OBJECTIVES[base], SCHEMES[pruning])
    base, pruning = METHODS["dapo_loss" if base == "dapo" else base], METHODS[pruning]
    assert method.name == f"{pruning.name}_{base.name.removesuffix('_loss')}"
    for part in ("advantages", "token_loss", "normaliser", "fixes", "beta", "kl"):
        assert getattr(method, part) == getattr(base, part)
    for part in ("prompts", "completions", "schedule", "statistics"):
        assert getattr(method, part) is getattr(pruning, part)
    assert set(base.deviations) | set(pruning.deviations) == set(method.deviations)
    assert base.paper in method.paper and pruning.paper in method.paper
    assert relative_error(full_gradient(at_rates(method, 0.0, 0.0)), full_gradient(base)) == 0
