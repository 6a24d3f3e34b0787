"""Exactly: over every possible selection, the mean of the pruned gradient is the full gradient, written by hand."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from claims import claims
from tiny_policy import (
    CONTEXT,
    GROUP_N,
    GRPO_BY_HAND,
    LENGTH_N,
    MASK_NT,
    OLD_NT,
    THETA,
    TOTAL_N,
    N,
    at_rates,
    centred,
    expectation,
    full_gradient,
    log_probs,
    parts,
    planned,
    relative_error,
    rewards,
)

from dppo.methods import METHODS
from dppo.objective import (
    ADVANTAGE_RULES,
    GROUP_SCALED,
    NORMALISERS,
    Tokens,
    cispo,
    clipped_tokens,
    emphasised,
    k3,
    off_policy_masked,
    powered,
    sapo,
    sequence_ratio,
    token_ratio,
    vespo,
)
from dppo.pruning import (
    POISSON,
    SYSTEMATIC,
    UNWEIGHTED,
    Auto,
    PromptPruning,
    Pruning,
    absolute_advantage,
    advantage_with_length,
    advantage_with_uncertainty,
    uniform,
    uniform_score,
)
from dppo.step import RolledOut, StepSizes, completions_of

EXACT, BIASED = 1e-12, 1e-3
LEVELS = {"completions": (0.0, 0.5), "prompts": (0.5, 0.0), "both": (0.5, 0.5)}
BETAS = (0.0, 0.2)
GRPO, DPPO, CPPO = METHODS["grpo"], METHODS["dppo"], METHODS["cppo"]

OTHERS = claims("BY_HAND")
BY_HAND = {name: OTHERS.get(name, GRPO_BY_HAND) for name in METHODS}
"""The objective of each preset, whatever it prunes."""
ALIKE = claims("ALIKE")
"""Objectives with the same gradient on the tiny policy, which other tests tell apart."""


def check(method, by_hand):
    """The method's own claim against the exact bias."""
    bias = relative_error(expectation(method), by_hand.gradient())
    assert bias > BIASED if method.biases() else bias < EXACT


def test_the_tiny_problem_has_what_the_claims_are_about():
    advantage_N = GRPO.advantages(rewards(), CONTEXT)
    torch.testing.assert_close(advantage_N, torch.from_numpy(GRPO_BY_HAND.advantage_N), rtol=0, atol=EXACT)
    logp, old, mask = (torch.from_numpy(value) for value in (log_probs(THETA), OLD_NT, MASK_NT))
    tokens = Tokens(logp_BT=logp, old_logp_BT=old, advantage_B=advantage_N, mask_BT=mask)
    for ratio in ({}, {"ratio": sequence_ratio, "clip_low": 3e-4, "clip_high": 4e-4}):
        low_NT, high_NT = clipped_tokens(tokens, **ratio)
        assert low_NT.any() and high_NT.any(), "something is clipped at either bound"
    assert (advantage_N == 0).sum() == 1
    assert len(set(LENGTH_N.tolist())) > 2 and len(set(np.bincount(GROUP_N).tolist())) > 1
    outcomes = list(planned(at_rates(DPPO, 0.5, 0.5)))
    assert sum(o.prompt_chance * o.chance_U.sum() for o in outcomes) == pytest.approx(1.0, abs=EXACT)
    assert len(outcomes) == 3 and sum(len(o.chance_U) for o in outcomes) == 15


@pytest.mark.parametrize("name", METHODS)
def test_a_preset_that_prunes_nothing_has_the_gradient_of_its_papers_loss(name):
    for beta in BETAS:
        wanted = replace(BY_HAND[name], beta=beta).gradient()
        assert relative_error(full_gradient(replace(METHODS[name], beta=beta)), wanted) < EXACT
        for other in set(BY_HAND.values()) - {BY_HAND[name], *ALIKE.get(name, ())}:
            assert relative_error(replace(other, beta=beta).gradient(), wanted) > BIASED


@pytest.mark.parametrize(("level", "beta"), [("completions", 0.0), ("prompts", 0.2), ("both", 0.0), ("both", 0.2)])
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.rounds is None])
def test_every_preset_keeps_its_claim(name, level, beta):
    prompt, completion = LEVELS[level]
    check(at_rates(METHODS[name], prompt, completion, beta=beta), replace(BY_HAND[name], beta=beta))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NORMALISERS)
def test_every_normaliser_keeps_its_claim(name, level):
    prompt, completion = LEVELS[level]
    method = at_rates(DPPO, prompt, completion, normaliser=NORMALISERS[name], beta=0.2)
    check(method, replace(GRPO_BY_HAND, divided=name, beta=0.2))
    assert not method.biases()


SCALED_BY_HAND = {
    "group": GRPO_BY_HAND.advantage_N,
    "none": centred(TOTAL_N),
    "batch": centred(TOTAL_N) / (TOTAL_N.std(ddof=1) + 1e-4),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ADVANTAGE_RULES)
def test_every_scaling_of_advantages_keeps_its_claim(name, level):
    prompt, completion = LEVELS[level]
    method = at_rates(DPPO, prompt, completion, advantages=ADVANTAGE_RULES[name])
    check(method, replace(GRPO_BY_HAND, advantage_N=SCALED_BY_HAND[name]))
    assert (not method.biases()) == (level == "completions" or name != "batch")


WAYS = {
    "uniform": {"rate": 0.5, "rule": uniform},
    "high floor": {"rate": 0.7, "floor": 0.3, "score": advantage_with_length},
    "token budget": {"rate": 0.4, "budget": "tokens", "score": advantage_with_length},
    "systematic": {"rate": 0.5, "design": SYSTEMATIC, "score": uniform_score},
    "uncertainty": {"rate": 0.5, "score": advantage_with_uncertainty},
    "unweighted": {"rate": 0.5, "weighting": UNWEIGHTED, "score": absolute_advantage},
}


@pytest.mark.parametrize("way", WAYS)
def test_other_ways_to_prune_keep_their_claim(way):
    by_prompts = {name: value for name, value in WAYS[way].items() if name != "score"}
    check(replace(DPPO, completions=Pruning(**WAYS[way]), beta=0.2), replace(GRPO_BY_HAND, beta=0.2))
    check(at_rates(replace(DPPO, prompts=PromptPruning(**by_prompts)), by_prompts["rate"], 0.0), GRPO_BY_HAND)


OTHER_LOSSES = {
    "sapo": {"token_loss": sapo},
    "vespo": {"token_loss": vespo},
    "cispo": {"token_loss": partial(cispo, ratio_max=1.2)},
    "off-policy mask": {"token_loss": partial(off_policy_masked, loss=GRPO.token_loss, threshold=0.1)},
    "kl times the ratio": {"kl": partial(k3, ratio=token_ratio)},
}


@pytest.mark.parametrize("name", OTHER_LOSSES)
def test_other_losses_are_covered_too(name):
    """``test_objective_losses.py`` and ``test_trl_contract.py`` compare their values and gradients with TRL's."""
    method = at_rates(DPPO, 0.5, 0.5, beta=0.2, **OTHER_LOSSES[name])
    full = full_gradient(method)
    assert not method.biases() and relative_error(expectation(method), full) < EXACT
    assert relative_error(full, replace(GRPO_BY_HAND, beta=0.2).gradient()) > BIASED


@pytest.mark.parametrize("level", LEVELS)
def test_an_entropy_bonus_is_a_mean_over_tokens_and_keeps_its_claim(level):
    prompt, completion = LEVELS[level]
    method = at_rates(DPPO, prompt, completion, entropy_coef=0.3)
    check(method, replace(GRPO_BY_HAND, entropy_coef=0.3))
    assert not method.biases()


# The wrong versions: each is one mistake away from the estimator, and each is caught.

BOTH = at_rates(DPPO, 0.5, 0.5, beta=0.2)


def kept(outcome):
    return (outcome.weight_UN > 0).double()


def prompt_weight_N(outcome):
    return outcome.prompt_weight_P[GROUP_N]


MISTAKES = {
    "weights forgotten": lambda o: o.gradients(kept(o)),
    "prompt weight forgotten": lambda o: o.gradients(o.weight_UN / prompt_weight_N(o).clamp_min(1)),
    "completion weight forgotten": lambda o: o.gradients(kept(o) * prompt_weight_N(o)),
    "divides by the completions kept": lambda o: o.gradients() * N / kept(o).sum(1, keepdim=True).clamp_min(1),
    "divides by those rolled out": lambda o: o.gradients() * N / max(int(o.keep_P[GROUP_N].sum()), 1),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_caught(mistake):
    wanted = replace(GRPO_BY_HAND, beta=0.2).gradient()
    assert relative_error(expectation(BOTH, MISTAKES[mistake]), wanted) > 1e-2
    assert relative_error(expectation(BOTH, lambda o: o.gradients()), wanted) < EXACT


def folded(outcome):
    """The weight goes into the advantage, where it does not reach the KL term; dropped rows are left out."""
    return outcome.at_advantages(kept(outcome), outcome.advantage_N * outcome.weight_UN)


def test_folding_the_weight_into_the_advantage_is_right_without_kl():
    for beta, right in ((0.0, True), (0.2, False)):
        method = at_rates(DPPO, 0.0, 0.5, beta=beta)
        assert (relative_error(expectation(method, folded), full_gradient(method)) < EXACT) == right


def test_group_statistics_after_pruning_are_biased():
    def survivors(outcome):
        advantages = [GRPO.advantages(rewards().only(weight_N > 0), CONTEXT) for weight_N in outcome.weight_UN]
        return outcome.at_advantages(outcome.weight_UN, advantages)

    got = expectation(at_rates(DPPO, 0.0, 0.5), survivors)
    assert relative_error(got, GRPO_BY_HAND.gradient()) > 1e-2


def part_NK(method, **changes):
    known = {"denominator": float(N), "tokens": float(LENGTH_N.sum())}
    return parts(method, method.advantages(rewards(), CONTEXT), **(known | changes))


def test_zero_advantage_is_free_to_drop_without_kl_and_not_with_it():
    nonzero_N = (GRPO.advantages(rewards(), CONTEXT) != 0).double()
    wanted = GRPO_BY_HAND.gradient()
    assert relative_error(nonzero_N @ part_NK(GRPO), wanted) < EXACT
    assert relative_error(nonzero_N @ part_NK(GRPO, denominator=N - 1), wanted) > 1e-2, "still counted"
    for term in ({"beta": 0.2}, {"entropy_coef": 0.2}):
        got = nonzero_N @ part_NK(replace(GRPO, **term))
        assert relative_error(got, replace(GRPO_BY_HAND, **term).gradient()) > 1e-2


def test_cppo_is_biased_whatever_it_is_multiplied_by():
    pruned, full = expectation(CPPO), GRPO_BY_HAND.gradient()
    best = (pruned @ full) / (pruned @ pruned)
    assert relative_error(best * pruned, full) > 0.1


def test_a_mean_over_the_kept_rows_needs_a_fixed_size():
    """Averaging over the survivors with weight C / prob, C the expected share kept: exact where the share is fixed."""
    independent = replace(DPPO, completions=replace(DPPO.completions, design=POISSON))
    method = at_rates(independent, 0.0, 3 / 7, beta=0.2)
    (outcome,) = planned(method)
    kept_U = kept(outcome).sum(1)
    assert (outcome.chance_U @ kept_U).item() == pytest.approx(4.0, abs=1e-9)
    mean_over_kept = outcome.gradients() * (4 / kept_U.clamp_min(1))[:, None]
    assert relative_error(outcome.chance_U @ mean_over_kept, full_gradient(method)) > 1e-2
    fixed_U = kept_U == 4
    assert fixed_U.sum() >= 20
    torch.testing.assert_close(mean_over_kept[fixed_U], outcome.gradients()[fixed_U], rtol=1e-9, atol=1e-12)


TOKEN_MEAN = at_rates(METHODS["dppo_dapo"], 0.5, 0.5, entropy_coef=0.3)
TOKEN_MEAN_BY_HAND = replace(BY_HAND["dppo_dapo"], entropy_coef=0.3)


def of_tokens(tokens):
    """The mean gradient where a step counts so many tokens; None for those of what was rolled out, weighted."""

    def gradients(outcome):
        plan = outcome.plan
        counted = float((plan.prompts.weight_Q[plan.rewards.group_N] * plan.completions.tokens_N).sum())
        found = counted if tokens is None else tokens
        return outcome.gradients(sizes=StepSizes(found, found))

    return expectation(TOKEN_MEAN, gradients)


def test_a_mean_over_tokens_that_history_expects_is_unbiased_whatever_it_expects():
    """A wrong expectation makes every step longer or shorter by the same factor, and points nowhere else."""
    wanted = TOKEN_MEAN_BY_HAND.gradient()
    assert not TOKEN_MEAN.biases() and relative_error(expectation(TOKEN_MEAN), wanted) < EXACT
    for factor in (0.5, 3.0):
        assert relative_error(of_tokens(factor * LENGTH_N.sum()), wanted / factor) < EXACT


def test_wrong_twin_a_mean_over_the_tokens_of_prompts_that_were_drawn():
    wanted = TOKEN_MEAN_BY_HAND.gradient()
    wrong = of_tokens(None)
    assert relative_error(wrong, wanted) > BIASED
    along = (wrong @ wanted) / (wanted @ wanted)
    assert relative_error(wrong / along, wanted) > BIASED, "another direction too, and no matter of length"


@pytest.mark.parametrize(("wanted", "factor"), [(4, 1.12), (64, 1.008)])
def test_refilling_until_enough_is_kept_is_biased_upwards(wanted, factor):
    """Candidates are drawn until ``wanted`` are kept with probability 1/2, and the sum is divided by their number."""
    chance, mean = 0.5**wanted, 0.0
    for tried in range(wanted, 40 * wanted):
        mean += chance * wanted / (0.5 * tried)
        chance *= 0.5 * tried / (tried + 1 - wanted)
    assert mean == pytest.approx(factor, rel=2e-3)


@pytest.mark.parametrize("power", [-0.5, 0.5, 1.0])
@pytest.mark.parametrize("name", ADVANTAGE_RULES)
@pytest.mark.parametrize("level", ["completions", "both"])
def test_pruning_the_emphasised_objective_is_as_exact_as_pruning_the_plain_one(level, name, power):
    rule = ADVANTAGE_RULES[name]
    method = at_rates(DPPO, *LEVELS[level], advantages=emphasised(rule, power), beta=0.2)
    plain = SCALED_BY_HAND[name]
    by_hand = replace(GRPO_BY_HAND, advantage_N=np.sign(plain) * np.abs(plain) ** (1 + power), beta=0.2)
    check(method, by_hand)
    assert bool(method.biases()) == bool(replace(method, advantages=rule).biases())
    assert relative_error(by_hand.gradient(), replace(by_hand, advantage_N=plain).gradient()) > 1e-2


def test_pruning_the_plain_objective_is_not_pruning_the_emphasised_one():
    """The wrong twin: the transform after the draw, on weighted advantages, is another number."""
    method = at_rates(DPPO, 0.0, 0.5)

    def late(outcome):
        late_UN = powered(outcome.advantage_N * outcome.weight_UN, power=1.0)
        return outcome.at_advantages(kept(outcome), late_UN)

    wanted = full_gradient(replace(method, advantages=emphasised(GROUP_SCALED, 1.0)))
    assert relative_error(expectation(method, late), wanted) > 1e-2


@pytest.mark.parametrize("beta", BETAS)
def test_a_rate_that_is_chosen_from_the_scores_keeps_the_claim(beta):
    eager = Auto(fewest=1, least_gain=1.0)
    level = Pruning(rate=0.8, floor=0.2, auto=eager, score=lambda completions: 10.0**completions.group_N)
    method = replace(DPPO, beta=beta, completions=level)
    seen = completions_of(method, RolledOut(rewards=rewards(), tokens_N=torch.from_numpy(LENGTH_N)), CONTEXT)
    assert level.choice(level.samples(seen)).rate > 0
    check(method, replace(GRPO_BY_HAND, beta=beta))
