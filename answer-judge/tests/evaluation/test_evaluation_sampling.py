"""Tokens are drawn with the probabilities stated; pass@k against enumeration; settings out of range are refused."""

from itertools import combinations

import pytest
import torch
from refusals import refused

from answer_judge.errors import ConfigError
from answer_judge.evaluation import pass_at_k
from answer_judge.evaluation.sampling import Sampling
from answer_judge.evaluation.transformers_engine import draw

ALL = Sampling(temperature=1.0, top_p=1.0)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (ALL, [0, 1, 3, 4, 5]),
        (Sampling(temperature=1.0, top_p=0.75), [1, 3]),
        (Sampling(temperature=1.0, top_p=0.81), [1, 3, 4]),
        (Sampling(temperature=1.0, top_p=1.0, top_k=3), [1, 3, 4]),
        (Sampling(temperature=1.0, top_p=1.0, top_k=100), [0, 1, 3, 4, 5]),
    ],
)
def test_tokens_left_out_are_never_drawn_and_the_rest_keep_their_ratios(sampling, kept):
    """Shares over evenly spread numbers are exact up to 1 / draws."""
    probs, draws = torch.tensor([0.05, 0.5, 0.0, 0.3, 0.1, 0.05], dtype=torch.float64), 40_001
    uniform = (torch.arange(draws, dtype=torch.float64) / draws)[:, None]
    shares = torch.bincount(draw(probs.log().expand(draws, -1), uniform, sampling)[:, 0], minlength=6) / draws
    expected = torch.zeros(6)
    expected[kept] = probs[kept].float() / probs[kept].float().sum()
    torch.testing.assert_close(shares, expected, atol=1e-4, rtol=0)


def test_the_ends_of_the_unit_interval():
    ends = torch.tensor([[0.0], [1 - 2**-53], [1.0]], dtype=torch.float64)
    logits = torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64).log().expand(3, -1)
    assert draw(logits, ends, ALL)[:, 0].tolist() == [1, 2, 2]
    assert draw(logits.float(), ends.float(), ALL)[:, 0].tolist() == [1, 2, 2]
    assert draw(logits, ends, Sampling(temperature=1.0, top_p=0.6))[:, 0].tolist() == [1, 2, 2]


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("temperature", float("nan")), ("top_p", 0.0), ("top_k", -1), ("max_new_tokens", 0)],
)
def test_settings_out_of_range(field, value):
    with refused(ConfigError, f"{field}={value:g}"):
        Sampling(**{field: value})


def some_right(samples, right, k):
    """pass@k by looking at every subset."""
    subsets = list(combinations([i < right for i in range(samples)], k))
    return sum(map(any, subsets)) / len(subsets)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_one():
    for samples in range(1, 8):
        for right in range(samples + 1):
            for k in range(1, samples + 1):
                assert pass_at_k(samples, right, k) == pytest.approx(some_right(samples, right, k), abs=1e-15)
    assert pass_at_k(2000, 3, 1000) == pytest.approx(1 - (1000 * 999 * 998) / (2000 * 1999 * 1998))
    plug_in = 1 - (1 - 2 / 5) ** 3  # the wrong twin
    assert abs(plug_in - some_right(5, 2, 3)) > 0.1
    for samples, right, k in ((4, 2, 5), (4, 2, 0), (4, 5, 2), (0, 0, 1)):
        with refused(ConfigError, f"pass@{k}", samples):
            pass_at_k(samples, right, k)
