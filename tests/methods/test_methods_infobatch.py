"""InfoBatch: prompts below the mean are dropped at random, weighted by one over what is kept, and not at the end."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from tiny_policy import GRPO_BY_HAND, at_rates, expectation, relative_error

from dppo.methods import METHODS
from dppo.pruning import fade, stop
from dppo.rng import Purpose, generator
from dppo.types import Candidates

UNBIASED = {"infobatch": True}
INFOBATCH, DPPO = METHODS["infobatch"], METHODS["dppo"]
SIZE = 64
BLOCK = Candidates(
    row_P=torch.arange(SIZE),
    signal_P=torch.arange(SIZE, dtype=torch.float64),
    tokens_P=torch.ones(SIZE, dtype=torch.float64),
    seen_P=torch.ones(SIZE, dtype=torch.bool),
)
"""Half of it is below the mean."""


@pytest.mark.parametrize("rate", [0.25, 0.5, 0.75])
def test_infobatch_drops_below_the_mean_and_weighs_by_one_over_what_is_kept(rate):
    draw = INFOBATCH.with_rates(prompt=rate).prompts.draw(BLOCK, generator(3, Purpose.CHECK))
    assert draw.keep_N[32:].all() and (draw.weight_N[32:] == 1).all()
    low_N = draw.keep_N[:32]
    assert low_N.sum() == 32 * (1 - rate)
    assert draw.weight_N[:32][low_N].tolist() == pytest.approx([1 / (1 - rate)] * int(low_N.sum()))
    assert draw.weight_N.sum() == pytest.approx(SIZE), "a step stands for all its candidates"


def test_infobatch_prunes_in_seven_eighths_of_a_run():
    assert [INFOBATCH.at(done).prompts.rate for done in (0.0, 0.5, 0.874, 0.875, 1.0)] == [0.5, 0.5, 0.5, 0.0, 0.0]
    assert INFOBATCH.at(0.9).prompts.draw(BLOCK, generator(0)).keep_N.all()
    assert not INFOBATCH.biases() and "rate by schedule stop" in INFOBATCH.describe()
    assert INFOBATCH.completions.rate == 0


@pytest.mark.parametrize("schedule", [stop, fade, partial(fade, until=0.2)])
def test_the_gradient_is_unbiased_at_every_point_of_a_schedule(schedule):
    method = at_rates(DPPO, 0.5, 0.5, beta=0.2, schedule=schedule)
    wanted = replace(GRPO_BY_HAND, beta=0.2).gradient()
    for done in (0.0, 0.9, 0.95, 1.0):
        assert relative_error(expectation(method.at(done)), wanted) < 1e-12
