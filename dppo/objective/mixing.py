"""Test of a token loss: does the loss of a token depend on other tokens of its completion?"""

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from dppo.objective.losses import TokenLoss, Tokens

DRIFTS = (1e-3, 0.3, 30.0)
"""Distances of the left-out token's log-probabilities, in nats: near, inside a clip, beyond any limit."""


def mixes_tokens(loss: TokenLoss) -> bool:
    """True if the loss or the gradient of a token changes when another token of its completion is masked.

    It is measured, once for each hashable loss, on completions of three tokens with advantages of both signs. The last
    token drifts by little, some and very much, with and without the rollout engine's log-probabilities.
    """
    return _cached(loss) if isinstance(loss, Hashable) else _measured(loss)


def _measured(loss: TokenLoss) -> bool:
    return any(
        not torch.equal(_kept(loss, tokens, part=True), _kept(loss, tokens, part=False))
        for drift in DRIFTS
        for engine in (True, False)
        for tokens in (_completions(drift, engine=engine),)
    )


_cached = lru_cache(maxsize=64)(_measured)
"""A method is made anew in each step that chooses a rate, so the answer is kept."""


def _completions(drift: float, *, engine: bool) -> Tokens:
    """Four completions of three tokens: advantages of both signs, the last token drifting up and down."""
    sign_B1 = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]], dtype=torch.float64)
    away_B1 = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]], dtype=torch.float64) * drift
    logp_BT = torch.tensor([[-0.5, -1.0, -40.0]], dtype=torch.float64).repeat(4, 1)
    moved_BT = torch.cat([torch.full((4, 2), 1e-2, dtype=torch.float64), away_B1], 1)
    return Tokens(
        logp_BT=logp_BT,
        old_logp_BT=logp_BT + moved_BT,
        advantage_B=sign_B1[:, 0],
        mask_BT=torch.ones(4, 3, dtype=torch.bool),
        ref_logp_BT=logp_BT + moved_BT / 2,
        sampler_logp_BT=logp_BT + moved_BT if engine else None,
    )


def _kept(loss: TokenLoss, tokens: Tokens, *, part: bool) -> Tensor:
    """(2, B, 2) losses of the first two tokens, and their gradients; the third is masked if ``part`` is True."""
    mask_BT = tokens.mask_BT.clone()
    mask_BT[:, 2] = not part
    logp_BT = tokens.logp_BT.clone().requires_grad_()
    value_BT = loss(replace(tokens, mask_BT=mask_BT, logp_BT=logp_BT))
    kept_BT = value_BT.expand_as(logp_BT)[:, :2]
    (slope_BT,) = torch.autograd.grad(kept_BT.sum(), logp_BT)
    return torch.stack([kept_BT.detach(), slope_BT[:, :2]])
