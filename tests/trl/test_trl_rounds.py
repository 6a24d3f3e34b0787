"""Rounds of rollouts in TRL training: the step is stock TRL's on the groups that were retained, and runs survive."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from resumed_runs import STEPS
from round_runs import retained, rounds_run, stock
from safetensors.torch import load_file
from tiny_runs import GENERATIONS, ON_CPU, first_half_reward, length_reward, logged, relative_difference
from trl_gradients import TOLERANCE, dppo_run

from dppo.errors import RoundsError
from dppo.step import PromptSource

DAPO = dict(method="dapo", loss_type="dapo", accept_bias=True)
WANTED = 3


def run(path, tmp_path, **options):
    """A run on 10 prompts, of which the first four have groups of differing rewards, in steps of three."""
    settings = dict(reward=first_half_reward, prompts=10, per_device_train_batch_size=WANTED * GENERATIONS)
    return dppo_run(path, tmp_path, **{**settings, **DAPO, **options})


@pytest.mark.parametrize(
    "options",
    [{}, {"beta": 0.2}, {"num_iterations": 2, "max_steps": 2, "learning_rate": 0.5}],
    ids=["plain", "kl", "two passes"],
)
def test_a_step_is_stock_trl_on_the_groups_retained(options, tiny_path, tmp_path, monkeypatch):
    mine, trainer = run(tiny_path, tmp_path, **options)
    rows = retained(trainer)
    assert len(rows) == WANTED and set(rows) <= {0, 1, 2, 3}
    assert logged(trainer, "rollout/rounds")[0] >= 2, "the case has several rounds"
    wanted = stock(tiny_path, tmp_path, monkeypatch, rows, loss_type="dapo", **options)
    assert max(relative_difference(a, b) for a, b in zip(mine, wanted, strict=True)) < TOLERANCE


def test_a_denominator_that_counts_every_group_is_caught(tiny_path, tmp_path, monkeypatch):
    """The wrong version: all groups rolled out stay in at weight 1."""
    right, trainer = run(tiny_path, tmp_path)
    rows, original = retained(trainer), PromptSource.rounds

    def everything(*args, **options):
        prompts = original(*args, **options)
        weight_Q = torch.ones_like(prompts.weight_Q)
        return replace(prompts, weight_Q=weight_Q, sequences=len(weight_Q) * GENERATIONS)

    monkeypatch.setattr(PromptSource, "rounds", everything)
    wrong, _ = run(tiny_path, tmp_path)
    monkeypatch.undo()
    wanted = stock(tiny_path, tmp_path, monkeypatch, rows, loss_type="dapo")
    assert relative_difference(right[0], wanted[0]) < TOLERANCE < 0.1 < relative_difference(wrong[0], wanted[0])


def test_metrics_of_rounds_are_logged(tiny_path, tmp_path):
    _, trainer = run(tiny_path, tmp_path, max_steps=3)
    rounds, groups = logged(trainer, "rollout/rounds"), logged(trainer, "rollout/groups")
    assert groups == [WANTED * r for r in rounds]
    unused = logged(trainer, "rollout/groups_unused")
    assert unused == pytest.approx([1 - WANTED / g for g in groups])
    surplus = logged(trainer, "rollout/groups_surplus")
    zero = logged(trainer, "rollout/zero_variance_groups")
    assert [z + s for z, s in zip(zero, surplus, strict=True)] == pytest.approx(unused)
    assert trainer.session.source.stream.epochs == pytest.approx(sum(groups) / 10)


# Errors and checkpoints.


@pytest.mark.skipif(not ON_CPU, reason="another device samples other completions, which may suffice elsewhere")
def test_a_run_that_reaches_the_limit_is_saved_before_it_stops(tiny_path, tmp_path):
    def flat_from_step_4(prompts, completions, trainer_state, **_):
        rewards = length_reward(prompts, completions)
        return [1.0 if trainer_state.global_step >= 4 else reward for reward in rewards]

    seen, options = [], {"save_steps": 100, "max_rounds": 2}
    stuck = rounds_run(tiny_path, tmp_path, seen, reward=flat_from_step_4, **options)
    with refused(RoundsError, "step 4", "2 rounds", "0 of 6", "checkpoint-4") as stop:
        stuck.train()
    assert "max_rounds: 4" in str(stop.value)
    failed = seen[-2:]
    folder = tmp_path / "checkpoint-4"
    saved = load_file(folder / "model.safetensors")
    assert all(torch.equal(saved[n], p) for n, p in stuck.model.state_dict().items() if n in saved)
    again = []
    resumed = rounds_run(tiny_path, tmp_path, again, reward=length_reward, max_rounds=0)
    with pytest.warns(UserWarning, match="max_rounds: 2 -> 0"):
        resumed.train(resume_from_checkpoint=str(folder))
    assert resumed.state.global_step == STEPS and again[0] == failed[0], "the same prompts are asked again"


def test_without_checkpoints_the_error_says_that_nothing_was_saved(tiny_path, tmp_path):
    def constant(prompts, completions, **_):
        return [1.0] * len(prompts)

    with refused(RoundsError, "step 0", "10 rounds", "0 of 30"):
        run(tiny_path, tmp_path, reward=constant)
