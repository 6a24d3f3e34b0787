"""Our divergence losses against verl's ``dppo_tv`` and ``dppo_kl``: the same loss and the same gradient."""

import pytest
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

from dppo.methods import METHODS
from dppo.objective import Tokens

NAMES = {"dppo_tv": ("divergence_ppo_tv", 0.15), "dppo_kl": ("divergence_ppo_kl", 0.05)}


def batch(seed):
    """Twenty completions far off the policy that sampled them; probabilities up to 0.98."""
    rng = torch.Generator().manual_seed(seed)
    mu = torch.rand(20, 12, generator=rng, dtype=torch.float64).clamp(1e-4, 0.98)
    pi = (mu + 0.25 * torch.randn(20, 12, generator=rng, dtype=torch.float64)).clamp(1e-6, 0.98)
    mask = torch.arange(12)[None] < torch.randint(1, 13, (20, 1), generator=rng)
    return mu.log(), pi.log(), torch.randn(20, generator=rng, dtype=torch.float64), mask


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(5))
def test_loss_and_gradient_are_verls(name, seed):
    method, delta = NAMES[name]
    old, logp, advantage, mask = batch(seed)
    clips = {"clip_ratio": delta, "clip_ratio_low": delta, "clip_ratio_high": delta, "clip_ratio_c": 20.0}
    config = ActorConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=1, rollout_n=1, **clips)
    theirs = logp.clone().requires_grad_()
    loss, metrics = get_policy_loss_fn(name)(old, theirs, advantage[:, None].expand_as(old), mask, "token-mean", config)
    loss.backward()
    ours = logp.clone().requires_grad_()
    tokens = Tokens(logp_BT=ours, old_logp_BT=old, advantage_B=advantage, mask_BT=mask)
    found = METHODS[method].loss(tokens)[mask].sum() / mask.sum()
    found.backward()
    assert 0.05 < metrics["actor/pg_clipfrac"] < 0.8, "the masks bite"
    torch.testing.assert_close(found, loss, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-7)
    other = METHODS["divergence_ppo_kl" if name == "dppo_tv" else "divergence_ppo_tv"]
    assert (other.loss(tokens)[mask].sum() / mask.sum() - loss).abs() > 1e-4, "the other divergence would be seen"
