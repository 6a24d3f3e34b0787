"""Token losses: equality with TRL's own loss, gradients, padding."""

import math
from collections import defaultdict
from dataclasses import fields, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl import GRPOConfig, GRPOTrainer

from dppo.errors import ConfigError
from dppo.objective import cispo, margin_weights, sapo, sequence_ratio, token_ratio, vespo, weighted_sum
from dppo.objective.losses import Tokens, clipped_surrogate, clipped_tokens, divergence_ppo, k3, off_policy_masked
from dppo.types import each_tensor

NAN = float("nan")


def batch(seed=0, rows=6, tokens=5, spread=0.5, *, corrected=False):
    """An off-policy batch: both signs of advantage, ragged lengths, holes in the sampler's log-probabilities."""
    rng = torch.Generator().manual_seed(seed)
    old_BT = -torch.rand(rows, tokens, generator=rng, dtype=torch.float64) * 3
    logp_BT = old_BT + spread * torch.randn(rows, tokens, generator=rng, dtype=torch.float64)
    advantage_B = torch.randn(rows, generator=rng, dtype=torch.float64)
    length_B = torch.randint(1, tokens + 1, (rows,), generator=rng)
    sampler_BT = old_BT + 0.2 * torch.randn(rows, tokens, generator=rng, dtype=torch.float64)
    sampler_BT[torch.rand(rows, tokens, generator=rng) < 0.2] = NAN
    mask_BT = torch.arange(tokens)[None] < length_B[:, None]
    return Tokens(
        logp_BT=logp_BT,
        old_logp_BT=old_BT,
        advantage_B=advantage_B,
        mask_BT=mask_BT,
        sampler_logp_BT=sampler_BT,
        correction_B1=(old_BT - sampler_BT).nan_to_num(0.0).exp().where(mask_BT, 1.0) if corrected else None,
    )


def summed(loss, tokens):
    """Means over the tokens of each completion, added up."""
    return weighted_sum(loss(tokens), tokens.mask_BT, torch.ones_like(tokens.advantage_B), per_sequence=True)


TRAINER = {each.name: each.default for each in fields(GRPOConfig)} | {
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "use_vllm": True,
    "steps_per_generation": 1,
    "current_gradient_accumulation_steps": 1,
    "aux_loss_enabled": False,
    "_entropy_bonus_enabled": False,
    "training": True,
    "accelerator": SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
    "get_off_policy_mask": GRPOTrainer.get_off_policy_mask,
    "get_gamma_weights": GRPOTrainer.get_gamma_weights,
}
"""What TRL's loss looks at in its trainer, by default with the settings of ``GRPOConfig``."""


def of_trl(tokens, **settings):
    """The same as ``summed``, by the loss of TRL's own trainer, which is given the log-probabilities."""
    trainer, total = SimpleNamespace(**TRAINER | settings, _metrics=defaultdict(lambda: defaultdict(list))), 0.0
    trainer.args = trainer.model = trainer
    for row in range(len(tokens.advantage_B)):
        one = each_tensor(tokens, lambda value, row=row: value[row : row + 1])
        trainer._get_per_token_logps_and_entropies = lambda *_, found=one, **__: (found.logp_BT, found.logp_BT, None)
        inputs = {
            **dict.fromkeys(("prompt_ids", "prompt_mask", "completion_ids", "completion_mask"), one.mask_BT.long()),
            "advantages": one.advantage_B,
            "old_per_token_logps": one.old_logp_BT,
            "ref_per_token_logps": one.ref_logp_BT,
            "importance_sampling_ratio": one.correction_B1,
            "num_items_in_batch": one.mask_BT.sum(),
        }
        if one.sampler_logp_BT is not None:
            inputs["sampling_per_token_logps"] = one.sampler_logp_BT
        trainer.vllm_importance_sampling_correction = one.correction_B1 is not None
        total += GRPOTrainer._compute_loss(trainer, None, inputs)
    return total


def slope(of_tokens, tokens):
    """(B, T) the gradient of a number by the log-probabilities of the policy."""
    leaf = tokens.logp_BT.clone().requires_grad_()
    return torch.autograd.grad(of_tokens(replace(tokens, logp_BT=leaf)), leaf)[0]


def gradient(loss, tokens):
    return slope(partial(summed, loss), tokens)


LOSSES = {
    "clipped": (clipped_surrogate, {}),
    "clipped higher": (clipped_surrogate, dict(clip_low=0.1, clip_high=0.28)),
    "clipped and capped": (clipped_surrogate, dict(delta=1.3)),
    "gspo": (clipped_surrogate, dict(ratio=sequence_ratio, clip_low=3e-4, clip_high=4e-4)),
    "gspo, wide": (clipped_surrogate, dict(ratio=sequence_ratio, clip_low=0.1)),
    "cispo": (cispo, dict(ratio_max=1.2)),
    "sapo": (sapo, {}),
    "sapo of completions": (sapo, dict(ratio=sequence_ratio, temperature_pos=2.0, temperature_neg=0.5)),
    "vespo": (vespo, {}),
    "vespo without a lambda": (vespo, dict(lambda_pos=0.0, lambda_neg=-1.0)),
    "vespo, other constants": (vespo, dict(k_pos=1.0, lambda_neg=0.5)),
    "off-policy masked": (partial(off_policy_masked, loss=clipped_surrogate), dict(threshold=0.1)),
    "off-policy masked, far": (partial(off_policy_masked, loss=clipped_surrogate), dict(threshold=0.3)),
}
OURS = {name: partial(loss, **constants) for name, (loss, constants) in LOSSES.items()}
CONSTANTS = {"clip_low": "epsilon_low", "clip_high": "epsilon_high", "ratio_max": "epsilon_high", "delta": "delta"}
CONSTANTS |= {"ratio": "importance_sampling_level", "threshold": "off_policy_mask_threshold"}


def trl_of(name):
    """TRL's loss of the same constants under its own names."""
    loss, constants = LOSSES[name]
    kind = {cispo: "cispo", sapo: "sapo", vespo: "vespo"}.get(loss, "grpo")
    named = {CONSTANTS.get(each, f"{kind}_{each}"): value for each, value in constants.items()}
    level = {"importance_sampling_level": "sequence"} if "ratio" in constants else {}
    return partial(of_trl, loss_type=kind, **named | level)


@pytest.mark.parametrize("corrected", [False, True], ids=["", "corrected"])
@pytest.mark.parametrize(("name", "other"), zip(LOSSES, [*LOSSES][1:] + [*LOSSES][:1], strict=True), ids=str)
def test_loss_and_gradient_equal_trl_and_another_loss_would_be_seen(name, other, corrected):
    worst = 0.0
    for seed in range(5):
        tokens = batch(seed, corrected=corrected)
        got_BT = gradient(OURS[name], tokens)
        torch.testing.assert_close(summed(OURS[name], tokens), trl_of(name)(tokens), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(got_BT, slope(trl_of(name), tokens), rtol=1e-6, atol=1e-6)
        worst = max(worst, (got_BT - slope(trl_of(other), tokens)).abs().max().item())
    assert worst > 1e-3


def test_gspo_equals_the_straight_through_form_in_value_and_gradient():
    """verl writes the sequence ratio as ``logp - sg(logp) + sg(log s)`` per token; with one A per row both agree."""
    tokens = batch(5, spread=0.1)

    def straight_through(tokens):
        log_s_B1 = sequence_ratio(tokens).log().detach()
        ratio_BT = (tokens.logp_BT - tokens.logp_BT.detach() + log_s_B1).exp()
        advantage_B1 = tokens.advantage_B[:, None]
        return -(ratio_BT * advantage_B1).minimum(ratio_BT.clamp(0.9, 1.1) * advantage_B1)

    ours = partial(clipped_surrogate, ratio=sequence_ratio, clip_low=0.1, clip_high=0.1)
    torch.testing.assert_close(summed(ours, tokens), summed(straight_through, tokens), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(ours, tokens), gradient(straight_through, tokens), rtol=1e-12, atol=1e-15)


@given(
    seed=st.integers(0, 50),
    low=st.floats(0.01, 0.5),
    high=st.floats(0.01, 0.5),
    ratio=st.sampled_from([token_ratio, sequence_ratio]),
)
def test_clipped_tokens_are_the_ones_without_a_gradient(seed, low, high, ratio):
    tokens = batch(seed)
    clip = {"ratio": ratio, "clip_low": low, "clip_high": high}
    low_BT, high_BT = clipped_tokens(tokens, **clip)
    clipped_BT = (low_BT | high_BT).expand_as(tokens.mask_BT)
    still_BT = gradient(partial(clipped_surrogate, **clip), tokens) == 0
    assert not (low_BT & high_BT).any()
    assert torch.equal(clipped_BT & tokens.mask_BT, still_BT & tokens.mask_BT)
    if ratio is token_ratio:
        assert not (clipped_BT & ~tokens.mask_BT).any(), "padding has ratio 1"


@pytest.mark.parametrize("loss", [*OURS.values(), divergence_ppo], ids=[*OURS, "divergence"])
@pytest.mark.parametrize("garbage", [1e4, -1e4, float("inf"), NAN])
def test_padding_never_reaches_the_value_or_the_gradient(loss, garbage):
    tokens, results = batch(2), []
    padding_BT = ~tokens.mask_BT
    for filler in (0.0, garbage):
        names = ("logp_BT", "old_logp_BT", "sampler_logp_BT")
        filled = replace(tokens, **{name: getattr(tokens, name).masked_fill(padding_BT, filler) for name in names})
        results.append((summed(loss, filled), gradient(loss, filled)))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert (results[1][1][padding_BT] == 0).all()


def test_multiplying_by_the_mask_at_the_end_would_not_protect_the_gradient():
    leaf = torch.zeros(1, 2, requires_grad=True)
    old_BT, mask_BT = torch.tensor([[0.0, -1e4]]), torch.tensor([[1.0, 0.0]])
    ((leaf - old_BT).exp().masked_fill(mask_BT == 0, 0.0)).sum().backward()
    assert leaf.grad is not None and leaf.grad.isnan().any()


@pytest.mark.parametrize("ratio", [None, token_ratio, sequence_ratio])
def test_k3_equals_trl(ratio):
    """With the ratio it is what ``use_bias_correction_kl`` makes of it."""
    tokens = batch(3)
    tokens = replace(tokens, advantage_B=torch.zeros(6).double(), ref_logp_BT=tokens.sampler_logp_BT.nan_to_num(-1.0))
    level = "sequence" if ratio is sequence_ratio else "token"
    trl = partial(of_trl, beta=1.0, use_bias_correction_kl=ratio is not None, importance_sampling_level=level)
    ours = partial(k3, ratio=ratio)
    torch.testing.assert_close(summed(ours, tokens), trl(tokens), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradient(ours, tokens), slope(trl, tokens), rtol=1e-12, atol=1e-14)


def test_gradients_of_k3_over_all_tokens_of_a_policy_are_those_of_its_docstring():
    """Sampling probabilities are constants, as in training: only the estimator is differentiated.

    k1 and k2 are written here: with one of them in the place of k3 the check would fail.
    """
    leaf = torch.tensor([0.3, -0.8, 1.1, 0.0], dtype=torch.float64, requires_grad=True)
    logp, ref = leaf.log_softmax(0), torch.tensor([-0.4, 0.9, 0.2, 0.5], dtype=torch.float64).log_softmax(0)
    nothing, all_tokens = torch.zeros(1, dtype=torch.float64), torch.ones(1, 4)
    one_of_each = Tokens(logp_BT=logp[None], old_logp_BT=logp.detach()[None], advantage_B=nothing, mask_BT=all_tokens)

    def mean_gradient(value):
        return torch.autograd.grad((logp.exp().detach() * value).sum(), leaf, retain_graph=True)[0]

    def of_divergence(one, other):
        return torch.autograd.grad((one.exp() * (one - other)).sum(), leaf, retain_graph=True)[0]

    toward = of_divergence(ref, logp)
    mean = mean_gradient(k3(replace(one_of_each, ref_logp_BT=ref[None]))[0])
    torch.testing.assert_close(mean, toward, rtol=1e-12, atol=1e-15)
    for wrong, expected in ((logp - ref, 0 * toward), ((logp - ref).square() / 2, of_divergence(logp, ref))):
        torch.testing.assert_close(mean_gradient(wrong), expected, rtol=1e-12, atol=1e-15)
        assert (mean_gradient(wrong) - toward).abs().max() > 1e-2
    with pytest.raises(ConfigError, match=r"ref_logp_BT.*beta=0\.0"):
        k3(one_of_each)


def test_margin_weights_are_1_at_the_centre_fall_and_stay_within_bounds():
    margin = torch.tensor([-50.0, 1.0, 2.0, 3.0, 50.0])
    weight = margin_weights(margin, centre=2.0, scale=1.0)
    assert weight[2] == 1 and (weight.diff() < 0).all()
    assert weight.tolist() == pytest.approx([1.8, 2 / (1 + math.exp(-1)), 1.0, 2 / (1 + math.e), 0.2], abs=1e-6)
