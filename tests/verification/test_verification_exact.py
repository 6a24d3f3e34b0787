"""Every outcome of a draw, on the policy of a few parameters: bias is what methods claim, and mistakes are seen."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from wrong_weights import DOUBLED, ROUNDED

from dppo.context import NOTHING_KNOWN
from dppo.errors import DesignError
from dppo.methods import METHODS
from dppo.objective import Tokens, clipped_tokens
from dppo.pruning import DESIGNS, DETERMINISTIC, PIVOTAL, POISSON, SYSTEMATIC, UNWEIGHTED, Pruning, uniform
from dppo.step import StepSizes
from dppo.types import Rewards
from dppo.verification import draws, tiny
from dppo.verification.draws import FrozenDraw, nothing_pruned, step_prompts
from dppo.verification.enumerate import enumerated, every_way, outcomes
from dppo.verification.tiny import exact_bias

PROB = torch.tensor([0.2, 0.5, 0.9, 0.65, 0.75], dtype=torch.float64)


def mean_kept(found):
    return sum(chance * keep.double() for keep, chance in found)


@pytest.mark.parametrize("design", [d for d in DESIGNS.values() if d.unbiased], ids=lambda d: d.name)
def test_random_designs_keep_each_row_with_its_probability(design):
    found = outcomes(design, PROB)
    assert sum(chance for _, chance in found) == pytest.approx(1.0, abs=1e-12)
    torch.testing.assert_close(mean_kept(found), PROB, rtol=0, atol=1e-12)
    sizes = {int(keep.sum()) for keep, _ in found}
    assert sizes == ({3} if design.fixed_size else {0, 1, 2, 3, 4, 5})


def test_outcomes_are_those_of_the_design():
    for keep, chance in outcomes(POISSON, PROB):
        assert chance == pytest.approx(torch.where(keep, PROB, 1 - PROB).prod().item())
    ((keep, chance),) = outcomes(DETERMINISTIC, PROB)
    assert chance == 1.0 and keep.tolist() == [False, False, True, True, True]
    squared = replace(PIVOTAL, draw=lambda prob, score, rng: PIVOTAL.draw(prob.square(), score, rng))
    assert (mean_kept(outcomes(squared, PROB)) - PROB).abs().max() > 0.05, "the wrong twin"
    with refused(DesignError, "'urn'"):
        outcomes(replace(PIVOTAL, name="urn"), PROB)
    with refused(DesignError, "rng.permutation", "rng.random(n) < prob_N.numpy()"):
        list(every_way(lambda tape: tape.permutation(3)))


@pytest.mark.parametrize(
    ("design", "sizes"),
    [(PIVOTAL, {2}), (SYSTEMATIC, {0, 1, 2, 3, 4}), (DETERMINISTIC, {2})],
    ids=["short enough", "long", "biased"],
)
def test_long_designs_are_stood_in_for_by_independent_draws_and_others_run_themselves(design, sizes):
    pruning, prob = enumerated(Pruning(rate=0.5, design=design)), torch.full((4,), 0.5, dtype=torch.float64)
    assert {int(k.sum()) for k, _ in every_way(lambda tape: pruning.design.draw(prob, prob, tape))} == sizes


DPPO = METHODS["dppo"]
EXACT = 1e-12
LEVELS = {"completions": (0.0, 0.5), "prompts": (0.5, 0.0), "both": (0.5, 0.5)}


@pytest.mark.parametrize("term", [{}, {"beta": 0.2}, {"entropy_coef": 0.1}], ids=["plain", "kl", "entropy"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", METHODS)
def test_the_exact_bias_agrees_with_what_a_method_says_of_itself(name, level, term):
    prompt, completion = LEVELS[level]
    method = replace(METHODS[name], **term, sizes=None)  # the tiny problem has groups of one size
    method = method.with_rates(prompt=0.0 if method.rounds else prompt, completion=completion)
    assert (exact_bias(method) < EXACT) == (not method.biases())


@pytest.mark.parametrize("name", ["dapo", "greso"])
def test_rounds_are_gone_through_by_hand(name):
    """The third group does not count; the second one, silent before, is skipped by GRESO half of the time."""
    method = METHODS[name]
    full = tiny.gradient(method, nothing_pruned(tiny.ROLLOUTS, method))

    def of_groups(count):
        used_N = count > tiny.GROUP_N
        tokens = float(tiny.LENGTH_N[used_N].sum())
        drawn = FrozenDraw(
            weight_N=used_N.double(),
            advantage_N=method.advantages(Rewards.of_groups(tiny.REWARD_PG), NOTHING_KNOWN),
            sizes=StepSizes(method.normaliser.denominator(int(used_N.sum()), tokens, tiny.T), tokens),
        )
        return tiny.gradient(method, drawn)

    expected = of_groups(2) if name == "dapo" else (of_groups(1) + of_groups(2)) / 2
    bias = float((expected - full).norm() / full.norm())
    assert bias > 0.1 and exact_bias(method) == pytest.approx(bias, rel=1e-9)


def test_the_policy_has_what_the_claims_are_about():
    advantage_N = DPPO.advantages(Rewards.of_groups(tiny.REWARD_PG), NOTHING_KNOWN)
    logp_NT, _ = tiny._policy(tiny.THETA, torch.arange(tiny.N))
    tokens = Tokens(logp_BT=logp_NT, old_logp_BT=tiny.OLD_LOGP_NT, advantage_B=advantage_N, mask_BT=tiny.MASK_NT)
    assert all(side.any() for side in clipped_tokens(tokens)) and int((advantage_N == 0).sum()) == 4
    assert (logp_NT - tiny.REF_LOGP_NT).abs().max() > 0.1


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.advantages.from_history])
def test_a_history_is_part_of_what_is_enumerated(name, monkeypatch):
    """The equal rewards of the third group differ from the expected one; the wrong twin draws without a history."""
    method = METHODS[name].with_rates(prompt=0.5, completion=0.5)
    assert int((method.advantages(tiny.ROLLOUTS.rewards, tiny.ROLLOUTS.context) != 0).sum()) == tiny.N
    assert exact_bias(method) < EXACT
    monkeypatch.setattr(draws, "step_prompts", lambda *of: replace(step_prompts(*of), context=NOTHING_KNOWN))
    assert exact_bias(method) > 0.1


def test_forgotten_weights_of_a_uniform_half_lose_exactly_half():
    wrong = replace(DPPO, completions=Pruning(rate=0.5, rule=uniform, weighting=UNWEIGHTED))
    assert exact_bias(wrong) == pytest.approx(0.5, abs=1e-12)


SHIFTED = replace(PIVOTAL, draw=lambda prob, score, rng: PIVOTAL.draw(prob**1.01, score, rng))
SABOTAGE = {
    "weights doubled": {"weighting": DOUBLED},
    "weights rounded": {"weighting": ROUNDED},
    "draws with other probabilities": {"design": SHIFTED},
}


@pytest.mark.parametrize("wrong", SABOTAGE.values(), ids=SABOTAGE)
def test_mistakes_that_no_method_declares_are_seen(wrong):
    method = replace(DPPO, completions=replace(DPPO.completions, **wrong))
    assert not method.biases() and exact_bias(method) > 1e-4
