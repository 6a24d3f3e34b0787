"""The tiny policy is a function of its seed and leaves the global generator alone."""

import torch

from dppo.verification.tiny_model import build_model


def test_size_and_tied_embeddings():
    model = build_model(0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 594_496
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(11)
    first = build_model(3).state_dict()
    torch.manual_seed(12)
    before = torch.random.get_rng_state()
    second, other = build_model(3).state_dict(), build_model(4).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_a_fresh_policy_is_close_to_uniform():
    logits = build_model(0)(torch.arange(28)[None]).logits
    assert logits.log_softmax(-1).exp().max() < 0.2
