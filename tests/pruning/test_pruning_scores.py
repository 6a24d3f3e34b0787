"""Scores on hand-computed values."""

import torch
from torch import nn

from dppo.pruning import SCORES, advantage_with_length, advantage_with_uncertainty, of_sums, uncertainty
from dppo.types import Completions


def completions(**changes) -> Completions:
    given = {
        "advantage_N": torch.tensor([2.0, -1.0, 0.0]),
        "tokens_N": torch.tensor([9, 4, 0]),
        "group_N": torch.zeros(3, dtype=torch.long),
        "live_N": torch.tensor([True, True, False]),
        "uncertainty_N": torch.tensor([0.5, 2.0, 0.0]),
    }
    return Completions(**(given | changes))


def test_the_norm_of_a_mean_over_tokens_is_divided_by_them_and_other_scores_are_not():
    mean = completions(averaged_N=torch.tensor([9, 4, 1]))
    assert advantage_with_length(mean).tolist() == [6 / 9, 0.5, 0]
    assert advantage_with_uncertainty(mean).tolist() == [1 / 9, 0.5, 0]
    for score in SCORES.values():
        assert torch.equal(score(mean), score(completions())) == (not of_sums(score))


def test_scores_with_the_length_are_right_about_independent_tokens():
    """Gradients of tokens that are a random walk: the sum of n has norm sqrt(n), their mean 1 / sqrt(n)."""
    step = torch.randn(20_000, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    length = torch.tensor([1, 4, 16, 64])
    rows = {"advantage_N": torch.ones(4), "tokens_N": length, "group_N": length, "live_N": length > 0}
    rows["uncertainty_N"] = None
    for averaged_N, power in ((None, 1.0), (length, -1.0)):
        walked = torch.stack([step[:, :n].sum(1) / (1 if averaged_N is None else n) for n in length])
        norm = walked.square().mean(1).sqrt()
        score = advantage_with_length(completions(**rows, averaged_N=averaged_N))
        torch.testing.assert_close(score, norm, rtol=0.03, atol=0)
        torch.testing.assert_close(score, length.double().sqrt() ** power)


def test_uncertainty_is_the_size_of_the_gradient_at_the_sampled_logits():
    """d log p_t / d logit_t = 1 - p_t: taken from autograd, not from the formula."""
    logits = torch.randn(1, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    token = torch.tensor([[[1], [3], [0], [5]]])
    logp = nn.functional.log_softmax(logits, -1).gather(2, token).squeeze(2)
    (gradient,) = torch.autograd.grad(logp.sum(), logits)
    expected = gradient.gather(2, token).squeeze().norm()
    torch.testing.assert_close(uncertainty(logp.detach(), torch.ones(1, 4)).squeeze(), expected)
