"""Every public part has examples here, good and bad, and is what it states of itself: adding one without them fails."""

import inspect
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from arrays import tensor
from refusals import refused
from torch import nn

from dppo.errors import ConfigError, DesignError
from dppo.moment_samples import OtherTerms
from dppo.pruning import designs, level, probabilities, scores
from dppo.pruning.designs import DESIGNS, WEIGHTINGS, Design, Weighting
from dppo.pruning.level import SCHEDULES
from dppo.pruning.probabilities import RULES, Budget, stated, stating
from dppo.pruning.scores import SCORES, advantage_with_length, advantage_with_uncertainty, uncertainty
from dppo.pruning.tokens import all_alike, best_cuts, by_uncertainty, random_prefix
from dppo.types import Completions

RULE_EXAMPLES = {
    "proportional": [0.25, 0.25, 1, 0.5],
    "threshold": [0.5, 0.5, 1, 1],
    "uniform": [0.5, 0.5, 0.5, 0.5],
}
"""Probabilities of the scores 1, 1, 4 and 2 at rate 0.5."""
SCORE_EXAMPLES = {"advantage": [2, 1, 0], "length": [6, 2, 0], "uncertainty": [1, 2, 0], "uniform": [1, 1, 1]}
"""Scores of ``completions()``."""
WEIGHTING_EXAMPLES = {"inverse_probability": [4, 0, 1], "unweighted": [1, 0, 1], "kept_mean": [1.5, 0, 1.5]}
"""Weights of rows kept, dropped, kept, with probabilities 0.25, 0.5 and 1."""
SCHEDULE_EXAMPLES = {"constant": [1, 1, 1], "stop": [1, 0, 0], "fade": [1, 0.5, 0]}
"""Factors at 0, 3/4 and 1 of a run whose full rates last until its middle."""


def public_functions(module: ModuleType, parameters: list[str]) -> set[Callable]:
    """Functions written in ``module`` whose arguments start with ``parameters``."""
    written = {f for f in vars(module).values() if inspect.isfunction(f) and f.__module__ == module.__name__}
    taking = {f for f in written if [*inspect.signature(f).parameters][: len(parameters)] == parameters}
    return {f for f in taking if not f.__name__.startswith("_")}


def records(module: ModuleType, kind: type) -> dict:
    """Values of a record that are written in ``module``, by the names they give themselves."""
    return {value.name: value for value in vars(module).values() if isinstance(value, kind)}


def test_every_part_that_exists_is_registered_under_its_name():
    assert public_functions(probabilities, ["score_N", "budget"]) == set(RULES.values())
    assert public_functions(scores, ["completions"]) == set(SCORES.values())
    assert public_functions(level, ["done"]) == set(SCHEDULES.values())
    assert records(designs, Weighting) == WEIGHTINGS and records(designs, Design) == DESIGNS
    draws = {design.draw for design in DESIGNS.values()}
    assert draws == public_functions(designs, ["prob_N", "score_N", "rng"])
    assert all(part.__name__ == name for name, part in (RULES | SCHEDULES).items())


def spends_all(rule) -> bool:
    """True if what it keeps costs ``1 - rate``, of scores and costs that differ."""
    generator = torch.Generator().manual_seed(0)
    score_N, cost_N = torch.rand(2, 50, generator=generator, dtype=torch.float64) + 0.1
    prob_N = rule(score_N, Budget(rate=0.4, floor=0.1, cost_N=cost_N))
    by_scores = not torch.equal(prob_N, rule(score_N.flip(0), Budget(rate=0.4, floor=0.1)))
    return abs(float((prob_N * cost_N).sum() - 0.6 * cost_N.sum())) < 1e-9 and by_scores


@pytest.mark.parametrize("name", RULES)
def test_rules(name):
    rule, budget = RULES[name], Budget(rate=0.5, floor=0.1)
    torch.testing.assert_close(rule(tensor([1, 1, 4, 2]), budget), tensor(RULE_EXAMPLES[name]))
    with refused(DesignError, "finite and >= 0"):
        rule(tensor([-1, 2]), budget)
    assert rule(torch.zeros(0), budget).shape == (0,) and spends_all(rule) == stated(rule).spends_budget
    score_N, before = torch.rand(40, generator=torch.Generator().manual_seed(2), dtype=torch.float64), 40.0
    for rate in (0.0, 0.1, 0.15, 0.5, 0.55, 0.9, 0.95):
        prob_N = rule(score_N, Budget(rate=rate, floor=0.01))
        assert prob_N.dtype == torch.float64 and prob_N.min() >= 0.01 and prob_N.max() <= 1
        assert prob_N.sum() <= before + 1e-9, "the sum does not grow with the rate"
        assert name == "threshold" or prob_N.sum().item() == pytest.approx(40 * (1 - rate), abs=1e-9)
        before = prob_N.sum()


def completions(**changes) -> Completions:
    given = {
        "advantage_N": tensor([2, -1, 0]),
        "tokens_N": torch.tensor([9, 4, 0]),
        "group_N": torch.zeros(3, dtype=torch.long),
        "live_N": torch.tensor([True, True, False]),
        "uncertainty_N": tensor([0.5, 2, 0]),
    }
    return Completions(**(given | changes))


AVERAGED = torch.tensor([9, 4, 1])
"""Tokens over which the loss of ``completions()`` is a mean."""


def score_is_as_stated(score) -> bool:
    divided = torch.equal(score(completions(averaged_N=AVERAGED)), score(completions()) / AVERAGED)
    try:
        score(completions(uncertainty_N=None))
        needs = False
    except ConfigError as error:
        needs = "Use advantage_with_length" in str(error)
    return (needs, divided) == (stated(score).needs_log_probs, stated(score).of_sums)


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    score = SCORES[name](completions())
    assert score.tolist() == SCORE_EXAMPLES[name] and score.dtype == torch.float64
    assert score_is_as_stated(SCORES[name])


def test_norms_hold_what_other_terms_weigh_a_faded_mean_that_ignores_what_is_not_finite():
    for score in (advantage_with_length, advantage_with_uncertainty):
        blind, unit = score(completions()), score(completions(advantage_N=torch.ones(3)))
        assert torch.equal(score(completions(other=0.0)), blind)
        torch.testing.assert_close(score(completions(other=0.2)) ** 2, blind**2 + (0.2 * unit) ** 2)
    found = OtherTerms().after(8.0, 2.0)
    assert found.advantage == 2.0 and OtherTerms().advantage is None
    assert found.after(float("inf"), 1.0) == found.after(1.0, 0.0) == found.after(float("nan"), 1.0) == found
    assert found.after(0.0, 2.0).advantage == pytest.approx((6.4 / 3.6) ** 0.5, rel=1e-3)


def test_uncertainty_is_the_size_of_the_gradient_at_the_sampled_logits():
    """d log p_t / d logit_t = 1 - p_t: taken from autograd, not from the formula."""
    logits = torch.randn(1, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    token = torch.tensor([[[1], [3], [0], [5]]])
    logp = nn.functional.log_softmax(logits, -1).gather(2, token).squeeze(2)
    (gradient,) = torch.autograd.grad(logp.sum(), logits)
    expected = gradient.gather(2, token).squeeze().norm()
    torch.testing.assert_close(uncertainty(logp.detach(), torch.ones(1, 4)).squeeze(), expected)


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_weightings(name):
    keep, prob = torch.tensor([True, False, True]), tensor([0.25, 0.5, 1])
    weight = WEIGHTINGS[name].compute(keep, prob)
    assert weight.tolist() == WEIGHTING_EXAMPLES[name] and weight.dtype == torch.float64
    assert WEIGHTINGS[name].compute(keep & ~keep, prob).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    assert [SCHEDULES[name](done, until=0.5) for done in (0.0, 0.75, 1.0)] == SCHEDULE_EXAMPLES[name]
    assert SCHEDULES[name](0.874) == 1.0, "InfoBatch prunes in 0.875 of a run, and so do all by default"
    assert SCHEDULES[name](0.0, until=1.0) == 1.0


SPAN_NT = torch.arange(12) < torch.tensor([[12], [7], [9]])


def token_rule_is_as_stated(rule) -> bool:
    one, other = torch.rand(2, 3, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    same = torch.equal(rule(one, SPAN_NT, 0.3, 0.05), rule(other, SPAN_NT, 0.3, 0.05))
    try:
        rule(one, SPAN_NT, 0.7, 0.05)
        more = True
    except DesignError:
        more = False
    return (not same, more) == (stated(rule).by_moments, stated(rule).largest_rate > 0.7)


def test_token_rules_are_as_stated_and_a_wrong_statement_is_found():
    def unstated(function):
        return lambda *given: function(*given)

    assert all(token_rule_is_as_stated(rule) for rule in (best_cuts, random_prefix, by_uncertainty, all_alike))
    assert not token_rule_is_as_stated(unstated(random_prefix)) and not token_rule_is_as_stated(unstated(best_cuts))
    assert not score_is_as_stated(stating(of_sums=False, needs_log_probs=True)(unstated(SCORES["length"])))
    proportional = unstated(RULES["proportional"])
    assert spends_all(proportional) and not stated(proportional).spends_budget
