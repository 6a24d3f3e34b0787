"""Groups of sizes by history in TRL's trainer."""

import torch
from tiny_runs import GENERATIONS, scripted
from trl_gradients import dppo_run

from dppo.trl import DPPOTrainer


def test_sizes_follow_history_and_every_rollout_is_as_large(tiny_path, tmp_path, monkeypatch):
    asked, plans, original = [], [], DPPOTrainer._plan

    def rollout(prompts, trainer):
        asked.append((len(prompts), trainer.num_generations))
        return scripted(prompts, trainer)

    monkeypatch.setattr(DPPOTrainer, "_plan", lambda *given: plans.append(original(*given)) or plans[-1])
    options = dict(method="dppo_history_sizes", prompts=4, max_steps=8, loss_type="grpo", learning_rate=1e-4)
    _, trained = dppo_run(tiny_path, tmp_path, rollout=rollout, **options)
    sizes = [torch.bincount(plan.rewards.group_N).tolist() for plan in plans]
    assert sizes[0] == [GENERATIONS] * 4 and any(len(set(each)) > 1 for each in sizes[1:])
    assert all(sum(each) == 4 * GENERATIONS and min(each) >= 1 for each in sizes)
    assert asked == [(16, GENERATIONS), *[(16, 1)] * 7], "engines that take every G-th prompt would take the wrong ones"
    assert trained.num_generations == GENERATIONS
    assert all(each == plan.prompts.size_Q.tolist() for each, plan in zip(sizes[1:], plans[1:], strict=True))
