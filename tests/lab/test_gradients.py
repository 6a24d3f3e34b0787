"""Gradients of single completions and their inner products, against computations done another way."""

import pytest
import torch
from torch import nn

from dppo.lab import gradients
from dppo.lab.gradients import Folding, gram, score_gradients
from dppo.verification.subject import log_probs
from dppo.verification.tiny_model import build_model

PAIRS = [([1, 5, 14, 6, 2], [7, 8, 3]), ([1, 9, 2], [4, 4, 4, 4, 3]), ([1, 5, 2], [3])]


@pytest.fixture(scope="module")
def model():
    return build_model(1).eval()


def by_hand(model, prompt, completion, temperature):
    """Log-probabilities with one forward pass per token."""
    found = []
    for place, token in enumerate(completion):
        logits = model(torch.tensor([prompt + completion[:place]])).logits[0, -1] / temperature
        found.append(logits[token] - logits.logsumexp(0))
    return torch.stack(found)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_the_tokens_after_the_prompt(model, temperature):
    for prompt, completion in PAIRS:
        with torch.no_grad():
            got, expected = (of(model, prompt, completion, temperature) for of in (log_probs, by_hand))
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_rows_are_the_gradients_one_by_one(model):
    gradient_NK, logp_N = score_gradients(model, PAIRS)
    assert [len(logp) for logp in logp_N] == [3, 5, 1]
    for row, (prompt, completion) in zip(gradient_NK, PAIRS, strict=True):
        expected = torch.autograd.grad(by_hand(model, prompt, completion, 1.0).sum(), list(model.parameters()))
        torch.testing.assert_close(row, torch.cat([g.flatten() for g in expected]), rtol=1e-3, atol=1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_inner_products_are_in_float64():
    rows = torch.randn(5, 200_000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(gram(rows), rows.double() @ rows.double().T, rtol=1e-12, atol=1e-9)


def test_time_up_leaves_out_whole_groups_but_not_the_first_two(model):
    gradient_NK, logp_N = score_gradients(model, PAIRS[:2] * 4, group=2, limit_seconds=0.0)
    assert len(gradient_NK) == len(logp_N) == 4


class Pieces:
    """Parameters of 5,000 numbers with given gradients, and a folding of them to 512."""

    def __init__(self, monkeypatch, seed):
        monkeypatch.setattr(gradients, "EXACT_COORDINATES", 0)
        monkeypatch.setattr(gradients, "FOLDED_COORDINATES", 512)
        self.parameters = [nn.Parameter(torch.zeros(*shape)) for shape in [(40, 100), (7,), (1, 3, 331)]]
        self.folding = Folding(self.parameters, seed)

    def fold(self, flat):
        for parameter, part in zip(self.parameters, flat.split([4000, 7, 993]), strict=True):
            parameter.grad = part.view_as(parameter)
        return self.folding(self.parameters)


def test_folding_is_linear_and_uses_every_coordinate(monkeypatch):
    pieces, draws = Pieces(monkeypatch, 0), torch.Generator().manual_seed(1)
    a, b = torch.randn(2, 5000, generator=draws)
    torch.testing.assert_close(pieces.fold(2 * a - b), 2 * pieces.fold(a) - pieces.fold(b), rtol=1e-4, atol=1e-4)
    for place in (0, 511, 512, 3999, 4000, 4006, 4007, 4999):
        unit = torch.zeros(5000)
        unit[place] = 1.0
        assert pieces.fold(unit).abs().sum() == 1.0
        assert pieces.fold(unit)[place % 512].abs() == 1.0


def test_folded_inner_products_are_right_on_average(monkeypatch):
    a, b = torch.randn(2, 5000, generator=torch.Generator().manual_seed(2))
    b = b + 0.3 * a
    found = []
    for seed in range(200):
        pieces = Pieces(monkeypatch, seed)
        found.append(float(pieces.fold(a).double() @ pieces.fold(b).double()))
    found = torch.tensor(found)
    assert abs(found.mean() - float(a @ b)) < 4 * found.std() / 200**0.5
    assert found.std() < 3 * float(a.norm() * b.norm()) / 512**0.5


def test_small_models_are_not_folded(model):
    folding = Folding(list(model.parameters()))
    assert folding.exact and folding.length == sum(p.numel() for p in model.parameters())
