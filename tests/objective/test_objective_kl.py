"""The KL term: equal to TRL's, and over all tokens of a small policy it has the gradients it claims."""

import pytest
import torch

from dppo.errors import ConfigError
from dppo.objective import Tokens, k3, sequence_ratio, token_ratio

LOGITS = torch.tensor([0.3, -0.8, 1.1, 0.0], dtype=torch.float64)
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


@pytest.mark.parametrize("ratio", [None, token_ratio, sequence_ratio])
def test_k3_equals_trl(ratio):
    """With the ratio it is what ``use_bias_correction_kl`` makes of it."""
    logp, old, ref = torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    given = tokens(logp[0], ref[0], old=old[0])
    kl = torch.exp(ref - logp) - (ref - logp) - 1
    log_ratio = {None: logp * 0, token_ratio: logp - old, sequence_ratio: (logp - old).mean(1, keepdim=True)}[ratio]
    torch.testing.assert_close(k3(given, ratio=ratio)[0], (kl * log_ratio.exp())[0], rtol=1e-12, atol=1e-14)


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


def test_a_term_without_a_reference_says_what_to_pass():
    with pytest.raises(ConfigError, match=r"needs ref_logp_BT.*beta=0\.0"):
        kl_of(LOGITS, None)
