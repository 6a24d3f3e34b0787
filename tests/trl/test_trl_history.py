"""A baseline from history in TRL's trainer: groups of one, and groups of sizes by history."""

import torch
from tiny_runs import GENERATIONS, scripted
from trl_gradients import dppo_run

from dppo.objective import history_advantages
from dppo.trl import DPPOTrainer


def plans_of(path, tmp_path, monkeypatch, **options):
    """Every plan of a run."""
    found, original = [], DPPOTrainer._plan
    monkeypatch.setattr(DPPOTrainer, "_plan", lambda *given: found.append(original(*given)) or found[-1])
    _, trained = dppo_run(path, tmp_path, max_steps=8, loss_type="grpo", learning_rate=1e-4, **options)
    return found, trained


def test_a_group_of_one_trains_on_what_history_did_not_expect(tiny_path, tmp_path, monkeypatch):
    single = {"method": "dppo_history", "num_generations": 1, "per_device_train_batch_size": 4}
    plans, trained = plans_of(tiny_path, tmp_path, monkeypatch, **single)
    assert trained.num_generations == 1
    for plan in plans:
        assert len(plan.rewards) == 4
        assert torch.equal(plan.advantage_N, history_advantages(plan.rewards, plan.prompts.context))
    first, later = plans[0], plans[-1]
    assert (later.prompts.context.expected.strength_QF > 3).all() and (later.advantage_N != 0).any()
    assert first.prompts.context.expected is None and not first.completions.advantage_N.any(), "nothing is known yet"


def test_sizes_follow_history_and_every_rollout_is_as_large(tiny_path, tmp_path, monkeypatch):
    asked, options = [], {"method": "dppo_history_sizes", "prompts": 4}

    def rollout(prompts, trainer):
        asked.append((len(prompts), trainer.num_generations))
        return scripted(prompts, trainer)

    plans, trained = plans_of(tiny_path, tmp_path, monkeypatch, **options, rollout=rollout)
    sizes = [torch.bincount(plan.rewards.group_N).tolist() for plan in plans]
    assert sizes[0] == [GENERATIONS] * 4 and any(len(set(each)) > 1 for each in sizes[1:])
    assert all(sum(each) == 4 * GENERATIONS and min(each) >= 1 for each in sizes)
    assert asked == [(16, GENERATIONS), *[(16, 1)] * 7], "engines that take every G-th prompt would take the wrong ones"
    assert trained.num_generations == GENERATIONS
    assert all(each == plan.prompts.size_Q.tolist() for each, plan in zip(sizes[1:], plans[1:], strict=True))
