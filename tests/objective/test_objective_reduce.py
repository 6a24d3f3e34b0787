"""Weighted sums and denominators: TRL 1.16's reductions, and a denominator of survivors, which is biased."""

from itertools import product

import torch

from dppo.objective import (
    NORMALISERS,
    Tokens,
    clipped_surrogate,
    k3,
    weighted_sum,
)

PROB = torch.tensor([0.3, 0.9, 0.5, 0.7], dtype=torch.float64)
LENGTHS = torch.tensor([3, 1, 2, 3])


def reduced(normaliser, loss_BT, mask_BT, weight_B, *, max_tokens=4):
    total = weighted_sum(loss_BT, mask_BT, weight_B, per_sequence=normaliser.per_sequence)
    return total / normaliser.denominator(len(loss_BT), float(mask_BT.sum()), max_tokens)


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


def test_counting_the_survivors_is_biased():
    full = gradient(torch.ones(4, dtype=torch.float64))

    def survivors(keep):
        return gradient(keep / PROB, denominator=max((LENGTHS * keep).sum().item(), 1))

    assert (expectation(survivors) - full).norm() / full.norm() > 0.1
