"""Rankings: counts in exact arithmetic, ties by the lowest index, and who competes with whom."""

from dataclasses import replace
from fractions import Fraction

import torch
from arrays import tensor

from dppo.methods.cppo import all_but_dropped
from dppo.methods.ranking import Ranking, kept_share, largest, one_each
from dppo.pruning import absolute_advantage
from dppo.rng import generator
from dppo.types import Completions

RANKING = Ranking(
    score=absolute_advantage, choose=largest, count=kept_share, weigh=one_each, reasons=("ranked", "weighted")
)


def kept(*values, groups=None, process_N=None, **changes):
    """Places that are kept of completions with these advantages."""
    rows = Completions(
        advantage_N=tensor(values),
        tokens_N=torch.ones(len(values)),
        group_N=torch.zeros(len(values), dtype=torch.int64) if groups is None else torch.tensor(groups),
        live_N=tensor(values) != 0,
        process_N=process_N,
    )
    return replace(RANKING, **changes).draw(rows, generator(0)).keep_N.nonzero()[:, 0].tolist()


def test_counts_are_exact_whatever_a_rate_is_in_binary():
    """The wrong twin rounds 1 - 0.9 in binary, and keeps one less."""
    for rate in (0.0, 0.1, 0.3, 0.5, 0.7, 0.75, 0.8, 0.875, 0.9, 0.9375, 0.95):
        exact = Fraction(str(rate))
        for size in (*range(1, 65), 160):
            assert kept_share(size, exact) == max(size * (1 - exact) // 1, 1)
            assert all_but_dropped(size, exact) == size - size * exact // 1
            if rate:
                assert len(kept(*range(1, size + 1), rate=rate)) == kept_share(size, exact)
                counted = kept(*range(1, size + 1), rate=rate, count=all_but_dropped)
                assert len(counted) == all_but_dropped(size, exact)
    assert int(160 * (1 - 0.9)) == 15 and kept_share(160, Fraction("0.9")) == 16


def test_rows_compete_with_those_of_the_same_number_wherever_they_lie():
    values = (5, 6, 7, 8, 1, 2, 3, 4)
    assert kept(*values, groups=[9, 9, 9, 9, 4, 4, 4, 4]) == [2, 3, 6, 7]
    assert kept(*values, compete="step") == [0, 1, 2, 3]
    assert kept(*values, groups=[0, 1] * 4) == [0, 1, 2, 3]
    assert kept(*values, process_N=torch.tensor([0, 0, 0, 0, 0, 0, 1, 1]), compete="process") == [1, 2, 3, 7]
    assert kept(*values, compete="process") == [0, 1, 2, 3], "one process where none is named"


def test_a_competition_across_prompts_is_no_choice_within_a_prompt():
    assert RANKING.prompt_exact
    for compete in ("step", "process"):
        across = replace(RANKING, compete=compete)
        assert not across.prompt_exact and across.at_rate(0.0).prompt_exact
