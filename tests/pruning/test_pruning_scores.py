"""Scores by hand; each stated property of a score and a rule is what the function does."""

import pytest
import torch
from torch import nn

from dppo.errors import ConfigError, DesignError
from dppo.pruning import (
    RULES,
    SCORES,
    Budget,
    TokenPruning,
    advantage_with_length,
    advantage_with_uncertainty,
    all_alike,
    best_cuts,
    random_prefix,
    uncertainty,
)
from dppo.pruning.probabilities import stated, stating
from dppo.pruning.tokens import by_uncertainty
from dppo.types import Completions


def completions(**changes) -> Completions:
    given = {
        "advantage_N": torch.tensor([2.0, -1.0, 0.0]),
        "tokens_N": torch.tensor([9, 4, 0]),
        "group_N": torch.zeros(3, dtype=torch.long),
        "live_N": torch.tensor([True, True, False]),
        "uncertainty_N": torch.tensor([0.5, 2.0, 0.0]),
    }
    return Completions(**(given | changes))


def test_the_norm_of_a_mean_over_tokens_is_divided_by_them():
    mean = completions(averaged_N=torch.tensor([9, 4, 1]))
    assert advantage_with_length(mean).tolist() == [6 / 9, 0.5, 0]
    assert advantage_with_uncertainty(mean).tolist() == [1 / 9, 0.5, 0]


def test_scores_with_the_length_are_right_about_independent_tokens():
    """Gradients of tokens that are a random walk: the sum of n has norm sqrt(n), their mean 1 / sqrt(n)."""
    step = torch.randn(20_000, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    length = torch.tensor([1, 4, 16, 64])
    rows = {"advantage_N": torch.ones(4), "tokens_N": length, "group_N": length, "live_N": length > 0}
    rows["uncertainty_N"] = None
    for averaged_N, power in ((None, 1.0), (length, -1.0)):
        walked = torch.stack([step[:, :n].sum(1) / (1 if averaged_N is None else n) for n in length])
        norm = walked.square().mean(1).sqrt()
        score = advantage_with_length(completions(**rows, averaged_N=averaged_N))
        torch.testing.assert_close(score, norm, rtol=0.03, atol=0)
        torch.testing.assert_close(score, length.double().sqrt() ** power)


def test_uncertainty_is_the_size_of_the_gradient_at_the_sampled_logits():
    """d log p_t / d logit_t = 1 - p_t: taken from autograd, not from the formula."""
    logits = torch.randn(1, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    token = torch.tensor([[[1], [3], [0], [5]]])
    logp = nn.functional.log_softmax(logits, -1).gather(2, token).squeeze(2)
    (gradient,) = torch.autograd.grad(logp.sum(), logits)
    expected = gradient.gather(2, token).squeeze().norm()
    torch.testing.assert_close(uncertainty(logp.detach(), torch.ones(1, 4)).squeeze(), expected)


TOKEN_RULES = (best_cuts, random_prefix, by_uncertainty, all_alike)
SPAN_NT = torch.arange(12) < torch.tensor([[12], [7], [9]])


def score_is_as_stated(score) -> bool:
    mean = score(completions(averaged_N=torch.tensor([9, 4, 1])))
    divided = torch.equal(mean, score(completions()) / torch.tensor([9.0, 4.0, 1.0]))
    try:
        score(completions(uncertainty_N=None))
        needs = False
    except ConfigError:
        needs = True
    return (needs, divided) == (stated(score).needs_log_probs, stated(score).of_sums)


def rule_spends_all(rule) -> bool:
    """Whether what it keeps costs ``1 - rate``, of scores and costs that differ."""
    generator = torch.Generator().manual_seed(0)
    score_N, cost_N = torch.rand(2, 50, generator=generator, dtype=torch.float64) + 0.1
    kept = (rule(score_N, Budget(rate=0.4, floor=0.1, cost_N=cost_N)) * cost_N).sum()
    return abs(float(kept - 0.6 * cost_N.sum())) < 1e-9 and not torch.equal(
        rule(score_N, Budget(rate=0.4, floor=0.1, cost_N=cost_N)), rule(score_N.flip(0), Budget(rate=0.4, floor=0.1))
    )


def token_rule_is_as_stated(rule) -> bool:
    generator = torch.Generator().manual_seed(1)
    one, other = (torch.rand(3, 12, generator=generator, dtype=torch.float64) for _ in range(2))
    same = torch.equal(rule(one, SPAN_NT, 0.3, 0.05), rule(other, SPAN_NT, 0.3, 0.05))
    try:
        rule(one, SPAN_NT, 0.7, 0.05)
        more = True
    except DesignError:
        more = False
    return (not same, more) == (stated(rule).by_moments, stated(rule).largest_rate > 0.7)


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    assert score_is_as_stated(SCORES[name])


@pytest.mark.parametrize("name", RULES)
def test_rules(name):
    assert rule_spends_all(RULES[name]) == stated(RULES[name]).spends_budget


@pytest.mark.parametrize("rule", TOKEN_RULES, ids=lambda rule: rule.__name__)
def test_token_rules(rule):
    assert token_rule_is_as_stated(rule)


def unstated(function):
    """The same function without its properties."""
    return lambda *given: function(*given)


def test_a_function_of_ours_has_its_properties_and_another_one_the_defaults():
    assert TokenPruning(rate=0.5, cut_rule=best_cuts).needs_log_probs
    assert not TokenPruning(rate=0.5, cut_rule=unstated(best_cuts)).needs_log_probs


def test_a_wrong_statement_is_found():
    assert not score_is_as_stated(stating(of_sums=False, needs_log_probs=True)(unstated(SCORES["length"])))
    assert rule_spends_all(unstated(RULES["proportional"]))
    assert not token_rule_is_as_stated(unstated(random_prefix))
    assert not token_rule_is_as_stated(unstated(best_cuts))
