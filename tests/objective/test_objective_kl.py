"""KL estimators: golden numbers, expectations by enumeration of a small policy, and the gradients they claim."""

import pytest
import torch

from dppo.objective import k1, k2, k3

LOGITS = torch.tensor([0.3, -0.8, 1.1, 0.0], dtype=torch.float64)
REF_LOGP = torch.tensor([-0.4, 0.9, 0.2, 0.5], dtype=torch.float64).log_softmax(0)


def divergence(logp, other):
    """KL(first || second) of two categorical policies."""
    return (logp.exp() * (logp - other)).sum()


def gradient(value, leaf):
    return torch.autograd.grad(value, leaf, retain_graph=True)[0]


@pytest.mark.parametrize(
    ("difference", "expected"), [(-1.0, 0.367879), (-0.1, 0.004837), (0.0, 0.0), (0.1, 0.005171), (1.0, 0.718282)]
)
def test_k3_golden(difference, expected):
    logp = torch.tensor([[-2.0]], dtype=torch.float64)
    assert k3(logp, logp + difference).item() == pytest.approx(expected, abs=5e-7)


def test_k1_and_k2_by_hand():
    logp, ref = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, 0.0]])
    torch.testing.assert_close(k1(logp, ref), torch.tensor([[0.5, -2.0]]))
    torch.testing.assert_close(k2(logp, ref), torch.tensor([[0.125, 2.0]]))


def test_k3_equals_trl():
    logp = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ref = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(k3(logp, ref), torch.exp(ref - logp) - (ref - logp) - 1, rtol=1e-12, atol=1e-14)


def test_values_over_all_tokens():
    logp = LOGITS.log_softmax(0)
    mean = {k: (logp.exp() * k(logp, REF_LOGP)).sum() for k in (k1, k2, k3)}
    exact = divergence(logp, REF_LOGP)
    torch.testing.assert_close(mean[k1], exact, rtol=1e-12, atol=0)
    torch.testing.assert_close(mean[k3], exact, rtol=1e-12, atol=0)
    assert abs(mean[k2] - exact) / exact > 1e-2
    assert (k2(logp, REF_LOGP) >= 0).all()
    assert (k3(logp, REF_LOGP) >= 0).all()


def test_gradients_over_all_tokens_are_those_of_the_docstrings():
    """The sampling probabilities are constants, as they are in training: only the estimator is differentiated."""
    leaf = LOGITS.clone().requires_grad_()
    logp = leaf.log_softmax(0)
    sampled = logp.exp().detach()
    claims = {
        k1: torch.zeros_like(LOGITS),
        k2: gradient(divergence(logp, REF_LOGP), leaf),
        k3: gradient(divergence(REF_LOGP, logp), leaf),
    }
    for estimator, expected in claims.items():
        got = gradient((sampled * estimator(logp, REF_LOGP)).sum(), leaf)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-15)
    assert (claims[k2] - claims[k3]).abs().max() > 1e-2, "the two directions differ, or the test could not tell them"


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_gradcheck(estimator):
    logp = LOGITS.log_softmax(0)[None].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: estimator(x, REF_LOGP[None]), logp)
