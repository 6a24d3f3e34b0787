"""A predictor of difficulty among a run's prompts: the prior of those without a history, settled before the rollout."""

import copy
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from drafts import draft_of, trained
from refusals import refused, warned

from dppo.errors import CheckpointError, RewardError, ShapeError
from dppo.methods import METHODS
from dppo.pruning import DifficultyPredictor, PromptHistory, PromptStream
from dppo.pruning.difficulty import PRIOR_STRENGTH
from dppo.rng import step_streams
from dppo.step import PromptSource, RolledOut, plan_step
from dppo.step.prompts import DIFFICULTY_FILE
from dppo.types import Rewards

SIZE, PROMPTS, GROUP, SEED = 12, 4, 2, 6
FEATURE_PD = np.linspace(-1, 1, SIZE)[:, None]


def source(method="grpo_history", *, difficulty=True, size=SIZE):
    predictor = DifficultyPredictor(FEATURE_PD) if difficulty else None
    history = PromptHistory(np.arange(size, dtype=np.uint64), half_life=1e9)
    stream = PromptStream(size, SEED)
    return PromptSource(stream, history, METHODS[method], prompts=PROMPTS, difficulty=predictor)


def answers(row_Q):
    """Rewards of a policy that solves the later half of the prompts, and never the first one."""
    reward_QG = (row_Q >= SIZE // 2).double()[:, None].repeat(1, GROUP)
    reward_QG[row_Q == 0] = torch.tensor([1.0, 0.0], dtype=torch.float64)
    return Rewards.of_groups(reward_QG)


def learned(run, prompts, rewards, step):
    run.learn(draft_of(run.method, prompts, rewards), step)


taught = partial(trained, answers=answers, generations=GROUP)


def test_prompts_without_a_history_start_from_the_prediction_and_others_from_both():
    run = source()
    first, second, third, again = taught(run, 4)
    assert (first.context.expected.mean_QF == 0.5).all() and (
        first.context.expected.worth_QF == PRIOR_STRENGTH + 1
    ).all()
    for prompts in (second, third):
        hard = prompts.row_Q < SIZE // 2
        mean_Q = prompts.context.expected.mean_QF[:, 0]
        assert mean_Q[hard].max() < mean_Q[~hard].min()
        torch.testing.assert_close(
            prompts.context.expected.variance_QF[:, 0], mean_Q * (1 - mean_Q), rtol=1e-12, atol=0
        )
    own = copy.deepcopy(run)
    again_mean_Q = again.context.expected.mean_QF[:, 0]
    assert (again.context.expected.worth_QF > 3).all() and (again_mean_Q != second.context.expected.mean_QF[:, 0]).any()
    assert own.figures["difficulty/auc"] == 1.0
    without = source(difficulty=False)
    flat = taught(without, 2)[1].context.expected.mean_QF
    assert (flat == flat[0]).all(), "the wrong twin: history alone knows nothing of the first epoch"


def test_the_baseline_of_a_completion_does_not_move_with_any_reward_of_its_step():
    """Only its siblings' may, and then by their share. Learning before the plan is the wrong twin."""
    run = source()
    taught(run, 1)
    prompts = run.block(1, generations=1)
    baselines, peeked = set(), set()
    for outcome in product([0.0, 1.0], repeat=PROMPTS):
        rewards = Rewards.of_groups(torch.tensor(outcome, dtype=torch.float64)[:, None])
        rolled_out = RolledOut(rewards=rewards, tokens_N=torch.ones(PROMPTS))
        plan = plan_step(run.method, rolled_out, prompts, streams=step_streams(SEED, 1), max_tokens=1)
        baselines.add(tuple((rewards.total_N - plan.advantage_N).tolist()))
        late = copy.deepcopy(run)
        learned(late, prompts, rewards, 1)
        peeked.add(tuple(late.difficulty.predict(prompts.row_Q, 2)[:, 0].tolist()))
    spread = np.ptp(np.array(sorted(baselines)), axis=0)
    assert spread.max() < 1e-12 < 1e-2 < np.ptp(np.array(sorted(peeked)), axis=0).min()


def test_a_resumed_run_expects_the_same_bit_for_bit(tmp_path):
    through, resumed, forgetful = source(), source(), source()
    taught(through, 2)
    position = through.save(tmp_path)
    resumed.load(tmp_path, position)
    straight, after = taught(through, 2, first=2), taught(resumed, 2, first=2)
    for one, other in zip(straight, after, strict=True):
        assert torch.equal(one.row_Q, other.row_Q) and torch.equal(
            one.context.expected.mean_QF, other.context.expected.mean_QF
        )
    (tmp_path / DIFFICULTY_FILE).unlink()
    with warned("difficulty_features"):
        forgetful.load(tmp_path, position)
    assert not torch.equal(
        taught(forgetful, 1, first=2)[0].context.expected.mean_QF, straight[0].context.expected.mean_QF
    )
    (tmp_path / DIFFICULTY_FILE).write_bytes(b"PK")
    with pytest.raises(CheckpointError, match="is damaged"):
        source().load(tmp_path, position)


def test_features_of_another_dataset_and_rewards_out_of_range_are_refused():
    with refused(ShapeError, 12, 9):
        source(size=9)
    run = source()
    prompts = run.block(0, generations=GROUP)
    with refused(RewardError, "reward 3", "function 0", "reward_range: [0, 3]"):
        learned(run, prompts, Rewards.of_groups(torch.full((PROMPTS, GROUP), 3.0)), 0)
    assert run.history.seen_share == 0 and run.difficulty.step == -1, "nothing is remembered of it"
