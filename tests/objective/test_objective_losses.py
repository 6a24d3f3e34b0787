"""Token losses: TRL 1.16 re-stated scalar by scalar, gradients, padding."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from arrays import tensor
from hypothesis import given
from hypothesis import strategies as st

from dppo.errors import ConfigError
from dppo.objective import (
    Tokens,
    cispo,
    clipped_surrogate,
    clipped_tokens,
    divergence_ppo,
    k3,
    margin_weights,
    off_policy_masked,
    sapo,
    sequence_ratio,
    token_ratio,
    vespo,
    weighted_sum,
)

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


# TRL 1.16, one completion at a time, in Python floats: from lists to a loss per token.


def ratios(row, level):
    log_ratio = [a - b for a, b in zip(row["logp"], row["old"], strict=True)]
    if level == "sequence":
        mean = sum(r for r, m in zip(log_ratio, row["mask"], strict=True) if m) / max(sum(row["mask"]), 1)
        log_ratio = [mean] * len(log_ratio)
    return [math.exp(r) for r in log_ratio]


def trl_clipped(row, level="token", low=0.2, high=0.2, delta=math.inf):
    return [
        -min(min(r, delta) * row["A"], min(max(r, 1 - low), 1 + high) * row["A"]) for r in ratios(row, level)
    ]  # fmt: skip


def trl_cispo(row, level="token", high=5.0):
    return [-min(r, high) * row["A"] * logp for r, logp in zip(ratios(row, level), row["logp"], strict=True)]


def trl_sapo(row, level="token", pos=1.0, neg=1.05):
    t = pos if row["A"] > 0 else neg
    return [-row["A"] * 4 / t / (1 + math.exp(-t * (r - 1))) for r in ratios(row, level)]


def trl_vespo(row, pos=(2.0, 3.0), neg=(3.0, 2.0), average=False):
    k, lam = pos if row["A"] >= 0 else neg
    lam = max(lam, 1e-4)
    log_w = sum(a - b for a, b, m in zip(row["logp"], row["old"], row["mask"], strict=True) if m)
    log_w = log_w / max(sum(row["mask"]), 1) if average else log_w
    if row["correction"] is not None:
        log_w += sum(math.log(c) for c in row["correction"])
    log_w = min(max(log_w, math.log(1e-8)), 20.0)
    phi = math.exp(lam + k * log_w - lam * math.exp(log_w))
    return [-phi * row["A"] * logp for logp in row["logp"]]


def trl_masked(row, threshold=0.1, behaviour="sampler", sign=1):
    drift = [(mu - pi) * sign for mu, pi in zip(row[behaviour], row["logp"], strict=True)]
    drift = [d for d, m in zip(drift, row["mask"], strict=True) if m]
    mean = sum(0.0 if d != d else d for d in drift) / max(len(drift), 1)
    return trl_clipped(row) if row["A"] >= 0 or mean <= threshold else [0.0] * len(row["logp"])


def restated(rule, tokens, **settings):
    """(B, T) of a rule of TRL, and the correction to the rollout engine on top of all losses but VESPO."""
    rows = []
    for i, advantage in enumerate(tokens.advantage_B.tolist()):
        fields = {"logp": tokens.logp_BT, "old": tokens.old_logp_BT, "mask": tokens.mask_BT}
        row = {name: value[i].tolist() for name, value in fields.items()} | {"A": advantage}
        row["sampler"] = row["old"] if tokens.sampler_logp_BT is None else tokens.sampler_logp_BT[i].tolist()
        factor = [1.0] * len(row["logp"]) if tokens.correction_B1 is None else tokens.correction_B1[i].tolist()
        row["correction"] = None if tokens.correction_B1 is None else factor
        loss = rule(row, **settings)
        rows.append(loss if rule is trl_vespo else [x * c for x, c in zip(loss, factor, strict=True)])
    return tensor(rows)


GSPO = partial(clipped_surrogate, ratio=sequence_ratio, clip_low=3e-4, clip_high=4e-4)
MASKED = partial(off_policy_masked, loss=clipped_surrogate, threshold=0.1)
LOSSES = {
    "clipped": (clipped_surrogate, trl_clipped, {}, {"low": 0.3}),
    "clipped higher": (partial(clipped_surrogate, clip_low=0.1, clip_high=0.28), trl_clipped,
                       {"low": 0.1, "high": 0.28}, {}),
    "clipped and capped": (partial(clipped_surrogate, delta=1.3), trl_clipped, {"delta": 1.3}, {}),
    "gspo": (GSPO, trl_clipped, {"level": "sequence", "low": 3e-4, "high": 4e-4}, {"low": 3e-4, "high": 4e-4}),
    "gspo, wide": (partial(clipped_surrogate, ratio=sequence_ratio, clip_low=0.1), trl_clipped,
                   {"level": "sequence", "low": 0.1}, {"low": 0.1}),
    "cispo": (partial(cispo, ratio_max=1.2), trl_cispo, {"high": 1.2}, {"high": 2.2}),
    "sapo": (sapo, trl_sapo, {}, {"pos": 1.05, "neg": 1.0}),
    "sapo of completions": (partial(sapo, ratio=sequence_ratio, temperature_pos=2.0, temperature_neg=0.5), trl_sapo,
                            {"level": "sequence", "pos": 2.0, "neg": 0.5}, {"pos": 2.0, "neg": 0.5}),
    "vespo": (vespo, trl_vespo, {}, {"average": True}),
    "vespo without a lambda": (partial(vespo, lambda_pos=0.0, lambda_neg=-1.0), trl_vespo,
                               {"pos": (2.0, 0.0), "neg": (3.0, 0.0)}, {}),
    "vespo, other constants": (partial(vespo, k_pos=1.0, lambda_neg=0.5), trl_vespo,
                               {"pos": (1.0, 3.0), "neg": (3.0, 0.5)}, {"pos": (3.0, 0.5), "neg": (1.0, 3.0)}),
    "off-policy masked": (MASKED, trl_masked, {}, {"behaviour": "old"}),
    "off-policy masked, far": (partial(MASKED, threshold=0.3), trl_masked, {"threshold": 0.3},
                               {"threshold": 0.3, "sign": -1}),
}  # fmt: skip
"""By name: our loss, TRL's, the settings that make them equal, and settings that make TRL's another loss."""


@pytest.mark.parametrize("corrected", [False, True], ids=["", "corrected"])
@pytest.mark.parametrize("name", LOSSES)
def test_values_equal_trl_and_another_loss_would_be_seen(name, corrected):
    loss, rule, settings, other = LOSSES[name]
    worst = 0.0
    for seed in range(5):
        tokens = batch(seed, corrected=corrected)
        got, mask = loss(tokens), tokens.mask_BT
        torch.testing.assert_close(got[mask], restated(rule, tokens, **settings)[mask], rtol=1e-12, atol=1e-12)
        worst = max(worst, (got - restated(rule, tokens, **other))[mask].abs().max().item())
    assert worst > 1e-3


def summed(loss, tokens):
    """Means over tokens, added up."""
    return weighted_sum(loss(tokens), tokens.mask_BT, torch.ones_like(tokens.advantage_B), per_sequence=True)


def gradient(loss, tokens):
    leaf = tokens.logp_BT.clone().requires_grad_()
    return torch.autograd.grad(summed(loss, replace(tokens, logp_BT=leaf)), leaf)[0]


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_on_policy_is_minus_the_advantage(name):
    """At ratio 1 every loss is the same: d loss / d logp = -A, over a completion's tokens."""
    tokens = batch(1)
    tokens = replace(tokens, logp_BT=tokens.old_logp_BT, sampler_logp_BT=None)
    expected_BT = -tokens.advantage_B[:, None] * tokens.mask_BT / tokens.mask_BT.sum(1, keepdim=True)
    torch.testing.assert_close(gradient(LOSSES[name][0], tokens), expected_BT, rtol=1e-12, atol=1e-15)


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


@pytest.mark.parametrize("loss", [*(ours for ours, *_ in LOSSES.values()), divergence_ppo], ids=[*LOSSES, "divergence"])
@pytest.mark.parametrize("garbage", [1e4, -1e4, float("inf"), NAN])
def test_padding_never_reaches_the_value_or_the_gradient(loss, garbage):
    tokens, results = batch(2), []
    padding_BT = ~tokens.mask_BT
    for filler in (0.0, garbage):
        fields = ("logp_BT", "old_logp_BT", "sampler_logp_BT")
        padded = {name: getattr(tokens, name).masked_fill(padding_BT, filler) for name in fields}
        filled = replace(tokens, **padded)
        results.append((summed(loss, filled), gradient(loss, filled)))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert (results[1][1][padding_BT] == 0).all()


def test_multiplying_by_the_mask_at_the_end_would_not_protect_the_gradient():
    leaf = torch.zeros(1, 2, requires_grad=True)
    old_BT, mask_BT = torch.tensor([[0.0, -1e4]]), torch.tensor([[1.0, 0.0]])
    ((leaf - old_BT).exp().masked_fill(mask_BT == 0, 0.0)).sum().backward()
    assert leaf.grad is not None and leaf.grad.isnan().any()


# The KL term: over all tokens of a small policy it has the gradient that its docstring claims.

LOGITS = torch.tensor([0.3, -0.8, 1.1, 0.0], dtype=torch.float64)
REF_LOGP = torch.tensor([-0.4, 0.9, 0.2, 0.5], dtype=torch.float64).log_softmax(0)


def one_of_each(logp, ref, *, old=None):
    """One completion whose tokens are all tokens that there are."""
    return Tokens(
        logp_BT=logp[None],
        old_logp_BT=(logp.detach() if old is None else old)[None],
        advantage_B=torch.zeros(1, dtype=torch.float64),
        mask_BT=torch.ones(1, len(logp)),
        ref_logp_BT=None if ref is None else ref[None],
    )


def divergence(logp, other):
    """KL(first || second) of two categorical policies."""
    return (logp.exp() * (logp - other)).sum()


@pytest.mark.parametrize("ratio", [None, token_ratio, sequence_ratio])
def test_k3_equals_trl(ratio):
    """With the ratio it is what ``use_bias_correction_kl`` makes of it."""
    logp, old, ref = torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    given = one_of_each(logp[0], ref[0], old=old[0])
    kl = torch.exp(ref - logp) - (ref - logp) - 1
    log_ratio = {None: logp * 0, token_ratio: logp - old, sequence_ratio: (logp - old).mean(1, keepdim=True)}[ratio]
    torch.testing.assert_close(k3(given, ratio=ratio)[0], (kl * log_ratio.exp())[0], rtol=1e-12, atol=1e-14)


def test_gradients_over_all_tokens_are_those_of_the_docstrings():
    """Sampling probabilities are constants, as in training: only the estimator is differentiated.

    k1 and k2 are written here: with one of them in the place of k3 the check would fail.
    """

    def gradient(value):
        return torch.autograd.grad(value, leaf, retain_graph=True)[0]

    leaf = LOGITS.clone().requires_grad_()
    logp = leaf.log_softmax(0)
    sampled = logp.exp().detach()
    toward, away = (gradient(divergence(*pair)) for pair in ((REF_LOGP, logp), (logp, REF_LOGP)))
    mean = gradient((sampled * k3(one_of_each(logp, REF_LOGP))[0]).sum())
    torch.testing.assert_close(mean, toward, rtol=1e-12, atol=1e-15)
    for wrong, expected in ((logp - REF_LOGP, 0 * toward), ((logp - REF_LOGP).square() / 2, away)):
        got = gradient((sampled * wrong).sum())
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-15)
        assert (got - toward).abs().max() > 1e-2


def test_a_term_without_a_reference_says_what_to_pass():
    with pytest.raises(ConfigError, match=r"ref_logp_BT.*beta=0\.0"):
        k3(one_of_each(LOGITS, None))


def test_margin_weights_are_1_at_the_centre_fall_and_stay_within_bounds():
    margin = torch.tensor([-50.0, 1.0, 2.0, 3.0, 50.0])
    weight = margin_weights(margin, centre=2.0, scale=1.0)
    assert weight[2] == 1 and (weight.diff() < 0).all()
    assert weight.tolist() == pytest.approx([1.8, 2 / (1 + math.exp(-1)), 1.0, 2 / (1 + math.e), 0.2], abs=1e-6)
