"""Every stated property of a score and a rule is what the function does.

``of_sums`` is about gradients: test_pruning_scores.py compares it with random walks.
"""

import pytest
import torch

from dppo.errors import DesignError
from dppo.pruning import (
    RULES,
    SCORES,
    Budget,
    TokenPruning,
    all_alike,
    best_cuts,
    by_uncertainty,
    random_prefix,
    spends_budget,
    stated,
)
from dppo.pruning.scores import StatedScore
from dppo.pruning.tokens import TokenRule
from dppo.types import Completions

TOKEN_RULES = (best_cuts, random_prefix, by_uncertainty, all_alike)
SPAN_NT = torch.arange(12) < torch.tensor([[12], [7], [9]])


def completions(**changes) -> Completions:
    given = dict(
        advantage_N=torch.tensor([2.0, -1.0]), tokens_N=torch.tensor([9, 4]), group_N=torch.zeros(2, dtype=torch.long)
    )
    given |= dict(live_N=torch.ones(2, dtype=torch.bool), uncertainty_N=torch.tensor([0.5, 2.0]))
    return Completions(**(given | changes))


def score_is_as_stated(score: StatedScore) -> bool:
    mean = score(completions(averaged_N=torch.tensor([9, 4])))
    divided = torch.equal(mean, score(completions()) / torch.tensor([9.0, 4.0]))
    try:
        score.compute(completions(uncertainty_N=None))
        needs = False
    except AssertionError:
        needs = True
    return (needs, divided) == (score.needs_log_probs, score.of_sums)


def rule_spends_all(rule) -> bool:
    """Whether what it keeps costs ``1 - rate``, of scores and costs that differ."""
    generator = torch.Generator().manual_seed(0)
    score_N, cost_N = torch.rand(2, 50, generator=generator, dtype=torch.float64) + 0.1
    kept = (rule(score_N, Budget(rate=0.4, floor=0.1, cost_N=cost_N)) * cost_N).sum()
    return abs(float(kept - 0.6 * cost_N.sum())) < 1e-9 and not torch.equal(
        rule(score_N, Budget(rate=0.4, floor=0.1, cost_N=cost_N)), rule(score_N.flip(0), Budget(rate=0.4, floor=0.1))
    )


def token_rule_is_as_stated(rule: TokenRule) -> bool:
    generator = torch.Generator().manual_seed(1)
    one, other = (torch.rand(3, 12, generator=generator, dtype=torch.float64) for _ in range(2))
    same = torch.equal(rule(one, SPAN_NT, 0.3, 0.05), rule(other, SPAN_NT, 0.3, 0.05))
    try:
        rule(one, SPAN_NT, 0.7, 0.05)
        more = True
    except DesignError:
        more = False
    return (not same, more) == (rule.by_moments, rule.largest_rate > 0.7)


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    assert score_is_as_stated(SCORES[name])


@pytest.mark.parametrize("name", RULES)
def test_rules(name):
    assert rule_spends_all(RULES[name]) == spends_budget(RULES[name])


@pytest.mark.parametrize("rule", TOKEN_RULES, ids=lambda rule: rule.name)
def test_token_rules(rule):
    assert token_rule_is_as_stated(rule)


def test_a_function_of_ours_has_its_properties_and_another_one_the_defaults():
    assert stated(best_cuts) is best_cuts
    assert TokenPruning(rate=0.5, cut_rule=best_cuts).needs_log_probs
    assert not stated(lambda *given: best_cuts(*given)).by_moments


def test_a_wrong_statement_is_found():
    length, proportional = SCORES["length"], RULES["proportional"]
    assert not score_is_as_stated(
        StatedScore(name="wrong", compute=length.compute, of_sums=False, needs_log_probs=True)
    )
    assert rule_spends_all(proportional.compute) and not spends_budget(proportional.compute)
    assert not token_rule_is_as_stated(TokenRule(name="wrong", compute=random_prefix.compute))
    assert not token_rule_is_as_stated(TokenRule(name="wrong", compute=best_cuts.compute))
