import copy

import pytest
import torch

from dppo.lab.demo.task import make_split
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer
from examples.engine import Loop


@pytest.fixture(scope="session")
def start():
    """An untrained policy, its tokenizer, and problems."""
    return build_model(0).eval(), build_tokenizer(), make_split(0, train=32, held_out=6)


MAX_NEW_TOKENS = 16


@pytest.fixture
def still(start, monkeypatch):
    """Makes loops whose steps leave parameters alone, with the gradients of their steps.

    An untrained policy is never right, so rewards come from ``rewards(row_Q, step)``.
    """
    monkeypatch.setattr("examples.engine.MAX_NEW_TOKENS", MAX_NEW_TOKENS)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *a, **k: None)

    def made(method, rewards, *, size=16, seed=0, **options):
        model, tokenizer, split = start
        loop, gradients = Loop(copy.deepcopy(model), tokenizer, split.train[:size], method, seed=seed, **options), []

        def keep():
            parts = [p.grad if p.grad is not None else torch.zeros_like(p) for p in loop.model.parameters()]
            gradients.append(torch.cat([part.flatten() for part in parts]).double())

        def given(row_N, rollout):
            return rewards(row_N[:: loop.session.generations], loop.session.number).flatten()

        monkeypatch.setattr(loop, "_rewards", given)
        monkeypatch.setattr(loop.optimizer, "step", keep)
        return loop, gradients

    return made
