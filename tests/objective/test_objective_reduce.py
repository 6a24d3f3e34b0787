"""Weighted sums and denominators: TRL's reductions. ``test_methods_estimator.py`` has denominators of survivors."""

import torch

from dppo.objective import NORMALISERS, weighted_sum


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
