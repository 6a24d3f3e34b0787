"""Tokens are drawn with the probabilities stated, and settings out of range are refused."""

import pytest
import torch

from answer_judge.errors import ConfigError
from answer_judge.evaluation.sampling import Sampling, sample_seed
from answer_judge.evaluation.transformers_engine import draw

PROBS = torch.tensor([0.05, 0.5, 0.0, 0.3, 0.1, 0.05], dtype=torch.float64)
ALL = Sampling(temperature=1.0, top_p=1.0)


def frequencies(sampling, logits=None, draws=40_001):
    """Shares of tokens over evenly spread numbers: exact up to 1 / draws."""
    logits = PROBS.log() if logits is None else logits
    uniform = (torch.arange(draws, dtype=torch.float64) / draws)[:, None]
    tokens = draw(logits.expand(draws, -1), uniform, sampling)
    return torch.bincount(tokens[:, 0], minlength=len(logits)) / draws


def test_frequencies_are_the_probabilities():
    torch.testing.assert_close(frequencies(ALL), PROBS.float(), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(temperature=1.0, top_p=0.75), [1, 3]),
        (Sampling(temperature=1.0, top_p=0.81), [1, 3, 4]),
        (Sampling(temperature=1.0, top_p=0.5), [1]),
        (Sampling(temperature=1.0, top_p=0.01), [1]),
        (Sampling(temperature=1.0, top_p=1.0, top_k=3), [1, 3, 4]),
        (Sampling(temperature=1.0, top_p=0.75, top_k=1), [1]),
        (Sampling(temperature=1.0, top_p=1.0, top_k=100), [0, 1, 3, 4, 5]),
    ],
)
def test_tokens_left_out_are_never_drawn_and_the_rest_keep_their_ratios(sampling, kept):
    expected = torch.zeros(6)
    expected[kept] = PROBS[kept].float() / PROBS[kept].float().sum()
    torch.testing.assert_close(frequencies(sampling), expected, atol=1e-4, rtol=0)


def test_the_ends_of_the_unit_interval():
    ends = torch.tensor([[0.0], [1 - 2**-53], [1.0]], dtype=torch.float64)
    logits = torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64).log().expand(3, -1)
    assert draw(logits, ends, ALL)[:, 0].tolist() == [1, 2, 2]
    assert draw(logits.float(), ends.float(), ALL)[:, 0].tolist() == [1, 2, 2]
    assert draw(logits, ends, Sampling(temperature=1.0, top_p=0.6))[:, 0].tolist() == [1, 2, 2]


def test_no_bias_over_a_large_vocabulary():
    logits = torch.randn(150_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = logits.softmax(0)[:75_000].sum()
    found = frequencies(ALL, logits, draws=64)[:75_000].sum()
    assert abs(float(found - expected)) <= 1 / 64


def test_seeds_are_a_function_of_seed_problem_and_sample():
    seeds = {sample_seed(seed, key, sample) for seed in (0, 1) for key in (0, 2**63, 2**64 - 1) for sample in (0, 1, 2)}
    assert len(seeds) == 18 and max(seeds) < 2**62
    assert sample_seed(3, 5, 7) == sample_seed(3, 5, 7)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"temperature": -1}, "temperature=-1 must be >= 0"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0.0}, r"top_p=0 must be in \(0, 1\]"),
        ({"top_p": 1.5}, r"top_p=1.5 must be in"),
        ({"top_k": -1}, "top_k=-1 must be >= 0"),
        ({"max_new_tokens": 0}, "max_new_tokens=0 must be at least 1"),
    ],
)
def test_settings_out_of_range(setting, message):
    with pytest.raises(ConfigError, match=message):
        Sampling(**setting)
