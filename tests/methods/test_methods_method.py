"""Methods and presets as data: what they claim, what they say about it, and the parts they are made of."""

from dataclasses import replace

import pytest
import torch

from dppo.errors import ConfigError
from dppo.methods import (
    CPPO,
    DAPO,
    DAPO_LOSS,
    DPPO,
    DPPO_DETERMINISTIC,
    DPPO_THRESHOLD,
    DR_GRPO,
    GRPO,
    GSPO,
    METHODS,
    PER_TOKEN_SCORES,
    Method,
)
from dppo.objective import (
    BATCH_SCALED,
    BNPO,
    DAPO_TOKENS,
    GRPO_MEAN,
    group_advantages,
    k3,
    weighted_sum,
    zero_signal,
)
from dppo.objective import DR_GRPO as DR_GRPO_CONSTANT
from dppo.pruning import Pruning, absolute_advantage, advantage_with_confidence, advantage_with_length, per_token
from dppo.rng import Purpose, generator
from dppo.types import Completions

NORMALISERS = (GRPO_MEAN, DR_GRPO_CONSTANT, DAPO_TOKENS, BNPO)


def completions(method, reward_PG, tokens=(3, 9, 1, 5, 4, 2, 8, 6)):
    advantage_N = method.advantages(torch.tensor(reward_PG, dtype=torch.float64)).flatten()
    size = len(advantage_N)
    return Completions(
        advantage_N=advantage_N,
        tokens_N=torch.tensor((tokens * size)[:size]),
        group_N=torch.arange(size) // len(reward_PG[0]),
        live_N=method.live(advantage_N),
    )


def test_presets_are_listed_by_their_names():
    assert list(METHODS) == [
        "grpo", "dr_grpo", "dapo", "dapo_loss", "gspo", "cppo", "cppo_trl", "cppo_verl", "pods", "infobatch",
        "greso", "greso_compat",
        "dppo_threshold", "dppo", "dppo_deterministic", "dppo_unweighted",
        "dppo_dapo", "dppo_gspo", "dppo_threshold_dapo", "dppo_threshold_gspo",
    ]  # fmt: skip
    assert all(name == method.name for name, method in METHODS.items())


def test_which_presets_claim_to_be_unbiased():
    rates = {name: 0.5 if method.rounds is None else 0.0 for name, method in METHODS.items()}
    claims = {name: METHODS[name].with_rates(prompt=rate, completion=0.5).unbiased for name, rate in rates.items()}
    assert claims == {
        "grpo": True,
        "dr_grpo": True,
        "dapo": False,
        "dapo_loss": False,
        "gspo": True,
        "cppo": False,
        "cppo_trl": False,
        "cppo_verl": False,
        "pods": False,
        "infobatch": True,
        "greso": False,
        "greso_compat": False,
        "dppo_threshold": True,
        "dppo": True,
        "dppo_deterministic": False,
        "dppo_unweighted": False,
        "dppo_dapo": False,
        "dppo_gspo": True,
        "dppo_threshold_dapo": False,
        "dppo_threshold_gspo": True,
    }
    unpruned = {name: method.with_rates(prompt=0.0, completion=0.0) for name, method in METHODS.items()}
    assert [name for name, method in unpruned.items() if not method.unbiased] == ["dapo", "greso", "greso_compat"]


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_the_description_tells_method_paper_bias_and_deviations(method):
    prompt = 0.3 if method.rounds is None else None
    for variant in (method, method.with_rates(prompt=prompt, completion=0.5)):
        text = variant.describe()
        assert "\n" not in text
        assert variant.name in text
        assert variant.paper in text
        assert ("Gradient: unbiased." in text) == variant.unbiased
        assert all(sentence in text for sentence in variant.bias + variant.deviations)


def test_bias_names_the_level_and_the_part():
    assert "deterministic" in DPPO_DETERMINISTIC.bias[0]
    assert DPPO_DETERMINISTIC.bias[0].startswith("completion pruning is biased")
    both = DPPO_DETERMINISTIC.with_rates(prompt=0.5)
    assert [sentence.split()[0] for sentence in both.selection_bias] == ["completion", "prompt"]
    assert "kept_mean" in CPPO.bias[0]
    assert DPPO.bias == ()


def test_rounds_are_biased_whatever_else_is_pruned_and_prune_no_prompts_themselves():
    assert [name for name, m in METHODS.items() if m.rounds is not None] == ["dapo", "greso", "greso_compat"]
    assert DAPO.selection_bias == (f"rounds are biased: {DAPO.rounds.bias}",)
    both = replace(CPPO, rounds=DAPO.rounds)
    assert [sentence.split()[0] for sentence in both.selection_bias] == ["completion", "rounds"]
    assert str(DAPO.rounds) in DAPO.describe()
    with pytest.raises(ConfigError, match=r"rolled out in rounds, so none are pruned: prompt rate 0\.5\. Write 0"):
        DAPO.with_rates(prompt=0.5)
    assert replace(DAPO_LOSS, name=DAPO.name, rounds=DAPO.rounds, deviations=DAPO.deviations) == DAPO


@pytest.mark.parametrize("normaliser", NORMALISERS, ids=lambda n: n.name)
def test_a_token_denominator_is_biased_under_prompt_pruning_only(normaliser):
    method = replace(DPPO, normaliser=normaliser)
    assert method.with_rates(completion=0.7).unbiased
    pruned = method.with_rates(prompt=0.5)
    assert pruned.unbiased == normaliser.prompt_exact
    assert pruned.selection_bias == ()
    if not normaliser.prompt_exact:
        assert pruned.bias == (f"the {normaliser.name} normaliser is biased under prompt pruning: {normaliser.reason}",)


def test_batch_statistics_are_biased_under_prompt_pruning_only():
    method = replace(DPPO, advantages=BATCH_SCALED)
    assert method.unbiased
    assert "batch advantage is biased under prompt pruning" in method.with_rates(prompt=0.5).bias[0]


def test_rates_replace_what_is_given_and_leave_the_rest():
    assert (DPPO.prompts.rate, DPPO.completions.rate) == (0.0, 0.5)
    changed = DPPO.with_rates(prompt=0.25)
    assert (changed.prompts.rate, changed.completions.rate) == (0.25, 0.5)
    assert changed.with_rates(completion=0.9).completions.rate == 0.9, "1 - 0.9 is just below the floor of 0.1"
    assert DPPO.with_rates() == DPPO
    with pytest.raises(ConfigError, match=r"floor=0.1.*rate=0.95"):
        DPPO.with_rates(completion=0.95)
    with pytest.raises(ConfigError, match=r"rate=1 must be in \[0, 1\)"):
        DPPO.with_rates(prompt=1.0)


@pytest.mark.parametrize("beta", [-0.1, float("nan"), float("inf")])
def test_a_beta_out_of_range_is_refused(beta):
    with pytest.raises(ConfigError, match=r"beta=.*must be finite and >= 0"):
        replace(GRPO, beta=beta)


def test_without_kl_only_zero_advantages_are_dead_and_with_kl_nothing_is():
    advantage_N = torch.tensor([0.0, -0.0, 1e-12, -2.0])
    assert GRPO.live(advantage_N).tolist() == [False, False, True, True]
    assert replace(GRPO, beta=0.01).live(advantage_N).tolist() == [True] * 4


@pytest.mark.parametrize("score", PER_TOKEN_SCORES, ids=lambda s: s.__name__)
def test_the_score_follows_the_normaliser_there_and_back(score):
    by_mean = Method(name="x", paper="y", normaliser=GRPO_MEAN, completions=Pruning(score=score))
    assert by_mean.completions.score is PER_TOKEN_SCORES[score]
    by_sum = replace(by_mean, normaliser=DAPO_TOKENS)
    assert by_sum.completions.score is score
    assert replace(by_sum, normaliser=GRPO_MEAN) == by_mean
    assert by_mean.with_rates(completion=0.5).completions.score is PER_TOKEN_SCORES[score]
    assert "per token" in by_mean.with_rates(completion=0.5).describe()
    assert "per token" not in by_sum.with_rates(completion=0.5).describe()


def test_other_scores_are_used_as_given():
    own = per_token(absolute_advantage)
    for score in (absolute_advantage, own):
        for normaliser in NORMALISERS:
            method = Method(name="x", paper="y", normaliser=normaliser, completions=Pruning(score=score))
            assert method.completions.score is score
    assert CPPO.completions.score is absolute_advantage
    assert DPPO_THRESHOLD.completions.score is absolute_advantage


def test_the_per_token_score_is_the_better_one_under_a_mean_over_tokens():
    """Gradients of tokens as random walks: a mean over n tokens has norm |A| / sqrt(n), and the variance agrees."""
    batch = Completions(
        advantage_N=torch.ones(4, dtype=torch.float64),
        tokens_N=torch.tensor([1, 4, 16, 64]),
        group_N=torch.zeros(4),
        live_N=torch.ones(4, dtype=torch.bool),
        confidence_N=torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64),
    )
    for score in (advantage_with_length, advantage_with_confidence):
        torch.testing.assert_close(score(batch), torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64))
        expected = torch.tensor([1.0, 0.5, 0.25, 0.125], dtype=torch.float64)
        torch.testing.assert_close(PER_TOKEN_SCORES[score](batch), expected)


def test_cppo_keeps_the_largest_advantages_of_each_group_and_averages_over_them():
    reward_PG = [[1, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1]]
    batch = completions(CPPO, reward_PG)
    draw = CPPO.completions.draw_completions(batch, generator(0, Purpose.CHECK))
    assert draw.keep_N.view(2, 8).nonzero().tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [1, 2], [1, 7]]
    kept_A = batch.advantage_N[draw.keep_N]
    assert kept_A[:4].sum().item() == pytest.approx(2.16, abs=5e-3), "kept advantages no longer sum to 0"
    loss_N1 = torch.arange(16.0, dtype=torch.float64)[:, None]
    got = weighted_sum(loss_N1, torch.ones_like(loss_N1), draw.weight_N, per_sequence=True) / 16
    torch.testing.assert_close(got, loss_N1[draw.keep_N].mean(), rtol=1e-12, atol=0)


def test_cppo_counts_in_integers():
    for rate, kept in ((0.9, 1), (0.8, 2), (0.5, 5), (0.3, 7)):
        reward_PG = [[float(i) + 0.1 * i * i for i in range(10)]]
        draw = CPPO.with_rates(completion=rate).completions.draw_completions(
            completions(CPPO, reward_PG), generator(0, Purpose.CHECK)
        )
        assert int(draw.keep_N.sum()) == kept


def test_a_batch_without_signal_draws_nothing_and_raises_nothing():
    for method in METHODS.values():
        batch = completions(method, [[0.1] * 8, [1.0] * 8])
        draw = method.completions.draw_completions(batch, generator(0, Purpose.CHECK))
        assert not draw.keep_N.any()
        assert (draw.weight_N == 0).all()


def test_groups_without_signal_are_the_ones_dapo_filters():
    """DAPO keeps a group when its rewards have a positive standard deviation with ddof 0."""
    reward_PG = torch.tensor([[0.0, 0.0], [0.1, 0.1], [0.0, 1.0], [0.3, 0.1]], dtype=torch.float64)
    assert torch.equal(~zero_signal(group_advantages(reward_PG)), reward_PG.std(1, correction=0) > 0)


def test_presets_hold_the_constants_of_their_papers():
    logp = torch.tensor([[1.0]], dtype=torch.float64)
    old, mask, advantage = torch.zeros_like(logp), torch.ones_like(logp), torch.ones(1, dtype=torch.float64)
    limits = {"grpo": 1.2, "dr_grpo": 1.2, "dapo": 1.28, "gspo": 1.0004, "cppo": 1.2, "dppo": 1.2}
    for name, limit in limits.items():
        assert -METHODS[name].loss(logp, old, advantage, mask).item() == pytest.approx(limit, abs=1e-12)
        low = METHODS[name].loss(-logp, old, -advantage, mask).item()
        assert low == pytest.approx(0.9997 if name == "gspo" else 0.8, abs=1e-12)
    assert [m.normaliser.name for m in (GRPO, DR_GRPO, DAPO_LOSS, GSPO)] == ["grpo", "dr_grpo", "dapo", "grpo"]
    assert DR_GRPO.advantages(torch.tensor([[2.0, 1.0, 0.0, 3.0]])).tolist() == [[0.5, -0.5, -1.5, 1.5]]


def test_the_loss_adds_kl_to_every_token_and_ignores_padding():
    method = replace(GRPO, beta=0.5)
    logp, old, ref = (torch.tensor([[-1.0, float("-inf")]]) + shift for shift in (0.0, 0.1, 0.3))
    mask, advantage = torch.tensor([[True, False]]), torch.tensor([2.0])
    got = method.loss(logp, old, advantage, mask, ref)
    expected = GRPO.token_loss(logp, old, advantage, mask) + 0.5 * k3(logp, ref)
    torch.testing.assert_close(got[mask], expected[mask])
    assert got.isfinite().all()
    with pytest.raises(ConfigError, match=r"beta=0.5 needs ref_logp_BT"):
        method.loss(logp, old, advantage, mask)
    torch.testing.assert_close(GRPO.loss(logp, old, advantage, mask), GRPO.token_loss(logp, old, advantage, mask))
