"""Curves: what logs say, and what is read off between points."""

import pytest

from dppo.lab.comparison.curves import Reach, accuracy_at, curve_of, reach


def record(step, accuracy):
    totals = {"seconds": 10.0 * step, "rollouts": 100 * step, "tokens_trained": 7 * step, "rollout_tokens": 900 * step}
    return {"step": step, "eval/average/pass@1": accuracy} | {f"total/{name}": made for name, made in totals.items()}


CURVE = curve_of([record(0, 0.2), record(5, 0.4), record(10, 0.3), record(20, 0.8)])


def test_read_off_on_straight_lines():
    """By hand: at step 2.5 half of the way from .2 to .4; at 125 s a quarter of .3 to .8."""
    assert accuracy_at(CURVE, 2.5, "step") == pytest.approx(0.3)
    assert accuracy_at(CURVE, 125.0, "seconds") == pytest.approx(0.3 + 0.25 * 0.5)
    assert accuracy_at(CURVE, 2000, "rollouts") == pytest.approx(0.8)
    assert accuracy_at(CURVE, 21, "step") is None
    assert accuracy_at(CURVE[:1], 0, "step") == 0.2


def test_amounts_to_a_target():
    """By hand: .35 is first passed three quarters of the way from step 0 to 5, however low it falls later."""
    for over, amount in (("step", 3.75), ("seconds", 37.5), ("rollouts", 375), ("rollout_tokens", 3375)):
        assert reach(CURVE, 0.35, over) == Reach(amount=pytest.approx(amount), reached=True)
    assert reach(CURVE, 0.55, "tokens_trained").amount == pytest.approx(70 + 0.5 * 70)
    # A start at the target reaches nothing.
    assert [reach(CURVE, 0.1, "seconds"), reach(CURVE, 0.2, "seconds"), reach([], 0.5, "step")] == [None] * 3
