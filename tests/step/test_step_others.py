"""What terms without an advantage weigh: slopes by hand, sums that no cut changes, and draws that stay unbiased."""

from dataclasses import replace

import pytest
import torch
from tiny_policy import GRPO_BY_HAND, PARAMETERS, relative_error
from tiny_step import ALL, DPPO, EXACT, every_draw, gradients

from dppo.context import StepContext
from dppo.methods import METHODS
from dppo.moment_samples import OtherTerms
from dppo.objective import DR_GRPO, GRPO_MEAN, Tokens
from dppo.pruning import Pruning, advantage_with_uncertainty
from dppo.step import other_terms
from dppo.types import each_tensor

MASK = torch.arange(4) < torch.tensor([4, 2, 3])[:, None]
WEIGHT = torch.tensor([1.0, 2.5, 4.0], dtype=torch.float64)
METHOD = replace(METHODS["dppo"], normaliser=DR_GRPO, beta=0.3)


def tokens():
    rng = torch.Generator().manual_seed(0)
    logp, ref = (-torch.rand(3, 4, generator=rng, dtype=torch.float64) * 2 for _ in range(2))
    return Tokens(logp_BT=logp, old_logp_BT=logp, advantage_B=torch.ones(3).double(), mask_BT=MASK, ref_logp_BT=ref)


def by_hand(slope_BT, given, weight_B=WEIGHT, each_B=1.0):
    """Weighted sum of squared gradients with these slopes, tokens counting as uncorrelated."""
    squares_B = (slope_BT**2 * (1 - given.logp_BT.exp()) ** 2 * MASK).sum(1)
    return float((weight_B * squares_B / each_B).sum())


@pytest.mark.parametrize("normaliser", [DR_GRPO, GRPO_MEAN], ids=lambda each: each.name)
def test_of_a_kl_term_it_is_one_less_the_ratio_to_the_reference(normaliser):
    given = tokens()
    each_B = MASK.sum(1) ** 2 if normaliser.per_sequence else 1.0
    square, unit = other_terms(replace(METHOD, normaliser=normaliser), given, WEIGHT).tolist()
    ratio_BT = (given.ref_logp_BT - given.logp_BT).exp()
    assert square == pytest.approx(by_hand(0.3 * (1 - ratio_BT), given, each_B=each_B), rel=1e-12)
    assert unit == pytest.approx(by_hand(torch.ones(3, 4), given, each_B=each_B), rel=1e-12)


def test_at_the_reference_it_is_nothing_and_it_does_not_see_advantages():
    given = tokens()
    assert other_terms(METHOD, replace(given, ref_logp_BT=given.logp_BT), WEIGHT)[0] == 0.0
    other = replace(given, advantage_B=torch.tensor([5.0, -1.0, 0.0]).double())
    assert torch.equal(other_terms(METHOD, given, WEIGHT), other_terms(METHOD, other, WEIGHT))


def test_an_entropy_bonus_is_added_with_its_own_denominator():
    given, entropy_BT = tokens(), torch.rand(3, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    method = replace(METHOD, beta=0.0, entropy_coef=0.2)
    square, _ = other_terms(method, given, WEIGHT, entropy_BT, entropy_scale=0.5).tolist()
    assert square == pytest.approx(by_hand(0.1 * (given.logp_BT + entropy_BT), given), rel=1e-12)


def test_parts_add_up_to_the_whole_and_masked_tokens_do_not_count():
    given = tokens()
    whole = other_terms(METHOD, given, WEIGHT)
    parts = [each_tensor(given, lambda value, k=k: value[[k]]) for k in range(3)]
    torch.testing.assert_close(sum(other_terms(METHOD, part, WEIGHT[[k]]) for k, part in enumerate(parts)), whole)
    worse = replace(given, ref_logp_BT=given.ref_logp_BT.masked_fill(~MASK, 50.0))
    assert torch.equal(other_terms(METHOD, worse, WEIGHT), whole)


LEAST = Pruning(rate=0.6, floor=0.2, least=0.03, score=advantage_with_uncertainty)


@pytest.mark.parametrize("entropy_coef", [0.0, 0.1])
@pytest.mark.parametrize("known", [OtherTerms(), OtherTerms(square=0.5, unit=1.0), OtherTerms(square=1e-4, unit=1.0)])
def test_the_gradient_stays_that_of_the_full_batch_whatever_was_learned(known, entropy_coef):
    """Over every real draw of a step with KL, bonus and floors by score: a wrong size costs variance, never bias."""
    method = replace(DPPO, beta=0.2, entropy_coef=entropy_coef, completions=LEAST)
    prompts = replace(ALL, context=replace(ALL.context, others=known))
    plan, chance_U = every_draw(method, prompts=prompts)
    assert not method.biases()
    lowest = float(plan.prob_UN[0].min())
    assert (lowest == pytest.approx(0.2)) == (known.advantage is None), "one floor for all until something is known"
    wanted = replace(GRPO_BY_HAND, beta=0.2, entropy_coef=entropy_coef).gradient()
    assert wanted.shape == (PARAMETERS,)
    assert relative_error(chance_U @ gradients(method, plan), wanted) < EXACT
    late_UN = plan.weight_UN.clamp(max=3.0)
    if bool((plan.weight_UN > 3).any()):
        assert relative_error(chance_U @ gradients(method, plan, late_UN), wanted) > 1e-3, "the wrong twin"


def test_a_method_says_what_is_known_of_its_terms():
    known = StepContext(others=OtherTerms(square=0.25, unit=1.0))
    assert METHODS["dppo"].other_terms(known) == 0.0, "without such terms nothing was ever left out"
    assert METHOD.other_terms(known) == 0.5 and METHOD.other_terms(StepContext()) is None
    assert replace(METHOD, router_coef=0.1).other_terms(known) is None, "a router's loss is not one of single tokens"
