"""What history expects of rewards: the Beta posterior for right and wrong, moments for others, each function apart."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused

from dppo.context import Expected, StepContext
from dppo.errors import DataError, ShapeError
from dppo.methods import METHODS
from dppo.pruning import PromptHistory
from dppo.step import RolledOut, drafted, whole_block
from dppo.types import Rewards

NAN = float("nan")


def history(size=4, **settings) -> PromptHistory:
    return PromptHistory(np.arange(size, dtype=np.uint64), **{"half_life": 1e12} | settings)


def learn(known: PromptHistory, rows, groups, step=0) -> None:
    """Groups of lines with one reward per function, or of numbers."""
    lines = [row if isinstance(row, list) else [row] for group in groups for row in group]
    group_N = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    rewards = Rewards(reward_NF=torch.tensor(lines, dtype=torch.float64), group_N=group_N)
    known.update(torch.tensor(rows), rewards, torch.ones(len(rows)), torch.ones(len(lines)), step)


def test_with_rewards_of_0_and_1_it_is_the_beta_distribution():
    known = history(decay=0.5, strength=3.0)
    learn(known, [0, 1], [[1, 1, 0, 1], [0, 0]])
    learn(known, [0], [[0, 1]], step=1)
    prior = (0.95 * 3 + 1) / (0.95 * 6 + 2)  # of all completions lately
    right, wrong = 0.5 * 3 + 1, 0.5 * 1 + 1
    a, b = 3 * prior + right, 3 * (1 - prior) + wrong
    found = known.expected([0, 3], 1)
    assert found.mean_QF[0].item() == pytest.approx(a / (a + b))
    assert (found.variance_QF / found.worth_QF)[0].item() == pytest.approx(a * b / ((a + b) ** 2 * (a + b + 1)))
    assert found.variance_QF[0].item() == pytest.approx(a * b / (a + b) ** 2), "p (1 - p)"
    assert found.mean_QF[1].item() == pytest.approx(prior) and found.worth_QF[1].item() == 4, "unseen: the prior"


def test_nothing_is_expected_before_the_first_completion():
    assert history().expected([0, 1], 0) is None
    known = history()
    known.update(torch.zeros(0).long(), Rewards(reward_NF=torch.zeros(0, 1), group_N=torch.zeros(0).long()),
                 torch.zeros(0), torch.zeros(0), 0)  # fmt: skip
    assert known.expected([0], 0) is None


def test_other_rewards_have_the_variance_of_what_was_seen():
    known, values = history(decay=1.0, strength=1e-9), [2.5, -1.0, 7.0, 3.0]
    learn(known, [2], [values])
    found = known.expected([2], 0)
    assert found.mean_QF.item() == pytest.approx(np.mean(values))
    assert found.variance_QF.item() == pytest.approx(np.var(values), rel=1e-5)


def test_each_function_has_its_own_and_missing_rewards_count_in_none():
    known = history(decay=1.0, strength=2.0)
    learn(known, [0, 1], [[[1, NAN], [0, 5.0]], [[1, 7.0], [1, NAN]]])
    found = known.expected([0, 1], 0)
    assert found.worth_QF.tolist() == [[5.0, 4.0], [5.0, 4.0]], "completions seen, two of the prior, and one"
    assert found.mean_QF[:, 1].tolist() == pytest.approx([(2 * 6 + 5) / 3, (2 * 6 + 7) / 3])
    unknown = history()
    learn(unknown, [0], [[[1, NAN], [0, NAN]]])
    assert unknown.expected([0], 0).worth_QF[0].tolist() == pytest.approx([5.0, 1.0]), "nothing of the second"
    weight_F = torch.tensor([2.0, 0.5])
    by_hand = 4 * found.variance_QF[:, 0] + 0.25 * found.variance_QF[:, 1]
    torch.testing.assert_close(found.total_variance_Q(weight_F), by_hand)
    with pytest.raises(ShapeError, match="rewards of 2 functions, and there are 1 now"):
        learn(known, [0], [[1.0]])


def test_age_gives_way_to_the_prior():
    known = history(decay=1.0, strength=1.0, half_life=10.0)
    learn(known, [0, 1], [[1, 1, 1, 1], [0, 0, 0, 0]])
    means = [known.expected([0], step).mean_QF.item() for step in (0, 10, 1000)]
    assert means == pytest.approx([(4 + 0.5) / 5, (2 + 0.5) / 3, 0.5])


def test_a_prior_of_each_prompt_takes_the_place_of_the_mean_of_all():
    known = history(decay=1.0)
    learn(known, [0], [[1, 0]])
    given = Expected(
        mean_QF=torch.tensor([[0.9], [0.2]]).double(),
        variance_QF=torch.tensor([[0.09], [0.16]]).double(),
        worth_QF=torch.tensor([[5.0], [5.0]]).double(),
    )
    found = known.expected([0, 1], 0, prior=given)
    assert found.mean_QF[:, 0].tolist() == pytest.approx([(4 * 0.9 + 1) / 6, 0.2])
    assert found.variance_QF[1].item() == pytest.approx(0.16) and found.worth_QF[:, 0].tolist() == [7, 5]


def test_a_record_that_cannot_be_is_refused():
    good = torch.ones(2, 1, dtype=torch.float64)
    with refused(ShapeError, "Expected", "functions"):
        Expected(mean_QF=good, variance_QF=good, worth_QF=good[:1])
    with refused(DataError, "variance_QF"):
        Expected(mean_QF=good, variance_QF=-good, worth_QF=good)
    expected = Expected(mean_QF=good, variance_QF=good, worth_QF=good)
    with refused(ShapeError, "value_Q", "3"):
        StepContext(expected=expected, value_Q=torch.ones(3))
    with refused(ShapeError, "value_Q"):
        StepContext(value_Q=good)
    with refused(ShapeError, "context", "3 rows"):
        replace(whole_block(3, 6), context=StepContext(expected=expected))
    two_functions = RolledOut(rewards=Rewards.in_groups(torch.ones(4, 2), 2), tokens_N=torch.ones(4))
    with refused(ShapeError, "expected", "(2, 2)"):
        prompts = replace(whole_block(2, 4), context=StepContext(expected=expected))
        drafted(METHODS["dppo_history"], two_functions, prompts, max_tokens=1)
