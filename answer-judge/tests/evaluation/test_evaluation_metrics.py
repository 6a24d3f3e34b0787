"""pass@k against enumeration."""

from itertools import combinations

import pytest
from refusals import refused

from answer_judge.errors import ConfigError
from answer_judge.evaluation import pass_at_k


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
