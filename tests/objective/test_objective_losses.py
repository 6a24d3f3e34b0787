"""Token losses: golden numbers, TRL 1.16 re-stated scalar by scalar, gradients by finite differences, padding."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dppo.objective import (
    Tokens,
    cispo,
    clipped_surrogate,
    clipped_tokens,
    off_policy_masked,
    sapo,
    sequence_ratio,
    token_ratio,
    vespo,
    weighted_sum,
)

NAN = float("nan")


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


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


def one(logp, advantage, *, old=None, mask=None, **given):
    """One completion; on the old policy's log-probabilities of 0 unless said otherwise."""
    logp_BT = tensor([logp])
    return Tokens(
        logp_BT=logp_BT,
        old_logp_BT=torch.zeros_like(logp_BT) if old is None else tensor([old]),
        advantage_B=tensor([advantage]),
        mask_BT=torch.ones_like(logp_BT) if mask is None else torch.tensor([mask]),
        **given,
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

SMOOTH = {name: loss for name, (loss, *_) in LOSSES.items() if "cispo" not in name and "vespo" not in name}


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


@pytest.mark.parametrize("name", ["clipped", "gspo", "cispo", "sapo"])
def test_a_correction_of_whole_completions_multiplies_all_their_tokens(name):
    tokens, loss = batch(1), LOSSES[name][0]
    factor_B1 = torch.linspace(0.5, 2, 6, dtype=torch.float64)[:, None]
    torch.testing.assert_close(loss(replace(tokens, correction_B1=factor_B1)), factor_B1 * loss(tokens))


# Golden numbers.


@pytest.mark.parametrize(("log_ratio", "expected"), [([0.1, -0.2, 0.3], 1.0689391), ([0.5, 0.5], 1.6487213)])
def test_gspo_golden_ratio(log_ratio, expected):
    found = sequence_ratio(one(log_ratio, 1.0))
    torch.testing.assert_close(found, tensor([[expected]]), rtol=0, atol=5e-8)
    loss_BT = clipped_surrogate(one(log_ratio, -1.0), ratio=sequence_ratio, clip_low=1.0, clip_high=9.0)
    torch.testing.assert_close(loss_BT, found.expand(1, len(log_ratio)))


def test_ratio_of_tokens_and_of_a_completion():
    """Log-ratios log 2 and log 8 and a padded token: 2 and 8 by token, their geometric mean 4 by completion."""
    tokens = one([math.log(2), math.log(8), 5.0], 1.0, mask=[1, 1, 0])
    torch.testing.assert_close(token_ratio(tokens), tensor([[2.0, 8.0, 1.0]]))
    torch.testing.assert_close(sequence_ratio(tokens), tensor([[4.0]]))


def test_clipping_by_hand():
    """Ratios 2, 1 and 0.5 with A = 1, then with A = -1: min() lets only the pessimistic side through."""
    log_ratio = [math.log(2), 0.0, math.log(0.5)]
    up, down = one(log_ratio, 1.0), one(log_ratio, -1.0)
    for tokens, delta, expected in (
        (up, None, [-1.2, -1.0, -0.5]),
        (down, None, [2.0, 1.0, 0.8]),
        (up, 1.5, [-1.2, -1.0, -0.5]),
        (down, 1.5, [1.5, 1.0, 0.8]),
    ):
        torch.testing.assert_close(clipped_surrogate(tokens, delta=delta), tensor([expected]))
    near = [[math.log(1.19), math.log(1.21), 0.0], [math.log(0.81), math.log(0.79), 0.0]]
    for log_ratio, advantage, bound in ((near[0], 1.0, 1), (near[1], -1.0, 0)):
        assert clipped_tokens(one(log_ratio, advantage))[bound].tolist() == [[False, True, False]]
    assert [found.tolist() for found in clipped_tokens(up)] == [[[False] * 3], [[True, False, False]]]
    assert [found.tolist() for found in clipped_tokens(down)] == [[[False, False, True]], [[False] * 3]]


def test_sapo_by_hand():
    """At ratio 1 the gate is 2 / t; at ratio 2 and t = 1 it is 4 sigmoid(1), and it never exceeds 4 / t."""
    log_ratio = [0.0, math.log(2), 30.0]
    torch.testing.assert_close(sapo(one(log_ratio, 1.0)), tensor([[-2.0, -2.9242343, -4.0]]))
    expected = [2 / 1.05, 4 / 1.05 / (1 + math.exp(-1.05)), 4 / 1.05]
    torch.testing.assert_close(sapo(one(log_ratio, -1.0)), tensor([expected]))


def test_vespo_by_hand():
    """The ratio of a whole completion is 2: e^3 2^2 e^-6 where it was better than its group, e^2 2^3 e^-4 elsewhere."""
    log_ratio, mask = [math.log(4), math.log(0.5), 7.0], [1, 1, 0]
    for advantage, phi in ((1.0, 0.1991483), (0.0, 0.1991483), (-1.0, 1.0826823)):
        torch.testing.assert_close(
            vespo(one(log_ratio, advantage, mask=mask))[:, :2], -phi * advantage * tensor([log_ratio[:2]])
        )
    double = one(log_ratio, -1.0, mask=mask, correction_B1=tensor([[2.0, 1.0, 1.0]]))
    phi = math.exp(2) * 4**3 * math.exp(-8)
    torch.testing.assert_close(vespo(double)[:, :2], phi * tensor([log_ratio[:2]]))
    for far in (60.0, -60.0):
        assert vespo(one([far, far], 1.0)).isfinite().all()


def test_off_policy_masking_by_hand():
    """A drift of 0.3 per token: dropped at a threshold below it, if the advantage is negative."""
    for advantage, threshold, kept in ((-1.0, 0.29, False), (-1.0, 0.31, True), (1.0, 0.0, True), (0.0, 0.0, True)):
        masked = partial(off_policy_masked, loss=clipped_surrogate, threshold=threshold)
        tokens = one([-0.3, -0.3, 9.0], advantage, mask=[1, 1, 0])
        expected = clipped_surrogate(tokens) if kept else torch.zeros(1, 3, dtype=torch.float64)
        assert torch.equal(masked(tokens), expected)
    unknown = one([-0.3, -0.3], -1.0, sampler_logp_BT=tensor([[NAN, 0.5]]))
    assert (partial(MASKED, threshold=0.41)(unknown) != 0).all(), "a token that could not be scored drifts by 0"
    assert (partial(MASKED, threshold=0.39)(unknown) == 0).all()


# Gradients.


def summed(loss, tokens):
    """Means over tokens, added up."""
    return weighted_sum(loss(tokens), tokens.mask_BT, torch.ones_like(tokens.advantage_B), per_sequence=True)


def gradient(loss, tokens):
    leaf = tokens.logp_BT.clone().requires_grad_()
    return torch.autograd.grad(summed(loss, replace(tokens, logp_BT=leaf)), leaf)[0]


@pytest.mark.parametrize("corrected", [False, True], ids=["", "corrected"])
@pytest.mark.parametrize("name", SMOOTH)
def test_the_gradient_is_the_derivative_of_the_value(name, corrected):
    tokens = batch(3, corrected=corrected)
    assert torch.autograd.gradcheck(
        lambda logp: summed(SMOOTH[name], replace(tokens, logp_BT=logp)), tokens.logp_BT.clone().requires_grad_()
    )


@pytest.mark.parametrize("name", ["cispo", "vespo"])
def test_a_factor_that_is_held_constant_has_no_gradient_of_its_own(name):
    """The value then is no function whose derivative is taken: the slope of each token is minus the factor times A."""
    tokens, loss = batch(3), LOSSES[name][0]
    slope_BT = (loss(tokens) / tokens.logp_BT).where(tokens.mask_BT, 0.0) / tokens.mask_BT.sum(1, keepdim=True)
    torch.testing.assert_close(gradient(loss, tokens), slope_BT, rtol=1e-12, atol=1e-15)
    nudged = tokens.logp_BT.clone().requires_grad_()
    assert not torch.autograd.gradcheck(
        lambda logp: summed(loss, replace(tokens, logp_BT=logp)), nudged, raise_exception=False
    )


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


# Padding.


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("garbage", [1e4, -1e4, float("inf"), NAN])
def test_padding_never_reaches_the_value_or_the_gradient(name, garbage):
    results = []
    for filler in (0.0, garbage):
        tokens = batch(2)
        padding_BT = ~tokens.mask_BT
        leaf = tokens.logp_BT.clone().requires_grad_()
        padded = replace(
            tokens,
            logp_BT=leaf,
            old_logp_BT=tokens.old_logp_BT.masked_fill(padding_BT, filler),
            sampler_logp_BT=tokens.sampler_logp_BT.masked_fill(padding_BT, filler),
        )
        value = summed(LOSSES[name][0], padded)
        results.append((value.detach(), torch.autograd.grad(value, leaf)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert (results[1][1][padding_BT] == 0).all()


def test_multiplying_by_the_mask_at_the_end_would_not_protect_the_gradient():
    leaf = torch.zeros(1, 2, requires_grad=True)
    old_BT, mask_BT = torch.tensor([[0.0, -1e4]]), torch.tensor([[1.0, 0.0]])
    ((leaf - old_BT).exp().masked_fill(mask_BT == 0, 0.0)).sum().backward()
    assert leaf.grad is not None and leaf.grad.isnan().any()


@pytest.mark.parametrize("name", LOSSES)
def test_a_mask_may_be_bool_or_numbers(name):
    tokens, loss = batch(4), LOSSES[name][0]
    for mask in (tokens.mask_BT.int(), tokens.mask_BT.double()):
        torch.testing.assert_close(loss(replace(tokens, mask_BT=mask)), loss(tokens), rtol=0, atol=0)
