"""``Method``: how its parts fit together, what it and every preset say of them, and what it refuses."""

import pickle
from dataclasses import replace
from functools import partial

import pytest
import torch
from one_step import step_of
from refusals import refused

from dppo.errors import ConfigError
from dppo.methods import METHODS, ROW_METHODS
from dppo.objective import NORMALISERS
from dppo.pruning import COMPLETION_AUTO, PROMPT_AUTO, Pruning, TokenPruning, random_prefix, threshold
from dppo.pruning.rounds import fixed

GRPO, DPPO, CPPO, DAPO = METHODS["grpo"], METHODS["dppo"], METHODS["cppo"], METHODS["dapo"]
ROUNDS, RANKED = {"dapo", "greso", "greso_compat"}, {"cppo", "cppo_trl", "cppo_verl", "pods"}
BIASED = ROUNDS | RANKED | {"gdpo", "dppo_gdpo", "dppo_deterministic", "dppo_unweighted"}


def test_rounds_are_biased_whatever_else_is_pruned_and_prune_no_prompts_themselves():
    assert {name for name, method in METHODS.items() if method.rounds is not None} == ROUNDS
    assert DAPO.selection_bias == (f"rounds are biased: {DAPO.rounds.bias}",)
    both = replace(CPPO, rounds=DAPO.rounds)
    assert [sentence.split()[0] for sentence in both.selection_bias] == ["completion", "rounds"]
    assert str(DAPO.rounds) in DAPO.describe()
    with refused(ConfigError, "rounds", "prompt rate 0.5", "Write 0"):
        DAPO.with_rates(prompt=0.5)


def test_a_normaliser_that_is_biased_under_prompt_pruning_names_one_that_is_not():
    """None of ours is. Where the method brings its normaliser itself the option would be refused, and is not named."""
    method = DPPO.with_rates(prompt=0.3, completion=0.0)
    yours = replace(method, normaliser=replace(NORMALISERS["dapo"], prompt_exact=False, reason="it counts survivors"))
    (bias,) = yours.biases()
    assert "it counts survivors" in bias and "loss_type: dr_grpo" in bias
    own = replace(yours, fixes=frozenset({*yours.fixes, "normaliser"}))
    assert "loss_type" not in own.biases()[0] and not yours.with_rates(prompt=0.0).biases()


def test_one_draw_of_prompts_for_several_optimizer_steps_is_biased_after_the_first():
    pruned = DPPO.with_rates(prompt=0.5)
    assert not pruned.biases(1) and not DPPO.biases(4)
    reason = "prompts are drawn once for several optimizer steps: only the first one's gradient is unbiased"
    assert pruned.biases(2) == (reason,)


def test_rates_that_are_given_are_not_chosen_replace_others_and_leave_the_rest():
    """The wrong twin stays ``auto``, with the rate as the most that it may choose."""
    auto = replace(DPPO, completions=replace(DPPO.completions, auto=COMPLETION_AUTO))
    auto = replace(auto, prompts=replace(auto.prompts, rate=0.5, auto=PROMPT_AUTO))
    given = auto.with_rates(prompt=0.2, completion=0.3)
    assert (given.prompts.auto, given.completions.auto) == (None, None)
    assert auto.with_rates(prompt=0.2).completions.auto is COMPLETION_AUTO
    assert (DPPO.prompts.rate, DPPO.completions.rate) == (0.0, 0.5)
    changed = DPPO.with_rates(prompt=0.25)
    assert (changed.prompts.rate, changed.completions.rate) == (0.25, 0.5)
    assert DPPO.with_rates() == DPPO
    steep = DPPO.with_rates(completion=0.95).completions
    assert (steep.rate, steep.floor) == (0.95, pytest.approx(0.025)), "a floor of 0.1 would be above what is kept"
    for rates in ({"prompt": 1.0}, {"completion": -0.1}, {"completion": 1.5}):
        for name in ("dppo", "cppo"):
            with refused(ConfigError, "[0, 1)"):
                METHODS[name].with_rates(**rates)


def test_rules_with_constants_bound_to_them_are_described():
    assert "fixed() rounds" in str(replace(METHODS["greso"].rounds, size=partial(fixed)))
    assert "threshold() rule" in str(Pruning(rate=0.5, rule=partial(threshold)))
    cuts = TokenPruning(rate=0.3, cut_rule=partial(random_prefix))
    assert "random prefix()" in str(cuts)
    with refused(ConfigError, "auto=None", "random prefix()"):
        replace(cuts, auto=COMPLETION_AUTO)


@pytest.mark.parametrize(("name", "power"), [("grpo", -0.5), ("dapo", 0.5)])
def test_the_score_follows_the_normaliser(name, power):
    """Gradients of tokens as random walks: a mean over n tokens has norm |A| / sqrt(n), a sum |A| sqrt(n)."""
    method = replace(DPPO, normaliser=NORMALISERS[name])
    plan = step_of(method, *[[0, 1]] * 4, tokens=[1, 1, 2, 2, 4, 4, 8, 8])
    torch.testing.assert_close(plan.score_N / plan.score_N[0], plan.completions.tokens_N.double() ** power)
    assert (plan.prob_UN[0].diff() * power >= 0).all() and method.score is DPPO.score


def test_coefficients_out_of_range_are_refused_together():
    with refused(ConfigError, "beta=-0.1", "router_coef=inf", "entropy_coef=nan"):
        replace(GRPO, beta=-0.1, router_coef=float("inf"), entropy_coef=float("nan"))


def test_without_kl_only_zero_advantages_are_dead_and_with_kl_nothing_is():
    advantage_N = torch.tensor([0.0, -0.0, 1e-12, -2.0])
    assert GRPO.live(advantage_N).tolist() == [False, False, True, True]
    for term in ({"beta": 0.01}, {"entropy_coef": 0.01}, {"entropy_coef": -0.01}, {"router_coef": 0.01}):
        assert replace(GRPO, **term).live(advantage_N).all()


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.beta])
def test_a_batch_without_signal_draws_nothing_and_raises_nothing(name):
    plan = step_of(METHODS[name], [0.1] * 8, [1.0] * 3)
    assert (plan.weight_UN == 0).all() and not plan.completions.advantage_N.any() and (plan.signal_Q == 0).all()
    assert all(value == value for value in (plan.metrics | plan.draw_metrics[0]).values())


@pytest.mark.parametrize("method", [*METHODS.values(), *ROW_METHODS.values()], ids=[*METHODS, *ROW_METHODS])
def test_presets_go_to_other_processes(method):
    assert pickle.loads(pickle.dumps(method)).describe() == method.describe()


def test_which_presets_claim_to_be_unbiased():
    """``tests/methods/test_methods_estimator.py`` proves each of these."""
    rates = {name: 0.0 if name in ROUNDS else 0.5 for name in METHODS}
    pruned = {name: METHODS[name].with_rates(prompt=rate, completion=0.5) for name, rate in rates.items()}
    assert {name for name, method in pruned.items() if method.biases()} == BIASED
    unpruned = {name: method.with_rates(prompt=0.0, completion=0.0) for name, method in METHODS.items()}
    assert {name for name, method in unpruned.items() if method.biases()} == ROUNDS


@pytest.mark.parametrize("name", METHODS)
def test_the_description_tells_method_paper_bias_and_deviations(name):
    method, prompt = METHODS[name], None if name in ROUNDS else 0.3
    assert name == method.name and method.paper.startswith("arXiv:")
    for variant in (method, method.with_rates(prompt=prompt, completion=0.5)):
        for steps in (1, 2):
            text = variant.describe(steps)
            assert ("Gradient: unbiased." in text) == (not variant.biases(steps))
            for named in (variant.name, variant.paper, *variant.biases(steps), *variant.deviations):
                assert named in text
