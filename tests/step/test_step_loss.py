"""The loss of micro-batches, parts of a whole that no cut can change, and what its terms without an advantage weigh."""

from dataclasses import replace

import pytest
import torch
from arrays import tensor
from refusals import refused
from tiny_policy import GRPO_BY_HAND, relative_error
from tiny_step import ALL, DPPO, EXACT, every_draw, gradients

from dppo.context import StepContext
from dppo.errors import ConfigError
from dppo.methods import METHODS
from dppo.moment_samples import OtherTerms
from dppo.objective import DR_GRPO, GRPO_MEAN, NORMALISERS, Tokens
from dppo.pruning import Pruning, advantage_with_uncertainty
from dppo.step import StepSizes, micro_batch_loss, other_terms
from dppo.types import each_tensor

METHOD = replace(METHODS["grpo"], beta=0.2, entropy_coef=0.1)
SIZES = StepSizes(denominator=6.0, tokens=20.0)
WEIGHT = tensor([1.0, 2.5, 0, 1, 4, 1.5])
MASK = torch.arange(5) < torch.tensor([5, 1, 3, 0, 4, 5])[:, None]
LOGP, OLD, REF, ENTROPY = torch.randn(4, *MASK.shape, generator=torch.Generator().manual_seed(0)).double() - 2
TOKENS = Tokens(
    logp_BT=LOGP, old_logp_BT=OLD, advantage_B=tensor([0.3, -1.2, 0.8, 1.1, -0.4, 2.0]), mask_BT=MASK, ref_logp_BT=REF
)
"""Tokens of six completions: one is empty, and one has the weight 0."""


def loss(method, rows=slice(None), *, weight_B=WEIGHT, sizes=SIZES, **settings):
    part = each_tensor(TOKENS, lambda value: value[rows])
    return micro_batch_loss(method, part, weight_B[rows], sizes, entropy_BT=ENTROPY[rows], **settings).item()


@pytest.mark.parametrize("name", NORMALISERS)
def test_the_parts_of_all_micro_batches_add_up_to_the_whole_and_each_term_goes_with_the_weight(name):
    method = replace(METHOD, normaliser=NORMALISERS[name])
    for cuts in ([[0, 1, 2], [3, 4, 5]], [[5, 0], [1], [4, 2, 3]], [[i] for i in range(6)]):
        assert sum(loss(method, rows) for rows in cuts) == pytest.approx(loss(method), abs=1e-12)
    at_weight_1 = tensor([loss(method, [i], weight_B=torch.ones(6)) for i in range(6)])
    assert float(WEIGHT @ at_weight_1) == pytest.approx(loss(method))


def test_a_denominator_of_each_micro_batch_would_make_the_cut_matter():
    cuts = [[0, 1, 2, 3], [4, 5]]
    wrong = sum(loss(METHOD, rows, sizes=SIZES._replace(denominator=float(len(rows)))) for rows in cuts) / len(cuts)
    assert abs(wrong - loss(METHOD)) > 1e-2


def test_a_router_loss_is_a_mean_over_the_tokens_of_the_full_batch_prompts_included():
    method, settings = replace(METHOD, router_coef=0.01), {"sizes": SIZES._replace(attended=50.0)}
    first, second, both = (
        loss(method, router_loss=tensor(value), **settings) - loss(METHOD) for value in (30.0, 12.0, 42.0)
    )
    assert both == pytest.approx(0.01 * 42 / 50, abs=1e-12) and first + second == pytest.approx(both, abs=1e-12)
    assert loss(METHOD, router_loss=tensor(30.0), **settings) == loss(METHOD), "a method without one has none"


@pytest.mark.parametrize(
    ("term", "given"),
    [("entropy_coef", {"entropy_BT": ENTROPY}), ("router_coef", {"router_loss": torch.tensor(1.0)})],
)
def test_a_term_that_the_method_has_is_never_left_out_in_silence(term, given):
    method, rest = replace(METHODS["grpo"], **{term: 0.1}), (TOKENS, WEIGHT, SIZES)
    assert micro_batch_loss(method, *rest, **given) != micro_batch_loss(METHODS["grpo"], *rest)
    with refused(ConfigError, f"{term}=0.1 needs"):
        micro_batch_loss(method, *rest)


OTHERS = replace(DPPO, normaliser=DR_GRPO, beta=0.3)
ON_POLICY = replace(TOKENS, old_logp_BT=LOGP)


def by_hand(slope_BT, each_B=1.0):
    """Weighted sum of squared gradients with these slopes, tokens counting as uncorrelated."""
    squares_B = (slope_BT**2 * (1 - LOGP.exp()) ** 2 * MASK).sum(1)
    return float((WEIGHT * squares_B / each_B).sum())


@pytest.mark.parametrize("normaliser", [DR_GRPO, GRPO_MEAN], ids=lambda each: each.name)
def test_other_terms_of_a_kl_term_are_one_less_the_ratio_to_the_reference(normaliser):
    each_B = MASK.sum(1).clamp(min=1) ** 2 if normaliser.per_sequence else 1.0
    square, unit = other_terms(replace(OTHERS, normaliser=normaliser), ON_POLICY, WEIGHT).tolist()
    assert square == pytest.approx(by_hand(0.3 * (1 - (REF - LOGP).exp()), each_B), rel=1e-12)
    assert unit == pytest.approx(by_hand(torch.ones(6, 5), each_B), rel=1e-12)


def test_other_terms_of_an_entropy_bonus_are_added_with_its_own_denominator():
    method = replace(OTHERS, beta=0.0, entropy_coef=0.2)
    square, _ = other_terms(method, ON_POLICY, WEIGHT, ENTROPY, entropy_scale=0.5).tolist()
    assert square == pytest.approx(by_hand(0.1 * (LOGP + ENTROPY)), rel=1e-12)


LEAST = Pruning(rate=0.6, floor=0.2, least=0.03, score=advantage_with_uncertainty)


@pytest.mark.parametrize("entropy_coef", [0.0, 0.1])
@pytest.mark.parametrize("known", [OtherTerms(), OtherTerms(square=0.5, unit=1.0), OtherTerms(square=1e-4, unit=1.0)])
def test_the_gradient_stays_that_of_the_full_batch_whatever_was_learned(known, entropy_coef):
    """Over every real draw of a step with KL, bonus and floors by score: a wrong size costs variance, never bias."""
    method = replace(DPPO, beta=0.2, entropy_coef=entropy_coef, completions=LEAST)
    plan, chance_U = every_draw(method, prompts=replace(ALL, context=replace(ALL.context, others=known)))
    assert not method.biases()
    lowest = float(plan.prob_UN[0].min())
    assert (lowest == pytest.approx(0.2)) == (known.advantage is None), "one floor for all until something is known"
    wanted = replace(GRPO_BY_HAND, beta=0.2, entropy_coef=entropy_coef).gradient()
    assert relative_error(chance_U @ gradients(method, plan), wanted) < EXACT
    late_UN = plan.weight_UN.clamp(max=3.0)
    if bool((plan.weight_UN > 3).any()):
        assert relative_error(chance_U @ gradients(method, plan, late_UN), wanted) > 1e-3, "the wrong twin"


def test_a_method_says_what_is_known_of_its_terms():
    known = StepContext(others=OtherTerms(square=0.25, unit=1.0))
    assert DPPO.other_terms(known) == 0.0, "without such terms nothing was ever left out"
    assert OTHERS.other_terms(known) == 0.5 and OTHERS.other_terms(StepContext()) is None
    assert replace(OTHERS, router_coef=0.1).other_terms(known) is None, "a router's loss is not one of single tokens"
