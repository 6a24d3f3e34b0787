"""True gradients behind the floors: of a router loss, with the experts' shares held at those of the batch."""

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from benchmarks.learning import floors
from dppo.packing.head import router_loss
from dppo.verification.tiny_model import model_config


@pytest.fixture(scope="module")
def mixture():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4}
    dense = {k: v for k, v in model_config().to_dict().items() if k not in ("model_type", "layer_types")}
    torch.manual_seed(0)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**dense | floors.EXPERTS | sizes))


def gradient(loss, model):
    parts = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True, allow_unused=True)
    return torch.cat([part.flatten() for part in parts])


def test_the_router_loss_at_the_shares_of_the_batch_has_its_gradient(mixture):
    """Over all tokens the sum of what each row has is the loss that training takes; shares of other tokens are not."""
    rows = [torch.tensor([3, 7, 1, 9, 4]), torch.tensor([2, 8, 8, 5])]
    share_E = floors.expert_shares(mixture, rows)
    assert share_E.sum().item() == pytest.approx(mixture.config.num_experts_per_tok)
    logits = [mixture(ids[None], output_router_logits=True).router_logits for ids in rows]
    whole = tuple(torch.cat(layer) for layer in zip(*logits, strict=True))
    expected = gradient(router_loss(whole, torch.ones(1, sum(map(len, rows))), mixture.config), mixture)
    for shares, alike in ((share_E, True), (share_E.flip(0), False)):
        found = sum(gradient(floors.scored(mixture, ids, 2, shares)[2], mixture) for ids in rows)
        assert torch.allclose(found, expected, atol=1e-6) == alike


def test_added_variance_by_hand():
    """Two of four completions have a gradient, and half are kept: what the floor spends on the others they lack."""
    square_N = torch.tensor([1.0, 1.0, 0.0, 0.0]).double().numpy()
    live_N = square_N >= 0
    assert floors._added(square_N, square_N, live_N, 0.5, 0.1, None) == pytest.approx(1 / 0.9 - 1)
    assert floors._added(square_N, square_N, live_N, 0.5, 0.1, 0.02) == pytest.approx(1 / 0.98 - 1)
