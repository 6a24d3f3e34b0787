"""``Method``: how its parts fit together, what it says of them, and what it refuses."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from one_step import step_of

from dppo.errors import ConfigError
from dppo.methods import METHODS, in_words
from dppo.objective import BATCH_SCALED, GRPO_MEAN, NORMALISERS, Tokens, clipped_surrogate, k3, sequence_ratio
from dppo.pruning import Pruning, absolute_advantage, advantage_with_length, constant, fade, stop
from dppo.pruning.scores import AVERAGED_SCORES

GRPO, DPPO, CPPO, DAPO = METHODS["grpo"], METHODS["dppo"], METHODS["cppo"], METHODS["dapo"]
PRUNED = DPPO.with_rates(prompt=0.5)


# Bias.


def test_bias_names_the_level_and_the_part():
    both = METHODS["dppo_deterministic"].with_rates(prompt=0.5)
    assert [sentence.split()[0] for sentence in both.selection_bias] == ["completion", "prompt"]
    assert all("deterministic" in sentence for sentence in both.selection_bias)
    assert DPPO.biases() == PRUNED.biases() == ()


def test_rounds_are_biased_whatever_else_is_pruned_and_prune_no_prompts_themselves():
    assert [name for name, m in METHODS.items() if m.rounds is not None] == ["dapo", "greso", "greso_compat"]
    assert DAPO.selection_bias == (f"rounds are biased: {DAPO.rounds.bias}",)
    both = replace(CPPO, rounds=DAPO.rounds)
    assert [sentence.split()[0] for sentence in both.selection_bias] == ["completion", "rounds"]
    assert str(DAPO.rounds) in DAPO.describe()
    with pytest.raises(ConfigError, match=r"rolled out in rounds, so none are pruned: prompt rate 0\.5\. Write 0"):
        DAPO.with_rates(prompt=0.5)


@pytest.mark.parametrize("normaliser", NORMALISERS.values(), ids=NORMALISERS)
def test_a_token_denominator_is_biased_under_prompt_pruning_only(normaliser):
    assert not replace(DPPO, normaliser=normaliser).with_rates(completion=0.7).biases()
    method = replace(PRUNED, normaliser=normaliser)
    assert method.selection_bias == ()
    sentence = f"the {normaliser.name} normaliser is biased under prompt pruning: {normaliser.reason}"
    assert method.biases() == (() if normaliser.prompt_exact else (sentence,))


RATIOS = {
    "batch statistics": ({"advantages": BATCH_SCALED}, "the batch advantage is biased under prompt pruning"),
    "entropy": ({"entropy_coef": -0.1}, "the entropy bonus is biased under prompt pruning"),
}


@pytest.mark.parametrize("name", RATIOS)
def test_what_depends_on_all_prompts_is_biased_under_prompt_pruning_only(name):
    changes, sentence = RATIOS[name]
    assert not replace(DPPO, **changes).biases()
    (only,) = replace(PRUNED, **changes).biases()
    assert only.startswith(sentence)


def test_a_router_loss_is_biased_under_any_pruning():
    """Tested where it is computed; here, that it is said."""
    for method in (DPPO, PRUNED, PRUNED.with_rates(completion=0.0)):
        assert replace(method, router_coef=0.01).biases()[0].startswith("the router loss is biased under pruning")
    assert not replace(GRPO, router_coef=0.01).biases()


def test_one_draw_of_prompts_for_several_optimizer_steps_is_biased_after_the_first():
    assert not PRUNED.biases(1) and not DPPO.biases(4)
    assert PRUNED.biases(2) == (
        "prompts are drawn once for several optimizer steps: only the first one's gradient is unbiased",
    )


# Rates and schedules.


def test_rates_replace_what_is_given_and_leave_the_rest():
    assert (DPPO.prompts.rate, DPPO.completions.rate) == (0.0, 0.5)
    changed = DPPO.with_rates(prompt=0.25)
    assert (changed.prompts.rate, changed.completions.rate) == (0.25, 0.5)
    assert DPPO.with_rates() == DPPO
    steep = DPPO.with_rates(completion=0.95).completions
    assert (steep.rate, steep.floor) == (0.95, pytest.approx(0.025)), "a floor of 0.1 would be above what is kept"
    for rates in ({"prompt": 1.0}, {"completion": -0.1}, {"completion": 1.5}):
        for name in ("dppo", "cppo"):
            with pytest.raises(ConfigError, match=r"must be in \[0, 1\)"):
                METHODS[name].with_rates(**rates)


@pytest.mark.parametrize("name", ["dppo", "cppo", "pods"])
def test_any_selection_can_fade(name):
    method = replace(METHODS[name].with_rates(prompt=0.4, completion=0.5), schedule=partial(fade, until=0.5))
    rates = [(m.prompts.rate, m.completions.rate) for m in (method.at(done) for done in (0, 0.5, 0.75, 1))]
    assert rates == [(0.4, 0.5), (0.4, 0.5), (0.2, 0.25), (0.0, 0.0)]
    assert method.at(0.75).at(0.75) == method.at(0.75), "applied once"
    assert METHODS[name].at(0.9) is METHODS[name]
    assert "rate by schedule fade(until=0.5)" in method.describe()


def test_a_schedule_reaches_the_step():
    groups = [[float(i % 3 == 0) for i in range(8)]] * 4
    method = replace(DPPO, schedule=stop)
    counts = [int((step_of(method, *groups, done=done).weight_UN > 0).sum()) for done in (0.0, 0.874, 0.875)]
    assert counts == [16, 16, 32]
    assert method.schedule is not constant


# Parts.


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"beta": -0.1}, "beta=-0.1 must be finite and >= 0"),
        ({"beta": float("nan")}, "beta=nan"),
        ({"router_coef": float("inf")}, "router_coef=inf"),
        ({"entropy_coef": float("nan")}, "entropy_coef=nan must be finite"),
        ({"beta": -1.0, "entropy_coef": float("inf")}, "2 problems"),
    ],
)
def test_coefficients_out_of_range_are_refused_together(changes, text):
    with pytest.raises(ConfigError, match=text):
        replace(GRPO, **changes)


def test_without_kl_only_zero_advantages_are_dead_and_with_kl_nothing_is():
    advantage_N = torch.tensor([0.0, -0.0, 1e-12, -2.0])
    assert GRPO.live(advantage_N).tolist() == [False, False, True, True]
    for term in ({"beta": 0.01}, {"entropy_coef": 0.01}, {"entropy_coef": -0.01}, {"router_coef": 0.01}):
        assert replace(GRPO, **term).live(advantage_N).tolist() == [True] * 4


def test_the_loss_adds_kl_to_every_token_and_ignores_padding():
    method = replace(GRPO, beta=0.5)
    logp, old, ref = (torch.tensor([[-1.0, float("-inf")]]) + shift for shift in (0.0, 0.1, 0.3))
    mask = torch.tensor([[True, False]])
    tokens = Tokens(logp_BT=logp, old_logp_BT=old, advantage_B=torch.tensor([2.0]), mask_BT=mask, ref_logp_BT=ref)
    got = method.loss(tokens)
    torch.testing.assert_close(got[mask], (GRPO.token_loss(tokens) + 0.5 * k3(tokens))[mask])
    assert got.isfinite().all()
    without = replace(tokens, ref_logp_BT=None)
    with pytest.raises(ConfigError, match=r"beta above 0\) needs ref_logp_BT"):
        method.loss(without)
    torch.testing.assert_close(GRPO.loss(without), GRPO.token_loss(tokens))


@pytest.mark.parametrize("score", AVERAGED_SCORES, ids=lambda s: s.__name__)
def test_the_score_follows_the_normaliser_there_and_back(score):
    """It is never swapped: completions tell it by how much their sums are divided."""
    by_mean = replace(DPPO, normaliser=GRPO_MEAN, completions=Pruning(rate=0.5, score=score))
    by_sum = replace(by_mean, normaliser=NORMALISERS["dapo"])
    assert by_mean.score is by_sum.score is score
    assert by_mean.score_name == f"{by_sum.score_name} per token"
    assert replace(by_sum, normaliser=GRPO_MEAN) == by_mean


def test_the_per_token_score_is_the_better_one_under_a_mean_over_tokens():
    """Gradients of tokens as random walks: a mean over n tokens has norm |A| / sqrt(n), and draws go by that."""
    groups = [[0, 1]] * 4
    prob = {}
    for name in ("grpo", "dapo"):
        method = replace(DPPO, normaliser=NORMALISERS[name])
        plan = step_of(method, *groups, tokens=[1, 1, 2, 2, 4, 4, 8, 8])
        prob[name] = plan.prob_UN[0] / plan.prob_UN[0, 0]
        power = -0.5 if name == "grpo" else 0.5
        torch.testing.assert_close(plan.score_N / plan.score_N[0], plan.completions.tokens_N.double() ** power)
    assert (prob["grpo"].diff() <= 0).all() and (prob["dapo"].diff() >= 0).all()


def test_a_selection_without_a_score_is_guessed_by_the_advantage():
    class Everything:
        rate, bias = 0.0, ""
        draw = at_rate = None  # not called here

    assert replace(GRPO, completions=Everything()).score is absolute_advantage
    assert CPPO.score is absolute_advantage and GRPO.score is advantage_with_length


def test_functions_are_called_by_their_names_and_bound_constants():
    gspo = partial(clipped_surrogate, ratio=sequence_ratio, clip_low=3e-4)
    assert in_words(gspo) == "clipped surrogate(ratio=sequence ratio, clip_low=0.0003)"
    assert in_words(partial(gspo, clip_high=0.5)).endswith("clip_low=0.0003, clip_high=0.5)")
    assert in_words(type("Rule", (), {"__call__": lambda self: None})()) == "Rule"


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.beta])
def test_a_batch_without_signal_draws_nothing_and_raises_nothing(name):
    plan = step_of(METHODS[name], [0.1] * 8, [1.0] * 3)
    assert (plan.weight_UN == 0).all() and not plan.learnable and (plan.signal_Q == 0).all()
    assert all(value == value for value in (plan.figures | plan.draw_figures[0]).values())


def test_a_method_is_a_value_that_no_one_changes():
    with pytest.raises(AttributeError):
        GRPO.beta = 1.0
    assert replace(GRPO, beta=1.0).beta == 1.0 and GRPO.beta == 0.0
