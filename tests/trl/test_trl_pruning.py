"""Pruning inside the trainer: unbiased in expectation, exact bookkeeping, and both levels at work."""

import math
from dataclasses import replace

import pytest
import torch
from tiny_runs import GENERATIONS, SHARES, logged, relative_difference
from trl_gradients import dppo_run, full_and_mean, trl_run, unweighted

from dppo.trl.forwards import ForwardPasses

DRAWS = {"plain": {}, "kl": {"beta": 0.1}, "high entropies": {"top_entropy_quantile": 0.2}}


def error(path, folder, *, changed=lambda plan: plan, **options):
    """Of the mean gradient over every draw of the completions of two groups; relative."""
    settings = dict(prompts=2, loss_type="dr_grpo", completion_prune_rate=0.5, prune_floor=0.1)
    _, trainer = dppo_run(path, folder, **settings | options)
    full, mean = full_and_mean(trainer, changed=changed)
    return relative_difference(mean, full)


@pytest.mark.parametrize("options", DRAWS.values(), ids=DRAWS)
def test_the_mean_over_every_draw_is_the_full_gradient(options, tiny_path, tmp_path):
    assert error(tiny_path, tmp_path, **options) < 1e-6


def test_forgotten_weights_are_caught(tiny_path, tmp_path):
    assert error(tiny_path, tmp_path, changed=unweighted) > 1e-2


def test_a_threshold_over_kept_tokens_is_caught(tiny_path, tmp_path, monkeypatch):
    right = ForwardPasses.with_policy_mask

    def of_kept(self, batch, calls):
        kept = batch.loss_mask * (batch.weight_UB[0] > 0)[:, None]
        return replace(batch, policy_mask=right(self, replace(batch, loss_mask=kept), calls).policy_mask)

    monkeypatch.setattr(ForwardPasses, "with_policy_mask", of_kept)
    assert error(tiny_path, tmp_path, **DRAWS["high entropies"]) > 1e-2


def test_metrics_of_a_pruned_run(tiny_path, tmp_path):
    _, trainer = dppo_run(tiny_path, tmp_path, max_steps=4, completion_prune_rate=0.5, prompt_prune_rate=0.5)
    assert logged(trainer, "prune/prompts_kept_share")[0] == 1.0  # no history in the first epoch
    assert logged(trainer, "prune/prompts_kept_share")[-1] == 0.5
    assert logged(trainer, "prune/prompts_with_history") == [0.0, 1.0, 1.0, 1.0]
    for kept, live in zip(logged(trainer, "prune/kept_share"), logged(trainer, "prune/live_share"), strict=True):
        assert 0 < kept <= live / 2 + 1 / 8
    assert all(w <= 5 + 1e-9 for w in logged(trainer, "prune/largest_prompt_weight"))


def test_fill_mode_keeps_rollouts_full(tiny_path, tmp_path):
    options = dict(prompts=16, per_device_train_batch_size=4 * GENERATIONS, max_steps=12, prompt_mode="fill")
    _, trainer = dppo_run(tiny_path, tmp_path, prompt_prune_rate=0.5, **options)
    assert set(logged(trainer, "prune/prompts_kept_share")[:4]) == {1.0}
    assert logged(trainer, "prune/prompts_kept_share")[-1] == 0.5  # 4 of 8 candidates
    assert trainer.session.source.stream.epoch >= 4  # 12 generations of 4 prompts would be 3 epochs


def test_passes_draw_anew(tiny_path, tmp_path):
    options = {"num_iterations": 2, "max_steps": 2, "completion_prune_rate": 0.5}
    _, trainer = dppo_run(tiny_path, tmp_path, **options)
    first, second = trainer.in_use.batch.weight_UB > 0
    assert first.sum() == second.sum() and not torch.equal(first, second)


def test_prompts_are_drawn_anew_for_each_step_of_a_generation(tiny_path, tmp_path, capsys):
    """So both steps are unbiased; passes over the same completions, and prompts that cannot be shared out, are not."""
    options = SHARES | {"per_device_train_batch_size": 4 * GENERATIONS}
    _, trainer = dppo_run(tiny_path, tmp_path, **options)
    plan = trainer.in_use.plan
    assert len(plan.prompts.row_Q) == 4 and torch.bincount(plan.prompts.part_Q).tolist() == [2, 2]
    assert torch.equal(plan.share_UN[1], plan.prompts.part_Q[plan.completions.group_N] == 1)
    assert trainer.biases == () and "gradient unbiased" in capsys.readouterr().out
    assert "unbiased: the full batch's" in trainer.card() and "Gradient: unbiased" in trainer.card()
    for biased in ({"num_iterations": 2}, {"per_device_train_batch_size": 2, "steps_per_generation": 4}):
        _, trainer = dppo_run(tiny_path, tmp_path, **options | biased)
        assert ["drawn once for several" in reason for reason in trainer.biases] == [True]


CYCLES = {
    "two generations": (3, dict(steps_per_generation=1, gradient_accumulation_steps=2)),
    "one and a half": (2, dict(steps_per_generation=2, gradient_accumulation_steps=3)),
    "two thirds": (3, dict(steps_per_generation=3, gradient_accumulation_steps=2)),
    "three quarters, twice": (2, dict(steps_per_generation=4, gradient_accumulation_steps=3, num_iterations=2)),
    "both passes": (3, dict(steps_per_generation=2, gradient_accumulation_steps=4, num_iterations=2)),
}
"""What an optimizer step takes of a generation, and prompts of a generation."""


@pytest.mark.parametrize(("groups", "cycle"), CYCLES.values(), ids=CYCLES)
def test_steps_of_parts_of_generations_equal_trl(groups, cycle, tiny_path, tmp_path):
    """Summed over an epoch of whole steps: TRL deals prompts and completions in another order."""
    prompts, calls, accumulated = 6, cycle["steps_per_generation"], cycle["gradient_accumulation_steps"]
    per_call, steps = groups * GENERATIONS // calls, prompts // groups * calls * cycle.get("num_iterations", 1)
    options = cycle | dict(prompts=prompts, per_device_train_batch_size=per_call, max_steps=steps // accumulated)
    options |= dict(loss_type="grpo", learning_rate=0.0)
    stock, _ = trl_run(tiny_path, tmp_path, **options)
    mine, trainer = dppo_run(tiny_path, tmp_path, completion_prune_rate=0.0, **options)
    assert len(mine) == len(stock) == steps / accumulated
    whole = [{name: sum(step[name] for step in steps) for name in steps[0]} for steps in (mine, stock)]
    assert relative_difference(*whole) < 1e-5
    # A step's part of a generation is as large as TRL's, and each completion is as likely to be in it.
    together = math.gcd(calls, accumulated)
    assert trainer.in_use.plan.share_UN.sum(1).unique().tolist() == [per_call * together]
