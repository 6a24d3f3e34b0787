"""pass@k of a problem's samples. Its intervals are in ``answer_judge.statistics``."""

from math import comb

from answer_judge.errors import ConfigError


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The probability that at least one of ``k`` samples is right, from ``samples`` drawn: unbiased, in [0, 1].

    ``1 - C(n - c, k) / C(n, k)``, the share of the subsets of size k that hold a right one. At k = 1 it is the mean.

    Args:
        samples: n, drawn for the problem.
        right: c, how many of them are right, in [0, n].
        k: in [1, n].

    Raises:
        ConfigError: k or c out of range.

    Source: Chen et al. (2021), arXiv:2107.03374, section 2.1.
    """
    if not (1 <= k <= samples and 0 <= right <= samples):
        raise ConfigError(f"pass@{k} of {samples} samples, {right} right: k must be in [1, samples]. Try k={samples}")
    return 1.0 - comb(samples - right, k) / comb(samples, k)
