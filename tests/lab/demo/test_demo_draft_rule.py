"""A draft token that is accepted or resampled has the policy's law: by enumeration, and by frequencies."""

import pytest
import torch
from scipy import stats
from wrong_drafts import CHANCE, WRONG, draws

from dppo_lab.demo.drafts import accept_or_resample


def law(prob_V, draft, accept, residual_V):
    """(V,) what a token's probability is under "accept the draft with a probability, otherwise draw from another"."""
    found_V = (1 - accept) * residual_V
    found_V[draft] += accept
    return found_V


def without(prob_V, draft):
    rest_V = prob_V.clone()
    rest_V[draft] = 0
    return rest_V / rest_V.sum()


def policies():
    made = torch.rand(6, 4, generator=draws(2), dtype=torch.float64) ** 4 + 1e-3
    return made / made.sum(1, keepdim=True)


@pytest.mark.parametrize("draft", range(4))
def test_the_rule_has_the_policys_law_by_enumeration(draft):
    for prob_V in policies():
        right_V = law(prob_V, draft, prob_V[draft], without(prob_V, draft))
        torch.testing.assert_close(right_V, prob_V, rtol=1e-12, atol=0)
        always_V = law(prob_V, draft, 1.0, prob_V)
        plainly_V = law(prob_V, draft, prob_V[draft], prob_V)
        assert (always_V - prob_V).abs().max() > 0.01
        assert plainly_V[draft] - prob_V[draft] == pytest.approx(float(prob_V[draft] * (1 - prob_V[draft])))


def chance_of(rule, prob_V, draft, temperature=1.0, count=20_000):
    """p-value of the tokens of a rule and of whether they were accepted, against the law written out above."""
    logits_BV = (prob_V.log() * temperature).float().expand(count, -1)
    draft_BG = torch.tensor([[draft]]).expand(count, 1)
    token_B, _, place_B = rule(logits_BV, draft_BG, draws(5), temperature)
    seen = torch.bincount(token_B * 2 + (place_B >= 0), minlength=2 * len(prob_V)).double()
    expected = torch.zeros_like(seen)
    expected[0::2] = (1 - prob_V[draft]) * without(prob_V, draft) * count
    expected[2 * draft + 1] = prob_V[draft] * count
    if bool((seen[expected == 0] > 0).any()):
        return 0.0
    possible = expected > 0
    return stats.chisquare(seen[possible].numpy(), expected[possible].numpy()).pvalue


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_one_draw_is_the_rule(temperature):
    for draft, prob_V in enumerate(policies()[:4]):
        assert chance_of(accept_or_resample, prob_V, draft, temperature) > CHANCE


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_rule_is_caught(wrong):
    assert max(chance_of(wrong, prob_V, draft) for draft, prob_V in enumerate(policies()[:4])) < CHANCE


def test_of_several_drafts_the_drawn_one_is_accepted_and_none_where_there_is_none():
    logits_BV = torch.zeros(300, 4)
    draft_BG = torch.tensor([[2, 0, -1]]).expand(300, 3).clone()
    draft_BG[:100] = -1
    token_B, logp_B, place_B = accept_or_resample(logits_BV, draft_BG, draws(), 1.0)
    assert (place_B[:100] == -1).all() and set(token_B[:100].tolist()) == {0, 1, 2, 3}
    expected = {0: 1, 1: -1, 2: 0, 3: -1}
    assert place_B[100:].tolist() == [expected[token] for token in token_B[100:].tolist()]
    torch.testing.assert_close(logp_B, torch.full((300,), 0.25).log())
