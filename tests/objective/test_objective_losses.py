"""Token losses: golden numbers, TRL 1.16 re-stated scalar by scalar, gradients by finite differences, padding."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dppo.objective import cispo, clip_fractions, clipped_surrogate, gspo, importance_ratio, weighted_sum

LOSSES = {
    "clipped": clipped_surrogate,
    "clipped_higher": partial(clipped_surrogate, clip_high=0.28),
    "clipped_capped": partial(clipped_surrogate, delta=1.5),
    "gspo": partial(gspo, clip_low=0.1, clip_high=0.1),
    "cispo": partial(cispo, ratio_max=1.2),
}


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def batch(seed=0, rows=6, tokens=5, spread=0.5):
    """Log-probabilities of an off-policy batch with both signs of advantage and ragged lengths."""
    rng = torch.Generator().manual_seed(seed)
    old_BT = -torch.rand(rows, tokens, generator=rng, dtype=torch.float64) * 3
    logp_BT = old_BT + spread * torch.randn(rows, tokens, generator=rng, dtype=torch.float64)
    advantage_B = torch.randn(rows, generator=rng, dtype=torch.float64)
    length_B = torch.randint(1, tokens + 1, (rows,), generator=rng)
    return logp_BT, old_BT, advantage_B, torch.arange(tokens)[None] < length_B[:, None]


def trl_token_loss(logp, old, advantage, mask, *, level="token", kind="clipped", low=0.2, high=0.2, delta=None):
    """TRL 1.16 for one completion: a list with a loss per token, from Python floats."""
    log_ratio = [a - b for a, b in zip(logp, old, strict=True)]
    if level == "sequence":
        mean = sum(r * m for r, m in zip(log_ratio, mask, strict=True)) / max(sum(mask), 1)
        log_ratio = [mean] * len(logp)
    out = []
    for own, value in zip(logp, log_ratio, strict=True):
        ratio = math.exp(value)
        if kind == "cispo":
            out.append(-min(ratio, high) * advantage * own)
            continue
        clipped = min(max(ratio, 1 - low), 1 + high)
        free = ratio if delta is None else min(ratio, delta)
        out.append(-min(free * advantage, clipped * advantage))
    return out


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        (clipped_surrogate, {}),
        (partial(clipped_surrogate, clip_low=0.1, clip_high=0.28), {"low": 0.1, "high": 0.28}),
        (partial(clipped_surrogate, delta=1.3), {"delta": 1.3}),
        (gspo, {"level": "sequence", "low": 3e-4, "high": 4e-4}),
        (partial(gspo, clip_low=0.1, clip_high=0.2), {"level": "sequence", "low": 0.1}),
        (partial(cispo, ratio_max=1.2), {"kind": "cispo", "high": 1.2}),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_values_equal_trl(loss, settings, seed):
    logp_BT, old_BT, advantage_B, mask_BT = batch(seed)
    got_BT = loss(logp_BT, old_BT, advantage_B, mask_BT)
    for got, logp, old, advantage, mask in zip(got_BT, logp_BT, old_BT, advantage_B, mask_BT, strict=True):
        expected = tensor(trl_token_loss(logp.tolist(), old.tolist(), advantage.item(), mask.tolist(), **settings))
        torch.testing.assert_close(got[mask], expected[mask], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("log_ratio", "expected"), [([0.1, -0.2, 0.3], 1.0689391), ([0.5, 0.5], 1.6487213)])
def test_gspo_golden_ratio(log_ratio, expected):
    logp_BT = tensor([log_ratio])
    ones = torch.ones_like(logp_BT)
    loss_BT = gspo(logp_BT, torch.zeros_like(logp_BT), tensor([-1.0]), ones, clip_low=1.0, clip_high=9.0)
    torch.testing.assert_close(loss_BT, torch.full_like(logp_BT, expected), rtol=0, atol=5e-8)


def test_ratio_of_tokens_and_of_a_completion():
    """Log-ratios log 2 and log 8 and a padded token: 2 and 8 by token, their geometric mean 4 by completion."""
    logp_BT, mask_BT = tensor([[math.log(2), math.log(8), 5.0]]), torch.tensor([[1, 1, 0]])
    old_BT = torch.zeros_like(logp_BT)
    torch.testing.assert_close(importance_ratio(logp_BT, old_BT, mask_BT), tensor([[2.0, 8.0, 1.0]]))
    torch.testing.assert_close(importance_ratio(logp_BT, old_BT, mask_BT, sequence=True), tensor([[4.0]]))


def test_by_hand():
    """Ratios 2, 1 and 0.5 with A = 1, then with A = -1: min() lets only the pessimistic side through."""
    logp_BT = tensor([[math.log(2), 0.0, math.log(0.5)]] * 2)
    mask_BT = torch.ones_like(logp_BT)
    old_BT, advantage_B = torch.zeros_like(logp_BT), tensor([1.0, -1.0])
    expected = tensor([[-1.2, -1.0, -0.5], [2.0, 1.0, 0.8]])
    torch.testing.assert_close(clipped_surrogate(logp_BT, old_BT, advantage_B, mask_BT), expected)
    capped = clipped_surrogate(logp_BT, old_BT, advantage_B, mask_BT, delta=1.5)
    torch.testing.assert_close(capped, tensor([[-1.2, -1.0, -0.5], [1.5, 1.0, 0.8]]))
    low_BT, high_BT = clip_fractions(logp_BT, old_BT, advantage_B, mask_BT)
    assert low_BT.tolist() == [[False] * 3, [False, False, True]]
    assert high_BT.tolist() == [[True, False, False], [False] * 3]


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_is_the_derivative_of_the_value(name):
    """Finite differences, for smooth stretches; CISPO holds its ratio constant, so its value is frozen likewise."""
    logp_BT, old_BT, advantage_B, mask_BT = batch(3)
    if name == "cispo":
        ratio_BT = (logp_BT - old_BT).exp().clamp(max=1.2)
        free_BT = logp_BT.clone().requires_grad_()
        LOSSES[name](free_BT, old_BT, advantage_B, mask_BT).sum().backward()
        expected_BT = torch.where(mask_BT, -ratio_BT * advantage_B[:, None], 0.0)
        torch.testing.assert_close(free_BT.grad, expected_BT, rtol=1e-12, atol=0)
        return
    assert torch.autograd.gradcheck(
        lambda logp: weighted_sum(
            LOSSES[name](logp, old_BT, advantage_B, mask_BT),
            mask_BT,
            torch.ones(6, dtype=torch.float64),
            per_sequence=True,
        ),
        logp_BT.clone().requires_grad_(),
    )


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_gradient_is_minus_advantage(name):
    """At ratio 1 the clipping is inert, whichever loss: d loss / d logp = -A (a row's mean of it for GSPO)."""
    _, old_BT, advantage_B, mask_BT = batch(1)
    logp_BT = old_BT.clone().requires_grad_()
    loss_BT = LOSSES[name](logp_BT, old_BT, advantage_B, mask_BT)
    weighted_sum(loss_BT, mask_BT, torch.ones_like(advantage_B), per_sequence=True).backward()
    expected_BT = -advantage_B[:, None] * mask_BT / mask_BT.sum(1, keepdim=True)
    torch.testing.assert_close(logp_BT.grad, expected_BT, rtol=1e-12, atol=1e-15)


def test_gspo_equals_the_straight_through_form_in_value_and_gradient():
    """verl writes the sequence ratio as ``logp - sg(logp) + sg(log s)`` per token; with one A per row both agree."""
    logp_BT, old_BT, advantage_B, mask_BT = batch(5, spread=0.1)

    def straight_through(logp):
        length_B1 = mask_BT.sum(1, keepdim=True)
        log_s_B1 = ((logp - old_BT) * mask_BT).sum(1, keepdim=True) / length_B1
        ratio_BT = (logp - logp.detach() + log_s_B1.detach()).exp()
        clipped_BT = ratio_BT.clamp(0.9, 1.1)
        return -(ratio_BT * advantage_B[:, None]).minimum(clipped_BT * advantage_B[:, None])

    gradients = []
    for loss in (straight_through, lambda x: gspo(x, old_BT, advantage_B, mask_BT, clip_low=0.1, clip_high=0.1)):
        leaf = logp_BT.clone().requires_grad_()
        value = weighted_sum(loss(leaf), mask_BT, torch.ones_like(advantage_B), per_sequence=True)
        gradients.append((value.detach(), torch.autograd.grad(value, leaf)[0]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("garbage", [1e4, -1e4, float("inf"), float("nan")])
def test_padding_never_reaches_the_value_or_the_gradient(name, garbage):
    logp_BT, old_BT, advantage_B, mask_BT = batch(2)
    results = []
    for filler in (0.0, garbage):
        leaf = logp_BT.clone().requires_grad_()
        padded_old_BT = old_BT.masked_fill(~mask_BT, filler)
        loss_BT = LOSSES[name](leaf, padded_old_BT, advantage_B, mask_BT)
        value = weighted_sum(loss_BT, mask_BT, torch.ones_like(advantage_B), per_sequence=False)
        results.append((value.detach(), torch.autograd.grad(value, leaf)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert (results[1][1][~mask_BT] == 0).all()


def test_multiplying_by_the_mask_at_the_end_would_not_protect_the_gradient():
    leaf = torch.zeros(1, 2, requires_grad=True)
    old_BT, mask_BT = torch.tensor([[0.0, -1e4]]), torch.tensor([[1.0, 0.0]])
    ((leaf - old_BT).exp().masked_fill(mask_BT == 0, 0.0)).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.isnan().any()


@given(seed=st.integers(0, 50), low=st.floats(0.01, 0.5), high=st.floats(0.01, 0.5), sequence=st.booleans())
def test_clipped_tokens_are_the_ones_without_a_gradient(seed, low, high, sequence):
    logp_BT, old_BT, advantage_B, mask_BT = batch(seed)
    loss = gspo if sequence else clipped_surrogate
    leaf = logp_BT.clone().requires_grad_()
    loss(leaf, old_BT, advantage_B, mask_BT, clip_low=low, clip_high=high).masked_fill(~mask_BT, 0.0).sum().backward()
    low_BT, high_BT = clip_fractions(
        logp_BT, old_BT, advantage_B, mask_BT, clip_low=low, clip_high=high, sequence=sequence
    )
    assert not (low_BT & high_BT).any()
    assert torch.equal((low_BT | high_BT) & mask_BT, (leaf.grad == 0) & mask_BT)
    assert not ((low_BT | high_BT) & ~mask_BT).any()


def test_mask_may_be_bool_or_numbers():
    logp_BT, old_BT, advantage_B, mask_BT = batch(4)
    for loss in LOSSES.values():
        for mask in (mask_BT.int(), mask_BT.double()):
            torch.testing.assert_close(
                loss(logp_BT, old_BT, advantage_B, mask), loss(logp_BT, old_BT, advantage_B, mask_BT), rtol=0, atol=0
            )
