"""A baseline from history in TRL's trainer: groups of one, groups of sizes by history, resume, and what is refused."""

import torch
from tiny_runs import GENERATIONS, scripted
from trl_gradients import dppo_run

from dppo.objective import history_advantages
from dppo.trl import DPPOTrainer

SINGLE = {"method": "dppo_history", "num_generations": 1, "per_device_train_batch_size": 4}
UNEVEN = {"method": "dppo_history_sizes"}


def plans_of(path, tmp_path, monkeypatch, **options):
    """Every plan of a run, with the sizes that history gave for it."""
    found, original = [], DPPOTrainer._plan

    def keep(self, *given):
        found.append(original(self, *given))
        return found[-1]

    monkeypatch.setattr(DPPOTrainer, "_plan", keep)
    settings = dict(max_steps=8, loss_type="grpo", learning_rate=1e-4)
    _, trained = dppo_run(path, tmp_path, **settings | options)
    return found, trained


def test_a_group_of_one_trains_on_what_history_did_not_expect(tiny_path, tmp_path, monkeypatch):
    plans, trained = plans_of(tiny_path, tmp_path, monkeypatch, **SINGLE)
    assert trained.num_generations == 1 and all(len(plan.rewards) == 4 for plan in plans)
    for plan in plans:
        assert torch.equal(plan.advantage_N, history_advantages(plan.rewards, plan.prompts.context))
    later = plans[-1]
    assert (later.prompts.context.expected.strength_QF > 3).all() and (later.advantage_N != 0).any()
    assert plans[0].prompts.context.expected is None and not plans[0].completions.advantage_N.any(), (
        "nothing is known before the first completion"
    )


def test_sizes_follow_history_and_every_rollout_is_as_large(tiny_path, tmp_path, monkeypatch):
    asked = []

    def rollout(prompts, trainer):
        if trainer.model.training:
            asked.append((len(prompts), trainer.num_generations))
        return scripted(prompts, trainer)

    plans, trained = plans_of(tiny_path, tmp_path, monkeypatch, **UNEVEN, rollout=rollout, prompts=4)
    sizes = [torch.bincount(plan.rewards.group_N).tolist() for plan in plans]
    assert sizes[0] == [GENERATIONS] * 4 and any(len(set(each)) > 1 for each in sizes[1:])
    assert all(sum(each) == 4 * GENERATIONS and min(each) >= 1 for each in sizes)
    assert asked == [(16, GENERATIONS), *[(16, 1)] * 7], "engines that take every G-th prompt would take the wrong ones"
    assert trained.num_generations == GENERATIONS
    assert all(each == plan.prompts.size_Q.tolist() for each, plan in zip(sizes[1:], plans[1:], strict=True))
