"""Rankings: counts in exact arithmetic, ties by the lowest index, and what they say of themselves."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from one_step import advantages

from dppo.errors import ConfigError
from dppo.methods import METHODS
from dppo.methods.cppo import all_but_dropped, whole_processes, whole_step
from dppo.methods.ranking import Ranking, kept_share, largest, mean_of_kept, one_each, whole_prompts
from dppo.pruning import absolute_advantage
from dppo.rng import generator

RANKING = Ranking(
    score=absolute_advantage,
    compete=whole_prompts,
    choose=largest,
    count=kept_share,
    weigh=one_each,
    reasons=("ranked", "weighted"),
)


def drawn(rows, **changes):
    return replace(RANKING, **changes).draw(rows, generator(0))


def kept(rows, **changes):
    return drawn(rows, **changes).keep_N.nonzero()[:, 0].tolist()


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 0.7, 0.75, 0.8, 0.875, 0.9, 0.9375, 0.95])
def test_counts_are_exact_whatever_a_rate_is_in_binary(rate):
    exact = Fraction(str(rate))
    for size in range(1, 65):
        assert kept_share(size, exact) == size * (1 - exact) // 1
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
    assert kept(advantages(*values), compete=whole_step) == [0, 1, 2, 3]
    assert kept(advantages(*values, groups=[0, 1] * 4)) == [0, 1, 2, 3]
    processes = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    assert kept(advantages(*values, process_N=processes), compete=whole_processes) == [1, 2, 3, 7]
    assert kept(advantages(*values), compete=whole_processes) == [0, 1, 2, 3], "one process where none is named"


def test_groups_may_differ_in_size():
    rows = advantages(1, 2, 3, 4, 5, 6, 7, groups=[0, 0, 0, 0, 1, 1, 2])
    assert kept(rows) == [2, 3, 5], "half of 4, of 2, and of 1, which is none"


def test_rows_without_a_gradient_compete_and_take_places():
    rows = advantages(0, 0, 0, 0, 1, -1, groups=[0, 0, 0, 0, 1, 1])
    assert kept(rows) == [0, 1, 4]
    assert kept(advantages(0, 0, 0)) == [], "but without any gradient nothing is drawn"
    assert kept(rows, rate=0.0) == [4, 5], "and at rate 0 it is all that have one"


def test_probabilities_are_one_for_what_is_kept_and_weights_are_the_rankings():
    rows = advantages(4, 3, 2, 1)
    one, mean = drawn(rows), drawn(rows, weigh=mean_of_kept)
    assert one.prob_N.tolist() == one.weight_N.tolist() == [1, 1, 0, 0] and mean.weight_N.tolist() == [2, 2, 0, 0]
    assert drawn(rows, rate=0.9, weigh=mean_of_kept).weight_N.tolist() == [0] * 4, "of none there is no mean"


def test_what_it_says_of_itself():
    assert RANKING.bias.startswith("ranked; nothing is left to chance (deterministic)")
    assert RANKING.bias.endswith("; weighted") and RANKING.at_rate(0.0).bias == ""
    assert str(RANKING) == (
        "0.5 of the completions pruned, largest kept by absolute advantage within whole prompts, without chance"
    )
    for name in ("cppo", "cppo_trl", "cppo_verl", "pods"):
        sentence = METHODS[name].selection_bias[0]
        assert sentence.startswith("completion pruning is biased: ") and "(deterministic)" in sentence
    for rate in (-0.1, 1.0):
        with pytest.raises(ConfigError, match=r"must be in \[0, 1\)\. To drop half, write rate=0\.5"):
            RANKING.at_rate(rate)
