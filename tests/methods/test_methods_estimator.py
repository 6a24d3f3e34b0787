"""Exactly: over every possible selection, the mean of the pruned gradient is the full gradient, written by hand."""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import tiny_policy as tiny
import torch
from by_hand import ALIKE, BY_HAND
from tiny_policy import CONTEXT, GRPO_BY_HAND, N, at_rates, expectation, full_gradient, relative_error

from dppo import objective, pruning
from dppo.errors import in_words
from dppo.methods import METHODS
from dppo.objective import ADVANTAGE_RULES, NORMALISERS, clipped_tokens, emphasised
from dppo.pruning import Auto, PromptPruning, Pruning, advantage_with_length, stop, uniform_score
from dppo.pruning.level import fade
from dppo.step import StepSizes, completions_of

EXACT, BIASED = 1e-12, 1e-3
LEVELS = {"completions": (0.0, 0.5), "prompts": (0.5, 0.0), "both": (0.5, 0.5)}
BETAS = (0.0, 0.2)
GRPO, DPPO, CPPO = METHODS["grpo"], METHODS["dppo"], METHODS["cppo"]
WITH_KL = replace(GRPO_BY_HAND, beta=0.2)
REWARDS, TOTAL_N, LENGTH_N = tiny.rewards(), tiny.TOTAL_N, tiny.LENGTH_N


def check(method, by_hand):
    """The method's own claim against the exact bias."""
    bias = relative_error(expectation(method), by_hand.gradient())
    assert bias > BIASED if method.biases() else bias < EXACT


def test_the_tiny_problem_has_what_the_claims_are_about():
    advantage_N = GRPO.advantages(REWARDS, CONTEXT)
    torch.testing.assert_close(advantage_N, torch.from_numpy(GRPO_BY_HAND.advantage_N), rtol=0, atol=EXACT)
    logp, old, mask = map(torch.from_numpy, (tiny.log_probs(tiny.THETA), tiny.OLD_NT, tiny.MASK_NT))
    tokens = objective.Tokens(logp_BT=logp, old_logp_BT=old, advantage_B=advantage_N, mask_BT=mask)
    for ratio in ({}, {"ratio": objective.sequence_ratio, "clip_low": 3e-4, "clip_high": 4e-4}):
        assert all(clipped_NT.any() for clipped_NT in clipped_tokens(tokens, **ratio)), "at either bound"
    assert (advantage_N == 0).sum() == 1
    assert len(set(LENGTH_N.tolist())) > 2 and len(set(np.bincount(tiny.GROUP_N).tolist())) > 1
    outcomes = list(tiny.planned(at_rates(DPPO, 0.5, 0.5)))
    assert sum(o.prompt_chance * o.chance_U.sum() for o in outcomes) == pytest.approx(1.0, abs=EXACT)
    assert len(outcomes) == 3 and sum(len(o.chance_U) for o in outcomes) == 15


@pytest.mark.parametrize("name", METHODS)
def test_a_preset_that_prunes_nothing_has_the_gradient_of_its_papers_loss(name):
    for beta in BETAS:
        wanted = replace(BY_HAND[name], beta=beta).gradient()
        assert relative_error(full_gradient(replace(METHODS[name], beta=beta)), wanted) < EXACT
        alike = ALIKE if BY_HAND[name] in ALIKE else {BY_HAND[name]}
        for other in set(BY_HAND.values()) - alike:
            assert relative_error(replace(other, beta=beta).gradient(), wanted) > BIASED


@pytest.mark.parametrize(("level", "beta"), [("completions", 0.0), ("prompts", 0.2), ("both", 0.0), ("both", 0.2)])
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.rounds is None])
def test_every_preset_keeps_its_claim(name, level, beta):
    prompt, completion = LEVELS[level]
    check(at_rates(METHODS[name], prompt, completion, beta=beta), replace(BY_HAND[name], beta=beta))


SCALED_BY_HAND = {
    "group": GRPO_BY_HAND.advantage_N,
    "none": tiny.centred(TOTAL_N),
    "batch": tiny.centred(TOTAL_N) / (TOTAL_N.std(ddof=1) + 1e-4),
}
WAYS = {
    "uniform": {"rate": 0.5, "rule": pruning.uniform},
    "high floor": {"rate": 0.7, "floor": 0.3, "score": advantage_with_length},
    "token budget": {"rate": 0.4, "budget": "tokens", "score": advantage_with_length},
    "systematic": {"rate": 0.5, "design": pruning.SYSTEMATIC, "score": uniform_score},
    "uncertainty": {"rate": 0.5, "score": pruning.advantage_with_uncertainty},
    "unweighted": {"rate": 0.5, "weighting": pruning.UNWEIGHTED, "score": pruning.absolute_advantage},
}
EAGER = Auto(fewest=1, least_gain=1.0)
CHOSEN = Pruning(rate=0.8, floor=0.2, auto=EAGER, score=lambda completions: 10.0**completions.group_N)


POWERS = (-0.5, 0.5, 1.0)


def raised(value_N, power):
    """Advantages, emphasised."""
    return np.sign(value_N) * np.abs(value_N) ** (1 + power)


def variants():
    """Name, method, its objective by hand, and True if it must be unbiased."""
    for level, rates in LEVELS.items():
        for name, normaliser in NORMALISERS.items():
            method = at_rates(DPPO, *rates, normaliser=normaliser, beta=0.2)
            yield f"{name} normaliser, {level}", method, replace(WITH_KL, divided=name), True
        for name, rule in ADVANTAGE_RULES.items():
            exact, plain = level == "completions" or name != "batch", SCALED_BY_HAND[name]
            method = at_rates(DPPO, *rates, advantages=rule)
            yield f"{name} scaling, {level}", method, replace(GRPO_BY_HAND, advantage_N=plain), exact
            for power in POWERS if level != "prompts" else ():
                method = at_rates(DPPO, *rates, advantages=emphasised(rule, power), beta=0.2)
                by_hand = replace(WITH_KL, advantage_N=raised(plain, power))
                yield f"{name} scaling, power {power}, {level}", method, by_hand, exact
        bonus = {"entropy_coef": 0.3}
        yield f"entropy bonus, {level}", at_rates(DPPO, *rates, **bonus), replace(GRPO_BY_HAND, **bonus), True
    for name, way in WAYS.items():
        exact, by_prompts = name != "unweighted", {key: value for key, value in way.items() if key != "score"}
        yield f"{name} completions", replace(DPPO, completions=Pruning(**way), beta=0.2), WITH_KL, exact
        method = at_rates(replace(DPPO, prompts=PromptPruning(**by_prompts)), way["rate"], 0.0)
        yield f"{name} prompts", method, GRPO_BY_HAND, exact
    for beta in BETAS:
        method = replace(DPPO, beta=beta, completions=CHOSEN)
        yield f"rate chosen from the scores, beta {beta}", method, replace(GRPO_BY_HAND, beta=beta), True
    for schedule, done in product((stop, fade, partial(fade, until=0.2)), (0.0, 0.9, 0.95, 1.0)):
        method = at_rates(DPPO, 0.5, 0.5, beta=0.2, schedule=schedule)
        yield f"{in_words(schedule)} at {done}", method.at(done), WITH_KL, True


@pytest.mark.parametrize(("method", "by_hand", "exact"), [pytest.param(*each, id=name) for name, *each in variants()])
def test_every_variant_keeps_its_claim(method, by_hand, exact):
    check(method, by_hand)
    assert bool(method.biases()) != exact


def test_powers_change_the_objective_and_scores_choose_a_rate():
    for plain, power in product(SCALED_BY_HAND.values(), POWERS):
        by_hand, other = (replace(WITH_KL, advantage_N=value_N) for value_N in (plain, raised(plain, power)))
        assert relative_error(other.gradient(), by_hand.gradient()) > 1e-2
    for beta in BETAS:
        seen = completions_of(replace(DPPO, beta=beta), tiny.rolled_out(), CONTEXT)
        assert CHOSEN.choice(CHOSEN.samples(seen)).rate > 0


OTHER_LOSSES = {
    "sapo": {"token_loss": objective.sapo},
    "vespo": {"token_loss": objective.vespo},
    "cispo": {"token_loss": partial(objective.cispo, ratio_max=1.2)},
    "off-policy mask": {"token_loss": partial(objective.off_policy_masked, loss=GRPO.token_loss, threshold=0.1)},
    "kl times the ratio": {"kl": partial(objective.k3, ratio=objective.token_ratio)},
}


@pytest.mark.parametrize("name", OTHER_LOSSES)
def test_other_losses_are_covered_too(name):
    """``test_objective_losses.py`` and ``test_trl_contract.py`` compare their values and gradients with TRL's."""
    method = at_rates(DPPO, 0.5, 0.5, beta=0.2, **OTHER_LOSSES[name])
    full = full_gradient(method)
    assert not method.biases() and relative_error(expectation(method), full) < EXACT
    assert relative_error(full, WITH_KL.gradient()) > BIASED


# The wrong versions: each is one mistake away from the estimator, and each is caught.

BOTH = at_rates(DPPO, 0.5, 0.5, beta=0.2)
COMPLETIONS = at_rates(DPPO, 0.0, 0.5)


def kept(outcome):
    return (outcome.weight_UN > 0).double()


def prompt_weight_N(outcome):
    return outcome.prompt_weight_P[tiny.GROUP_N]


def folded(outcome):
    """The weight goes into the advantage, where it does not reach the KL term; dropped rows are left out."""
    return outcome.at_advantages(kept(outcome), outcome.advantage_N * outcome.weight_UN)


MISTAKES = {
    "weights forgotten": (BOTH, lambda o: o.gradients(kept(o))),
    "prompt weight forgotten": (BOTH, lambda o: o.gradients(o.weight_UN / prompt_weight_N(o).clamp_min(1))),
    "completion weight forgotten": (BOTH, lambda o: o.gradients(kept(o) * prompt_weight_N(o))),
    "divides by completions kept": (BOTH, lambda o: o.gradients() * N / kept(o).sum(1, keepdim=True).clamp_min(1)),
    "divides by those rolled out": (BOTH, lambda o: o.gradients() * N / max(int(o.keep_P[tiny.GROUP_N].sum()), 1)),
    "weight folded into the advantage": (replace(COMPLETIONS, beta=0.2), folded),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_caught(mistake):
    method, wrong = MISTAKES[mistake]
    wanted = full_gradient(method)
    assert relative_error(expectation(method, wrong), wanted) > 1e-2
    assert relative_error(expectation(method), wanted) < EXACT


def test_folding_the_weight_into_the_advantage_is_right_without_kl():
    assert relative_error(expectation(COMPLETIONS, folded), full_gradient(COMPLETIONS)) < EXACT


def test_group_statistics_after_pruning_are_biased():
    def survivors(outcome):
        advantages = [GRPO.advantages(REWARDS.only(weight_N > 0), CONTEXT) for weight_N in outcome.weight_UN]
        return outcome.at_advantages(outcome.weight_UN, advantages)

    assert relative_error(expectation(COMPLETIONS, survivors), GRPO_BY_HAND.gradient()) > 1e-2


def test_pruning_the_plain_objective_is_not_pruning_the_emphasised_one():
    """The wrong twin: the transform after the draw, on weighted advantages, is another number."""

    def late(outcome):
        late_UN = objective.powered(outcome.advantage_N * outcome.weight_UN, power=1.0)
        return outcome.at_advantages(kept(outcome), late_UN)

    wanted = full_gradient(replace(COMPLETIONS, advantages=emphasised(objective.GROUP_SCALED, 1.0)))
    assert relative_error(expectation(COMPLETIONS, late), wanted) > 1e-2


def part_NK(method, denominator=N):
    return tiny.parts(method, method.advantages(REWARDS, CONTEXT), StepSizes(denominator, LENGTH_N.sum()))


def test_zero_advantage_is_free_to_drop_without_kl_and_not_with_it():
    nonzero_N = (GRPO.advantages(REWARDS, CONTEXT) != 0).double()
    wanted = GRPO_BY_HAND.gradient()
    assert relative_error(nonzero_N @ part_NK(GRPO), wanted) < EXACT
    assert relative_error(nonzero_N @ part_NK(GRPO, N - 1), wanted) > 1e-2, "still counted"
    for term in ({"beta": 0.2}, {"entropy_coef": 0.2}):
        got = nonzero_N @ part_NK(replace(GRPO, **term))
        assert relative_error(got, replace(GRPO_BY_HAND, **term).gradient()) > 1e-2


def test_cppo_is_biased_whatever_it_is_multiplied_by():
    pruned, full = expectation(CPPO), GRPO_BY_HAND.gradient()
    best = (pruned @ full) / (pruned @ pruned)
    assert relative_error(best * pruned, full) > 0.1


def test_a_mean_over_the_kept_rows_needs_a_fixed_size():
    """Averaging over the survivors with weight C / prob, C the expected share kept: exact where the share is fixed."""
    independent = replace(DPPO, completions=replace(DPPO.completions, design=pruning.POISSON))
    method = at_rates(independent, 0.0, 3 / 7, beta=0.2)
    (outcome,) = tiny.planned(method)
    kept_U = kept(outcome).sum(1)
    assert (outcome.chance_U @ kept_U).item() == pytest.approx(4.0, abs=1e-9)
    mean_over_kept = outcome.gradients() * (4 / kept_U.clamp_min(1))[:, None]
    assert relative_error(outcome.chance_U @ mean_over_kept, full_gradient(method)) > 1e-2
    fixed_U = kept_U == 4
    assert fixed_U.sum() >= 20
    torch.testing.assert_close(mean_over_kept[fixed_U], outcome.gradients()[fixed_U], rtol=1e-9, atol=1e-12)


def test_a_mean_over_tokens_that_history_expects_is_unbiased_whatever_it_expects():
    """A wrong one makes every step longer by a factor; the wrong twin, tokens of prompts drawn, points elsewhere."""
    method = at_rates(METHODS["dppo_dapo"], 0.5, 0.5, entropy_coef=0.3)
    wanted = replace(BY_HAND["dppo_dapo"], entropy_coef=0.3).gradient()

    def expected(factor):
        tokens = factor * LENGTH_N.sum()
        return expectation(method, lambda outcome: outcome.gradients(sizes=StepSizes(tokens, tokens)))

    def of_prompts_drawn(outcome):
        plan = outcome.plan
        tokens = float((plan.prompts.weight_Q[plan.rewards.group_N] * plan.completions.tokens_N).sum())
        return outcome.gradients(sizes=StepSizes(tokens, tokens))

    assert not method.biases() and relative_error(expectation(method), wanted) < EXACT
    assert all(relative_error(expected(factor), wanted / factor) < EXACT for factor in (0.5, 3.0))
    wrong = expectation(method, of_prompts_drawn)
    along = (wrong @ wanted) / (wanted @ wanted)
    assert relative_error(wrong, wanted) > BIASED
    assert relative_error(wrong / along, wanted) > BIASED, "another direction too, and no matter of length"


@pytest.mark.parametrize(("wanted", "factor"), [(4, 1.12), (64, 1.008)])
def test_refilling_until_enough_is_kept_is_biased_upwards(wanted, factor):
    """Candidates are drawn until ``wanted`` are kept with probability 1/2, and the sum is divided by their number."""
    chance, mean = 0.5**wanted, 0.0
    for tried in range(wanted, 40 * wanted):
        mean += chance * wanted / (0.5 * tried)
        chance *= 0.5 * tried / (tried + 1 - wanted)
    assert mean == pytest.approx(factor, rel=2e-3)
