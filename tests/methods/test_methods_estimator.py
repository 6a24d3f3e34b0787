"""The central claim, exactly: over every possible selection, the pruned gradient has the full gradient as its mean.

Real losses with clipping and KL, real autograd, no sampling noise. What is declared biased is shown to be.
"""

import math
from dataclasses import replace
from itertools import combinations

import pytest
import tiny_policy as tiny
import torch
from tiny_policy import ONES, at_rates, estimate, expectation, gradient, relative_error, selections

from dppo.methods import CPPO, DPPO, GRPO, METHODS
from dppo.objective import ADVANTAGE_RULES, BATCH_SCALED, NORMALISERS, cispo, clip_fractions
from dppo.pruning import (
    POISSON,
    SYSTEMATIC,
    Pruning,
    absolute_advantage,
    advantage_with_length,
    proportional,
    uniform,
    unweighted,
)
from dppo.rng import Purpose, generator
from dppo.types import Completions

EXACT, BIASED = 1e-12, 1e-3
LEVELS = {"completions": (0.0, 0.5), "prompts": (0.5, 0.0), "both": (0.5, 0.5)}
BETAS = (0.0, 0.2)


def check(method):
    """The method's own claim against the exact bias; gives the relative bias back."""
    bias = relative_error(expectation(method), gradient(method, ONES))
    assert bias < EXACT if method.unbiased else bias > BIASED
    return bias


def test_the_tiny_problem_has_what_the_claims_are_about():
    advantage_N, rows = tiny.advantages(GRPO), torch.arange(tiny.N)
    logp, old = tiny.log_probs(tiny.THETA, rows), tiny.log_probs(tiny.OLD_THETA, rows)
    low_NT, high_NT = clip_fractions(logp, old, advantage_N, tiny.MASK_NT)
    assert low_NT.any(), "some tokens are clipped from below"
    assert high_NT.any(), "and some from above"
    assert (advantage_N == 0).sum() == 1
    assert len(set(tiny.LENGTH_N.tolist())) > 2
    assert sum(s.chance for s in selections(at_rates(DPPO, 0.5, 0.5))) == pytest.approx(1.0, abs=1e-12)
    assert len(list(selections(at_rates(DPPO, 0.5, 0.5)))) > 40


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.rounds is None])
def test_every_preset_keeps_its_claim(name, level, beta):
    prompt, completion = LEVELS[level]
    check(at_rates(METHODS[name], prompt, completion, beta=beta))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NORMALISERS)
def test_every_normaliser_keeps_its_claim(name, level):
    prompt, completion = LEVELS[level]
    method = at_rates(DPPO, prompt, completion, normaliser=NORMALISERS[name], beta=0.2)
    check(method)
    assert method.unbiased == (level == "completions" or name in ("grpo", "dr_grpo"))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ADVANTAGE_RULES)
def test_every_scaling_of_advantages_keeps_its_claim(name, level):
    prompt, completion = LEVELS[level]
    method = at_rates(DPPO, prompt, completion, advantages=ADVANTAGE_RULES[name])
    check(method)
    assert method.unbiased == (level == "completions" or name != "batch")


@pytest.mark.parametrize(
    "pruning",
    [
        Pruning(rate=0.5, rule=uniform),
        Pruning(rate=0.7, floor=0.3, score=advantage_with_length),
        Pruning(rate=0.4, budget="tokens", score=advantage_with_length),
        Pruning(rate=0.5, rule=proportional, design=SYSTEMATIC),
        Pruning(rate=0.5, score=absolute_advantage, weighting=unweighted),
    ],
    ids=["uniform", "high floor", "token budget", "systematic", "unweighted"],
)
def test_other_ways_to_prune_keep_their_claim(pruning):
    check(replace(DPPO, completions=pruning, beta=0.2))
    check(replace(DPPO, prompts=pruning))


def test_capped_ratios_are_covered_too():
    check(at_rates(DPPO, 0.5, 0.5, token_loss=cispo, beta=0.2))


# The wrong versions: each is one mistake away from the estimator, and each is caught.

BOTH = at_rates(DPPO, 0.5, 0.5, beta=0.2)


def folded(method, selection):
    """The weight goes into the advantage, where it does not reach the KL term."""
    advantage_N = selection.advantage_N * selection.weight_N
    return gradient(method, selection.keep_N.double(), advantage_N=advantage_N)


MISTAKES = {
    "weights forgotten": lambda m, s: gradient(m, s.keep_N.double()),
    "prompt weight forgotten": lambda m, s: gradient(m, s.completion_weight_N),
    "completion weight forgotten": lambda m, s: gradient(m, s.keep_N * s.prompt_weight_P[tiny.GROUP_N]),
    "divides by the completions kept": lambda m, s: estimate(m, s, sequences=max(int(s.keep_N.sum()), 1)),
    "divides by the prompts rolled out": lambda m, s: estimate(m, s, sequences=max(int(s.keep_P.sum()), 1) * tiny.G),
    "weight folded into the advantage": folded,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_caught(mistake):
    got = expectation(BOTH, lambda selection: MISTAKES[mistake](BOTH, selection))
    assert relative_error(got, gradient(BOTH, ONES)) > 1e-2


def test_folding_the_weight_into_the_advantage_is_right_without_kl():
    without_kl = replace(BOTH, beta=0.0)
    for selection in selections(without_kl):
        difference = folded(without_kl, selection) - estimate(without_kl, selection)
        assert difference.abs().max() < EXACT


def test_group_statistics_after_pruning_are_biased():
    """Means and deviations of the survivors belong to another baseline."""

    def survivors(selection):
        reward_PG = tiny.REWARD_PG.masked_fill(~selection.keep_N.view(tiny.P, tiny.G), torch.nan)
        return estimate(GRPO, selection, advantage_N=GRPO.advantages(reward_PG).flatten())

    got = expectation(at_rates(DPPO, 0.0, 0.5), survivors)
    assert relative_error(got, gradient(GRPO, ONES)) > 1e-2


def test_zero_advantage_is_free_to_drop_without_kl_and_not_with_it():
    advantage_N = tiny.advantages(GRPO)
    nonzero_N = (advantage_N != 0).double()
    assert relative_error(gradient(GRPO, nonzero_N), gradient(GRPO, ONES)) < EXACT
    assert relative_error(gradient(GRPO, nonzero_N, sequences=tiny.N - 1), gradient(GRPO, ONES)) > 1e-2, "still counted"
    with_kl = replace(GRPO, beta=0.2)
    assert relative_error(gradient(with_kl, nonzero_N), gradient(with_kl, ONES)) > 1e-2


def test_cppo_is_biased_whatever_it_is_multiplied_by():
    """The best factor in hindsight still leaves an error: no rescaling repairs a deterministic choice."""
    (only,) = selections(CPPO)
    pruned, full = estimate(CPPO, only), gradient(CPPO, ONES)
    best = (pruned @ full) / (pruned @ pruned)
    assert relative_error(best * pruned, full) > 0.1


@pytest.mark.parametrize("design", [DPPO.completions.design, SYSTEMATIC, POISSON], ids=lambda d: d.name)
def test_real_draws_give_every_completion_weight_one_on_average(design):
    """The gradient is linear in the weights, so this is all that a design has to provide: 5 sigma over 2000 draws."""
    method = at_rates(DPPO, 0.0, 0.5, beta=0.2)
    method = replace(method, completions=replace(method.completions, design=design))
    parts = torch.stack([gradient(method, row) for row in torch.eye(tiny.N, dtype=torch.float64)])
    batch = Completions(
        advantage_N=tiny.advantages(method), tokens_N=tiny.LENGTH_N, group_N=tiny.GROUP_N, live_N=ONES > 0
    )
    weights, prob_N = [], torch.zeros(0)
    for index in range(2000):
        draw = method.completions.draw_completions(batch, generator(0, Purpose.CHECK, index))
        weights.append(draw.weight_N)
        prob_N = draw.prob_N
    for weight_N in weights[:20]:
        assert (gradient(method, weight_N) - weight_N @ parts).abs().max() < EXACT
    mean_N = torch.stack(weights).mean(0)
    sigma_N = ((1 / prob_N - 1) / 2000).sqrt()
    assert ((mean_N - 1).abs() <= 5 * sigma_N + 1e-12).all()
    if design.fixed_size:
        expected = prob_N.sum().item()
        assert {int((w > 0).sum()) for w in weights} <= {math.floor(expected), math.ceil(expected)}


def test_a_mean_over_the_kept_rows_needs_a_fixed_size():
    """Averaging over the survivors with weight C / prob, C the expected share kept: exact where the share is fixed."""
    method = at_rates(DPPO, 0.0, 1 / 3, normaliser=NORMALISERS["dr_grpo"], beta=0.2)
    outcomes = list(selections(method))
    expected_kept = sum(s.chance * int(s.keep_N.sum()) for s in outcomes)
    assert expected_kept == pytest.approx(6.0, abs=1e-9)

    def mean_over_kept(selection):
        kept = max(int(selection.keep_N.sum()), 1)
        return expected_kept / tiny.N * estimate(method, selection, sequences=kept)

    assert relative_error(expectation(method, mean_over_kept), gradient(method, ONES)) > 1e-2
    fixed = [s for s in outcomes if int(s.keep_N.sum()) == 6]
    assert len(fixed) >= 20
    for selection in fixed:
        torch.testing.assert_close(mean_over_kept(selection), estimate(method, selection), rtol=1e-9, atol=1e-12)


def test_the_bias_of_a_token_denominator_falls_with_the_number_of_prompts():
    """Every half of n prompts, equally likely: gradient sums over estimated tokens, against both totals."""
    bias = {}
    for copies in (1, 2, 4):
        value_Q = torch.tensor([1.0, -2.0, 4.0, 1.5], dtype=torch.float64).repeat(copies)
        tokens_Q = torch.tensor([9.0, 8.0, 2.0, 5.0], dtype=torch.float64).repeat(copies)
        half = list(combinations(range(4 * copies), 2 * copies))
        kept = torch.zeros(len(half), 4 * copies, dtype=torch.float64).scatter_(1, torch.tensor(half), 1.0)
        ratio = (kept @ value_Q) / (kept @ tokens_Q)
        exact = value_Q.sum() / tokens_Q.sum()
        bias[4 * copies] = ((ratio.mean() - exact) / exact).item()
    assert bias[4] > 1e-2
    for n in (4, 8):
        assert 0.35 < bias[2 * n] / bias[n] < 0.6, "about half at twice the number"


@pytest.mark.parametrize(("wanted", "factor"), [(4, 1.12), (64, 1.008)])
def test_refilling_until_enough_is_kept_is_biased_upwards(wanted, factor):
    """Candidates are drawn until ``wanted`` are kept with probability 1/2, and the sum is divided by their number."""
    chance, mean = 0.5**wanted, 0.0
    for tried in range(wanted, 40 * wanted):
        mean += chance * wanted / (0.5 * tried)
        chance *= 0.5 * tried / (tried + 1 - wanted)
    assert mean == pytest.approx(factor, rel=2e-3)


def test_the_batch_rule_is_the_only_one_that_needs_all_prompts():
    assert [rule for rule in ADVANTAGE_RULES.values() if not rule.prompt_exact] == [BATCH_SCALED]
