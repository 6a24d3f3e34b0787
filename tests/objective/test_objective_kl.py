"""The KL term: golden numbers, expectations by enumeration of a small policy, and the gradients it claims."""

import pytest
import torch

from dppo.errors import ConfigError
from dppo.objective import Tokens, k3, sequence_ratio, token_ratio

LOGITS = torch.tensor([0.3, -0.8, 1.1, 0.0], dtype=torch.float64)
OLD_LOGP = torch.tensor([0.1, 0.2, 0.4, -0.9], dtype=torch.float64).log_softmax(0)
REF_LOGP = torch.tensor([-0.4, 0.9, 0.2, 0.5], dtype=torch.float64).log_softmax(0)


def tokens(logp, ref, *, old=None, mask=None):
    """One completion whose tokens are all tokens that there are."""
    return Tokens(
        logp_BT=logp[None],
        old_logp_BT=(logp.detach() if old is None else old)[None],
        advantage_B=torch.zeros(1, dtype=torch.float64),
        mask_BT=torch.ones(1, len(logp)) if mask is None else mask[None],
        ref_logp_BT=None if ref is None else ref[None],
    )


def kl_of(logp, ref, **given):
    return k3(tokens(logp, ref, **given))[0]


def divergence(logp, other):
    """KL(first || second) of two categorical policies."""
    return (logp.exp() * (logp - other)).sum()


def gradient(value, leaf):
    return torch.autograd.grad(value, leaf, retain_graph=True)[0]


@pytest.mark.parametrize(
    ("difference", "expected"), [(-1.0, 0.367879), (-0.1, 0.004837), (0.0, 0.0), (0.1, 0.005171), (1.0, 0.718282)]
)
def test_k3_golden(difference, expected):
    logp = torch.tensor([-2.0], dtype=torch.float64)
    assert kl_of(logp, logp + difference).item() == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("ratio", [None, token_ratio, sequence_ratio])
def test_k3_equals_trl(ratio):
    """With the ratio it is what ``use_bias_correction_kl`` makes of it."""
    logp, old, ref = torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    given = tokens(logp[0], ref[0], old=old[0])
    kl = torch.exp(ref - logp) - (ref - logp) - 1
    log_ratio = {None: logp * 0, token_ratio: logp - old, sequence_ratio: (logp - old).mean(1, keepdim=True)}[ratio]
    torch.testing.assert_close(k3(given, ratio=ratio)[0], (kl * log_ratio.exp())[0], rtol=1e-12, atol=1e-14)


def test_values_over_all_tokens():
    logp = LOGITS.log_softmax(0)
    value = kl_of(logp, REF_LOGP)
    torch.testing.assert_close((logp.exp() * value).sum(), divergence(logp, REF_LOGP), rtol=1e-12, atol=0)
    assert (value >= 0).all()


def test_gradients_over_all_tokens_are_those_of_the_docstrings():
    """Sampling probabilities are constants, as in training: only the estimator is differentiated.

    k1 and k2 are written here: with one of them in the place of k3 the check would fail.
    """
    leaf = LOGITS.clone().requires_grad_()
    logp = leaf.log_softmax(0)
    sampled = logp.exp().detach()
    toward, away = (gradient(divergence(*pair), leaf) for pair in ((REF_LOGP, logp), (logp, REF_LOGP)))
    mean = gradient((sampled * kl_of(logp, REF_LOGP)).sum(), leaf)
    torch.testing.assert_close(mean, toward, rtol=1e-12, atol=1e-15)
    for wrong, expected in ((logp - REF_LOGP, 0 * toward), ((logp - REF_LOGP).square() / 2, away)):
        got = gradient((sampled * wrong).sum(), leaf)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-15)
        assert (got - toward).abs().max() > 1e-2


def test_times_the_ratio_its_gradient_over_an_older_policys_tokens_is_that_of_the_divergence():
    """Each token is sampled by the old policy: the ratio, gradient included, makes it KL(policy || reference)."""
    leaf = LOGITS.clone().requires_grad_()
    logp = leaf.log_softmax(0)
    exact, mean = gradient(divergence(logp, REF_LOGP), leaf), {}
    for ratio in (None, token_ratio):
        value = k3(tokens(logp, REF_LOGP, old=OLD_LOGP), ratio=ratio)[0]
        mean[ratio] = gradient((OLD_LOGP.exp() * value).sum(), leaf)
    torch.testing.assert_close(mean[token_ratio], exact, rtol=1e-12, atol=1e-15)
    assert (mean[None] - exact).abs().max() > 1e-2, "without it, it is not"
    held = (OLD_LOGP.exp() * (logp - OLD_LOGP).exp().detach() * kl_of(logp, REF_LOGP)).sum()
    assert (gradient(held, leaf) - exact).abs().max() > 1e-2, "nor with a ratio that is held constant"


@pytest.mark.parametrize("ratio", [None, token_ratio, sequence_ratio])
def test_gradcheck(ratio):
    logp = LOGITS.log_softmax(0).clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: k3(tokens(x, REF_LOGP, old=OLD_LOGP), ratio=ratio), logp)


@pytest.mark.parametrize("garbage", [1e4, float("inf"), float("nan")])
def test_padding_has_no_divergence_and_no_gradient(garbage):
    logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    value = kl_of(logp, torch.tensor([-1.5, garbage]), mask=torch.tensor([True, False]))
    assert value.isfinite().all() and value[1] == 0
    assert gradient(value.sum(), logp).isfinite().all() and gradient(value.sum(), logp)[1] == 0


def test_a_term_without_a_reference_says_what_to_pass():
    with pytest.raises(ConfigError, match=r"needs ref_logp_BT.*beta=0\.0"):
        kl_of(LOGITS, None)
