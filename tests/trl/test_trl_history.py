"""Groups of one and groups of sizes by history in TRL's trainer."""

import pytest
import torch
from tiny_runs import GENERATIONS, scripted
from trl_gradients import dppo_run

from dppo.objective import history_advantages
from dppo.trl import DPPOTrainer

STEPS = dict(max_steps=8, loss_type="grpo", learning_rate=1e-4)


@pytest.fixture
def plans(monkeypatch):
    """Every plan of a run."""
    found, original = [], DPPOTrainer._plan

    def keep(self, *given):
        found.append(original(self, *given))
        return found[-1]

    monkeypatch.setattr(DPPOTrainer, "_plan", keep)
    return found


def test_a_group_of_one_trains_on_what_history_did_not_expect(plans, tiny_path, tmp_path):
    single = {"method": "dppo_history", "num_generations": 1, "per_device_train_batch_size": 4}
    _, trained = dppo_run(tiny_path, tmp_path, **STEPS | single)
    assert trained.num_generations == 1 and all(len(plan.rewards) == 4 for plan in plans)
    for plan in plans:
        assert torch.equal(plan.advantage_N, history_advantages(plan.rewards, plan.prompts.context))
    first, *_, last = plans
    assert first.prompts.context.expected is None and not first.completions.advantage_N.any()
    assert (last.prompts.context.expected.strength_QF > 3).all() and (last.advantage_N != 0).any()


def test_sizes_follow_history_and_every_rollout_is_as_large(plans, tiny_path, tmp_path):
    asked = []

    def rollout(prompts, trainer):
        asked.append((len(prompts), trainer.num_generations))
        return scripted(prompts, trainer)

    _, trained = dppo_run(tiny_path, tmp_path, rollout=rollout, method="dppo_history_sizes", prompts=4, **STEPS)
    sizes = [torch.bincount(plan.rewards.group_N).tolist() for plan in plans]
    assert sizes[0] == [GENERATIONS] * 4 and any(len(set(each)) > 1 for each in sizes[1:])
    assert all(sum(each) == 4 * GENERATIONS and min(each) >= 1 for each in sizes)
    assert asked == [(16, GENERATIONS), *[(16, 1)] * 7], "engines that take every G-th prompt would take the wrong ones"
    assert trained.num_generations == GENERATIONS
    assert all(each == plan.prompts.size_Q.tolist() for each, plan in zip(sizes[1:], plans[1:], strict=True))
