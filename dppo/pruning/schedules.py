"""Schedules of the rate of a pruning over a run."""

from collections.abc import Callable

from dppo.settings import FULL_SHARE

Schedule = Callable[[float], float]
"""``schedule(done) -> factor``: from the share of training done to the factor of the rate, both in [0, 1]."""


def constant(done: float, *, until: float = FULL_SHARE) -> float:
    """1, for an unchanged rate."""
    return 1.0


def stop(done: float, *, until: float = FULL_SHARE) -> float:
    """1 before ``until``, a share of training in [0, 1], then 0: the last part of the run is not pruned.

    Source: InfoBatch, arXiv:2303.04947, section 3.3, with delta = 0.875 of the epochs.
    """
    return 1.0 if done < until else 0.0


def fade(done: float, *, until: float = FULL_SHARE) -> float:
    """1 up to ``until``, a share of training in [0, 1], then linear to 0 at the end of the run."""
    return 1.0 if done <= until else max(0.0, (1.0 - done) / (1.0 - until))


SCHEDULES: dict[str, Callable[..., float]] = {"constant": constant, "stop": stop, "fade": fade}
