"""What a step has to do: against hand counts, and against what the library itself does on simulated rollouts."""

import numpy as np
import pytest
import torch
from planning_worlds import MIXED, STEP, workload

from dppo.lab.planning.records import Option
from dppo.lab.planning.work import cells_of, kept, work_of
from dppo.methods import OBJECTIVES, SCHEMES, combined
from dppo.rng import step_streams
from dppo.step import RolledOut, plan_step, whole_block
from dppo.types import Rewards


def test_padding_counts_every_completion_at_the_longest_and_rows_count_each_prompt_once():
    padded = work_of(MIXED, STEP, Option(name="TRL", layout="padded", forwarded="all"))
    assert padded.forwarded == pytest.approx(16 * 8 * (11 + 50))
    rows = work_of(MIXED, STEP, Option(name="all", forwarded="all"))
    rate = 0.3 * 0.3 + 0.3 * 0.8 + 0.2
    assert rows.generated == pytest.approx(128 * (rate * 20 + (1 - rate) * 40))
    assert rows.forwarded == pytest.approx(rows.generated + 16 * 10), "the last token of a prompt is each branch's own"


def test_what_has_no_gradient_is_every_group_of_equal_rewards():
    work = work_of(workload((0.3, 1)), STEP, Option(name="exact"))
    assert work.noise == pytest.approx(1)
    tokens = 128 * (0.3 * (1 - 0.3**7) * 20 + 0.7 * (1 - 0.7**7) * 40)
    assert work.forwarded == pytest.approx(tokens + 16 * (1 - 0.3**8 - 0.7**8) * 10)


def test_expected_work_and_noise_are_those_of_the_librarys_own_draws():
    """300 steps of ``plan_step`` at a rate, against the expectation over cells: tokens and second moments to 3%."""
    method = combined(OBJECTIVES["dr_grpo"], SCHEMES["dppo"]).with_rates(completion=0.5)
    rng, option = np.random.default_rng(0), Option(name="half", completion_rate=0.5)
    predicted = work_of(MIXED, STEP, option)
    tokens, moments, whole = [], 0.0, 0.0
    for step in range(300):
        rate_P = rng.choice(MIXED.rate_C, size=64)
        reward_PG = torch.from_numpy((rng.random((64, 8)) < rate_P[:, None]).astype(float))
        tokens_N = torch.where(reward_PG.flatten() > 0, 20, 40)
        rolled_out = RolledOut(rewards=Rewards.of_groups(reward_PG), tokens_N=tokens_N)
        plan = plan_step(method, rolled_out, whole_block(64, 512), streams=step_streams(0, step), max_tokens=50)
        weight_N, value_N = plan.weight_UN[0], plan.completions.advantage_N.double() ** 2 * tokens_N
        tokens.append(float(tokens_N[weight_N > 0].sum()) / 4)
        moments, whole = moments + float((value_N * weight_N**2).sum()), whole + float(value_N.sum())
    cells = cells_of(MIXED, STEP, option)
    expected = float((cells.count_2X * kept(cells, option, STEP) * cells.tokens_2X).sum())
    assert expected == pytest.approx(np.mean(tokens), rel=0.03)
    assert predicted.noise == pytest.approx(moments / whole, rel=0.03)
    assert abs(expected / np.mean(tokens) - 0.5 * predicted.generated / np.mean(tokens)) > 0.1, "half of all is another"
