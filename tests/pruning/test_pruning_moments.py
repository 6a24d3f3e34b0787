"""What history expects of rewards: the Beta posterior for right and wrong, moments for others, each function apart."""

import numpy as np
import pytest
import torch
from arrays import rewards_of
from refusals import refused

from dppo.errors import ShapeError
from dppo.pruning import PromptHistory

NAN = float("nan")


def history(size=4, **settings) -> PromptHistory:
    return PromptHistory(np.arange(size, dtype=np.uint64), **{"half_life": 1e12} | settings)


def learn(known: PromptHistory, rows, groups, step=0) -> None:
    rewards = rewards_of(*groups)
    known.update(torch.tensor(rows), rewards, torch.ones(len(rows)), torch.ones(len(rewards)), step)


def test_with_rewards_of_0_and_1_it_is_the_beta_distribution():
    known = history(decay=0.5, strength=3.0)
    learn(known, [0, 1], [[1, 1, 0, 1], [0, 0]])
    learn(known, [0], [[0, 1]], step=1)
    prior = (0.95 * 3 + 1) / (0.95 * 6 + 2)  # of all completions lately
    right, wrong = 0.5 * 3 + 1, 0.5 * 1 + 1
    a, b = 3 * prior + right, 3 * (1 - prior) + wrong
    found = known.expected([0, 3], 1)
    assert found.mean_QF[0].item() == pytest.approx(a / (a + b))
    assert (found.variance_QF / found.strength_QF)[0].item() == pytest.approx(a * b / ((a + b) ** 2 * (a + b + 1)))
    assert found.variance_QF[0].item() == pytest.approx(a * b / (a + b) ** 2), "p (1 - p)"
    assert found.mean_QF[1].item() == pytest.approx(prior) and found.strength_QF[1].item() == 4, "unseen: the prior"


def test_each_function_has_its_own_and_missing_rewards_count_in_none():
    known = history(decay=1.0, strength=2.0)
    learn(known, [0, 1], [[[1, NAN], [0, 5.0]], [[1, 7.0], [1, NAN]]])
    found = known.expected([0, 1], 0)
    assert found.strength_QF.tolist() == [[5.0, 4.0], [5.0, 4.0]], "completions seen, two of the prior, and one"
    assert found.mean_QF[:, 1].tolist() == pytest.approx([(2 * 6 + 5) / 3, (2 * 6 + 7) / 3])
    unknown = history()
    learn(unknown, [0], [[[1, NAN], [0, NAN]]])
    assert unknown.expected([0], 0).strength_QF[0].tolist() == [5.0, 0.0], "nothing of the second"
    weight_F = torch.tensor([2.0, 0.5])
    by_hand = 4 * found.variance_QF[:, 0] + 0.25 * found.variance_QF[:, 1]
    torch.testing.assert_close(found.total_variance_Q(weight_F), by_hand)
    with refused(ShapeError, 2, 1):
        learn(known, [0], [[1.0]])


def test_age_gives_way_to_the_prior():
    known = history(decay=1.0, strength=1.0, half_life=10.0)
    learn(known, [0, 1], [[1, 1, 1, 1], [0, 0, 0, 0]])
    means = [known.expected([0], step).mean_QF.item() for step in (0, 10, 1000)]
    assert means == pytest.approx([(4 + 0.5) / 5, (2 + 0.5) / 3, 0.5])
