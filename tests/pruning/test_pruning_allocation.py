"""Dynamic completion allocation: sizes in exact arithmetic, and what CPPO's code makes of them."""

import pytest

from dppo.errors import DesignError
from dppo.pruning import allocate, allocate_as_trl

EXACT = {0.0: 16, 0.5: 32, 0.75: 64, 0.875: 128, 0.9375: 256}


@pytest.mark.parametrize("rate", EXACT)
def test_prompts_grow_by_one_over_what_is_kept(rate):
    for found in (allocate(16, 16, rate), allocate_as_trl(16, 16, rate)):
        assert (found.prompts, found.generations, found.update, found.exact) == (EXACT[rate], 16, 256, True)


@pytest.mark.parametrize(("rate", "prompts"), [(0.9, 160), (0.8, 80), (0.3, 22), (0.7, 53)])
def test_ours_keeps_the_group_and_rounds_prompts_down(rate, prompts):
    found = allocate(16, 16, rate)
    assert (found.prompts, found.generations) == (prompts, 16)
    assert found.exact == (rate in (0.9, 0.8))


@pytest.mark.parametrize(
    ("rate", "generations"),
    [(0.5, 16), (0.75, 16), (0.875, 16), (0.9375, 16), (0.9, 10), (0.8, 15), (0.7, 12), (0.3, 11)],
)
def test_the_code_for_trl_loses_completions_where_the_rate_does_not_divide(rate, generations):
    found = allocate_as_trl(16, 16, rate)
    assert found.generations == generations
    assert found.exact == (generations == 16)


def test_a_group_of_which_nothing_is_kept_is_refused():
    with pytest.raises(DesignError, match=r"rate=0\.9 keeps none of 9 completions per prompt. Use at least 10"):
        allocate_as_trl(16, 9, 0.9)
    assert int(10 * (1 - 0.9)) == 0, "where binary arithmetic keeps none of 10"
    assert allocate_as_trl(16, 10, 0.9).generations == 10


@pytest.mark.parametrize("function", [allocate, allocate_as_trl])
def test_rates_out_of_range_are_refused(function):
    with pytest.raises(DesignError, match=r"rate=1 must be in \[0, 1\)"):
        function(8, 8, 1.0)
