"""Rankings: counts in exact arithmetic, ties by the lowest index, and who competes with whom."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from one_step import advantages

from dppo.methods.cppo import all_but_dropped
from dppo.methods.ranking import Ranking, kept_share, largest, one_each
from dppo.pruning import absolute_advantage
from dppo.rng import generator

RANKING = Ranking(
    score=absolute_advantage, choose=largest, count=kept_share, weigh=one_each, reasons=("ranked", "weighted")
)


def kept(rows, **changes):
    return replace(RANKING, **changes).draw(rows, generator(0)).keep_N.nonzero()[:, 0].tolist()


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 0.7, 0.75, 0.8, 0.875, 0.9, 0.9375, 0.95])
def test_counts_are_exact_whatever_a_rate_is_in_binary(rate):
    exact = Fraction(str(rate))
    for size in range(1, 65):
        assert kept_share(size, exact) == max(size * (1 - exact) // 1, 1)
        assert all_but_dropped(size, exact) == size - size * exact // 1
        if rate:
            rows = advantages(*range(1, size + 1))
            assert len(kept(rows, rate=rate)) == kept_share(size, exact)
            assert len(kept(rows, rate=rate, count=all_but_dropped)) == all_but_dropped(size, exact)


@pytest.mark.parametrize(("size", "wrong"), [(10, 0), (160, 15)])
def test_float_arithmetic_would_keep_one_less(size, wrong):
    assert int(size * (1 - 0.9)) == wrong
    assert len(kept(advantages(*range(1, size + 1)), rate=0.9)) == wrong + 1


def test_ties_go_to_the_lowest_index():
    assert kept(advantages(1, -3, 3, 3)) == [1, 2]
    assert kept(advantages(*[2] * 6)) == [0, 1, 2]
    assert kept(advantages(1, 3, -3, 3, 1), rate=0.8) == [1]


def test_rows_compete_with_those_of_the_same_number_wherever_they_lie():
    values = (5, 6, 7, 8, 1, 2, 3, 4)
    assert kept(advantages(*values, groups=[9, 9, 9, 9, 4, 4, 4, 4])) == [2, 3, 6, 7]
    assert kept(advantages(*values), compete="step") == [0, 1, 2, 3]
    assert kept(advantages(*values, groups=[0, 1] * 4)) == [0, 1, 2, 3]
    processes = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    assert kept(advantages(*values, process_N=processes), compete="process") == [1, 2, 3, 7]
    assert kept(advantages(*values), compete="process") == [0, 1, 2, 3], "one process where none is named"


def test_a_competition_across_prompts_is_no_choice_within_a_prompt():
    assert RANKING.prompt_exact
    for compete in ("step", "process"):
        across = replace(RANKING, compete=compete)
        assert not across.prompt_exact and across.at_rate(0.0).prompt_exact
