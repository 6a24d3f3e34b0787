"""A baseline from history as methods: what is fixed, what is declared, and what they are without a history."""

from dataclasses import replace

import pytest
from arrays import rewards_of, tensor
from tiny_policy import GRPO_BY_HAND, TOTAL_N, by_group

from dppo.context import NOTHING_KNOWN, Expected, StepContext
from dppo.methods import METHODS

LEAVE_ONE_OUT = replace(GRPO_BY_HAND, advantage_N=by_group(TOTAL_N, lambda x: x - (x.sum() - x) / (len(x) - 1)))
"""Where nothing is known of a prompt, its other completions are the baseline, and nothing is divided by."""
BY_HAND = {name: LEAVE_ONE_OUT for name in METHODS if "history" in name}


@pytest.mark.parametrize("name", ["dppo_history", "dppo_history_scaled", "grpo_history"])
def test_a_group_of_one_learns_from_what_history_expected(name):
    mean_QF, variance_QF, strength_QF = (tensor([[value]]) for value in (0.25, 0.16, 3.0))
    expected = Expected(mean_QF=mean_QF, variance_QF=variance_QF, strength_QF=strength_QF)
    one = rewards_of([1.0])
    divided = 0.5 if METHODS[name].advantages.compute.__name__ == "history_scaled_advantages" else 1.0
    assert METHODS[name].advantages(one, StepContext(expected=expected)).item() == pytest.approx(0.75 / divided)
    assert METHODS["grpo"].advantages(one, NOTHING_KNOWN).item() == 0
