"""Group sizes by history: their sum, their limits, Neyman's optimum, and what evenness is for."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from dppo.context import Expected
from dppo.errors import ConfigError
from dppo.pruning import GroupSizes
from dppo.pruning.prompts import whole_numbers


def expected(variance):
    variance_QF = torch.tensor(variance, dtype=torch.float64)[:, None]
    return Expected(mean_QF=variance_QF, variance_QF=variance_QF, strength_QF=variance_QF)


@given(
    wanted=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20),
    least=st.integers(0, 2),
    most=st.integers(2, 9),
    share=st.floats(0, 1),
)
def test_whole_numbers_have_the_sum_asked_for_within_the_limits(wanted, least, most, share):
    total = round(len(wanted) * (least + share * (most - least)))
    found = whole_numbers(torch.tensor(wanted, dtype=torch.float64), total, least=least, most=most)
    assert int(found.sum()) == total and int(found.min()) >= least and int(found.max()) <= most
    order = torch.argsort(torch.tensor(wanted), stable=True)
    assert (found[order].diff() >= -1).all(), "never two fewer where more is wanted"


def test_without_evenness_the_variance_is_the_least_of_all_sizes():
    """The sum of V / n over every way to give eight completions to three prompts."""
    variance, tokens = torch.tensor([0.25, 0.04, 0.01]), torch.tensor([1.0, 1.0, 1.0])
    found = GroupSizes(evenness=0.0)(expected(variance.tolist()), tokens, 3)
    every = [sizes for sizes in itertools.product(range(1, 8), repeat=3) if sum(sizes) == 9]
    best = min(every, key=lambda sizes: sum(v / n for v, n in zip(variance.tolist(), sizes, strict=True)))
    assert found.tolist() == list(best)
    wrong_twin = whole_numbers(variance.double(), 9, least=1, most=16)  # by V, not by its root
    assert wrong_twin.tolist() != list(best)


def test_long_answers_get_fewer_and_settled_prompts_what_evenness_leaves_them():
    found = GroupSizes(evenness=0.0)(expected([0.2, 0.2]), torch.tensor([10.0, 90.0]), 4)
    assert found.tolist() == [6, 2]
    settled = expected([0.25] * 2 + [0.0] * 6)
    assert GroupSizes(evenness=0.0, most=99)(settled, torch.ones(8), 4).tolist() == [13, 13, 1, 1, 1, 1, 1, 1]
    assert GroupSizes(evenness=1.0)(settled, torch.ones(8), 4).tolist() == [4] * 8
    assert GroupSizes(evenness=0.5)(settled, torch.ones(8), 4).tolist() == [10, 10, 2, 2, 2, 2, 2, 2]
    assert GroupSizes(evenness=0.0, most=8)(settled, torch.ones(8), 4).tolist() == [8, 8, 3, 3, 3, 3, 2, 2]
    assert GroupSizes()(expected([0.0, 0.0]), torch.ones(2), 4).tolist() == [4, 4], "nothing known"


def test_fields_out_of_range_are_named():
    with refused(ConfigError, "evenness=1.5", "most=0"):
        GroupSizes(evenness=1.5, most=0)
