"""Weighted sums and denominators: golden numbers, TRL 1.16's reductions, and two mistakes the tests would catch."""

from itertools import product

import pytest
import torch

from dppo.errors import ShapeError
from dppo.objective import (
    BNPO,
    DAPO_TOKENS,
    DR_GRPO,
    GRPO_MEAN,
    LUSPO,
    NORMALISERS,
    Tokens,
    clipped_surrogate,
    k3,
    weighted_sum,
)

LOSS = torch.tensor([[1.0, 9.0, 9.0, 9.0], [2.0, 4.0, 6.0, 9.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0]])
ONES = torch.ones(2, dtype=torch.float64)
PROB = torch.tensor([0.3, 0.9, 0.5, 0.7], dtype=torch.float64)
LENGTHS = torch.tensor([3, 1, 2, 3])


def reduced(normaliser, loss_BT, mask_BT, weight_B, *, max_tokens=4):
    total = weighted_sum(loss_BT, mask_BT, weight_B, per_sequence=normaliser.per_sequence)
    return total / normaliser.denominator(len(loss_BT), float(mask_BT.sum()), max_tokens)


GOLDEN = {"grpo": 2.5, "bnpo": 3.25, "dapo": 3.25, "dr_grpo": 1.625, "luspo": 6.5}


@pytest.mark.parametrize("name", NORMALISERS)
def test_golden_numbers(name):
    assert reduced(NORMALISERS[name], LOSS, MASK, ONES).item() == pytest.approx(GOLDEN[name], abs=1e-12)


def test_equals_trl_for_every_loss_type():
    rng = torch.Generator().manual_seed(0)
    loss_BT = torch.randn(5, 7, generator=rng, dtype=torch.float64)
    mask_BT = (torch.arange(7)[None] < torch.tensor([7, 1, 4, 0, 5])[:, None]).double()
    trl = {
        "grpo": ((loss_BT * mask_BT).sum(-1) / mask_BT.sum(-1).clamp(min=1.0)).mean(),
        "bnpo": (loss_BT * mask_BT).sum() / mask_BT.sum().clamp(min=1.0),
        "dapo": (loss_BT * mask_BT).sum() / mask_BT.sum().clamp(min=1.0),
        "luspo": (loss_BT * mask_BT).sum(-1).mean(),
        "dr_grpo": (loss_BT * mask_BT).sum() / (loss_BT.size(0) * 9),
    }
    assert trl.keys() == NORMALISERS.keys()
    for name, expected in trl.items():
        got = reduced(NORMALISERS[name], loss_BT, mask_BT, torch.ones(5), max_tokens=9)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-15)


def test_only_row_and_constant_denominators_are_exact_under_prompt_pruning():
    assert all(normaliser.prompt_exact and not normaliser.reason for normaliser in (GRPO_MEAN, DR_GRPO, LUSPO))
    for normaliser in (DAPO_TOKENS, BNPO):
        assert not normaliser.prompt_exact
        assert "ratio, biased O(1/n)" in normaliser.reason


def test_an_empty_row_or_batch_divides_by_one():
    nothing = torch.zeros_like(MASK)
    for normaliser in NORMALISERS.values():
        assert reduced(normaliser, LOSS, nothing, ONES).item() == 0.0
    for normaliser in (DAPO_TOKENS, BNPO):
        assert [normaliser.denominator(2, tokens, 4) for tokens in (0.0, 0.5, 1.0, 1.5)] == [1.0, 1.0, 1.0, 1.5]


def test_masked_values_are_ignored_even_when_they_are_not_numbers():
    loss_BT = LOSS.masked_fill(MASK == 0, float("nan")).requires_grad_()
    value = weighted_sum(loss_BT, MASK, ONES, per_sequence=False)
    value.backward()
    assert value.item() == 13.0
    assert loss_BT.grad is not None
    assert torch.equal(loss_BT.grad, MASK.double())


def test_weights_of_another_dtype_do_not_change_the_loss_dtype():
    assert weighted_sum(LOSS.float(), MASK, ONES, per_sequence=True).dtype == torch.float32


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(ShapeError, match=r"\(2, 4\).*\(2, 3\)"):
        weighted_sum(LOSS, MASK[:, :3], ONES, per_sequence=False)
    with pytest.raises(ShapeError, match=r"\(1,\)"):
        weighted_sum(LOSS, MASK, ONES[:1], per_sequence=False)


def off_policy(scale_B):
    """A batch of four completions whose advantages are multiplied by ``scale_B``."""
    rng = torch.Generator().manual_seed(7)
    logp, old, ref = (torch.randn(4, 3, generator=rng, dtype=torch.float64) * 0.4 - 1 for _ in range(3))
    advantage_B = torch.randn(4, generator=rng, dtype=torch.float64) * scale_B
    mask_BT = torch.arange(3)[None] < LENGTHS[:, None]
    return Tokens(
        logp_BT=logp.requires_grad_(), old_logp_BT=old, ref_logp_BT=ref, advantage_B=advantage_B, mask_BT=mask_BT
    )


def gradient(weight_B, *, beta=0.0, fold=False, denominator=None):
    """d loss / d logp of a clipped, off-policy batch; ``fold`` puts the weight into the advantage instead."""
    one_B = torch.ones_like(weight_B)
    tokens = off_policy(weight_B if fold else one_B)
    loss_BT = clipped_surrogate(tokens) + beta * k3(tokens)
    total = weighted_sum(loss_BT, tokens.mask_BT, one_B if fold else weight_B, per_sequence=False)
    return torch.autograd.grad(total / (denominator or LENGTHS.sum().item()), tokens.logp_BT)[0]


def expectation(of_keep):
    """Exact mean over all 2 ** N masks of independent draws with PROB."""
    total = torch.zeros(())
    for bits in product([0.0, 1.0], repeat=len(PROB)):
        keep = torch.tensor(bits, dtype=torch.float64)
        total = total + torch.where(keep > 0, PROB, 1 - PROB).prod() * of_keep(keep)
    return total


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_weighted_gradient_is_unbiased_with_clipping_and_kl(beta):
    got = expectation(lambda keep: gradient(keep / PROB, beta=beta))
    torch.testing.assert_close(got, gradient(torch.ones(4, dtype=torch.float64), beta=beta), rtol=1e-12, atol=1e-15)


def test_folding_the_weight_into_the_advantage_is_right_only_without_kl():
    weight_B = torch.tensor([0.0, 1.0, 2.5, 4.0], dtype=torch.float64)
    torch.testing.assert_close(gradient(weight_B, fold=True), gradient(weight_B), rtol=1e-12, atol=1e-15)
    wrong = gradient(weight_B, beta=0.3, fold=True) - gradient(weight_B, beta=0.3)
    assert wrong.abs().max() > 1e-2
    full = gradient(torch.ones(4, dtype=torch.float64), beta=0.3)
    computed = expectation(lambda keep: gradient(keep / PROB, beta=0.3, fold=True))
    # Its mean happens to be right as long as dropped rows are still computed, since their KL term is then not dropped;
    # leaving them out, which is the point of pruning, loses KL.
    torch.testing.assert_close(computed, full, rtol=1e-12, atol=1e-15)
    lost = expectation(lambda keep: keep[:, None] * gradient(keep / PROB, beta=0.3, fold=True))
    assert (lost - full).norm() / full.norm() > 1e-2


def test_counting_the_survivors_is_biased():
    full = gradient(torch.ones(4, dtype=torch.float64))

    def survivors(keep):
        return gradient(keep / PROB, denominator=max((LENGTHS * keep).sum().item(), 1))

    assert (expectation(survivors) - full).norm() / full.norm() > 0.1
