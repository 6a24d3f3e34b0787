"""Rounds of rollouts in TRL training, by DAPO and GRESO: a step is TRL's on the retained groups, and runs survive."""

import contextlib
import json
from dataclasses import replace

import pytest
import torch
import trl_gradients
from refusals import refused, warned
from resumed_runs import ROUNDS, STEPS, trainer
from safetensors.torch import load_file
from tiny_runs import (
    GENERATIONS,
    ON_CPU,
    alike,
    first_half_reward,
    length_reward,
    logged,
    problems,
    relative_difference,
)
from trl_gradients import TOLERANCE, constant, dppo_run, trl_run

from dppo.errors import CheckpointError, RoundsError
from dppo.files import sealed
from dppo.step import PromptSource

DAPO = dict(method="dapo", loss_type="dapo", accept_bias=True)
GRESO = dict(method="greso", loss_type="grpo", accept_bias=True)
WANTED = 3


def retained(trainer):
    """Dataset rows of the groups that the last step was made of."""
    prompts = trainer.in_use.plan.prompts
    return prompts.row_Q[prompts.weight_Q > 0].tolist()


def stock(path, tmp_path, monkeypatch, rows, **options):
    """TRL itself, on these rows of the same dataset and nothing else."""
    monkeypatch.setattr(trl_gradients, "problems", lambda _: problems(10).select(rows))
    reward = options.pop("reward", first_half_reward)
    steps, _ = trl_run(path, tmp_path, prompts=len(rows), reward=reward, shuffle_dataset=False, **options)
    monkeypatch.undo()
    return steps


def rounds_run(path, folder, seen, **options):
    """A run whose prompts decide which groups have zero variance."""
    return trainer(path, folder, seen=seen, **ROUNDS | options)


def run(path, tmp_path, **options):
    """A run on 10 prompts, of which the first four have groups of differing rewards, in steps of three."""
    settings = dict(reward=first_half_reward, prompts=10, per_device_train_batch_size=WANTED * GENERATIONS)
    return dppo_run(path, tmp_path, **{**settings, **DAPO, **options})


def graded(prompts, completions, answer, **_):
    """Groups that differ for the first four problems, all right for even ones of the others, all wrong for odd ones."""
    rewards = [reward / 2 for reward in length_reward(prompts, completions)]
    return [r if int(n) < 4 else float(int(n) % 2 == 0) for r, n in zip(rewards, answer, strict=True)]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (DAPO, {}),
        (DAPO, {"beta": 0.2}),
        (DAPO, {"num_iterations": 2, "max_steps": 2, "learning_rate": 0.5}),
        (GRESO, {"reward": graded}),
        (GRESO, {"reward": graded, "loss_type": "dapo"}),
    ],
)
def test_a_step_is_stock_trl_on_the_groups_retained(method, options, tiny_path, tmp_path, monkeypatch):
    mine, trainer = run(tiny_path, tmp_path, **method | options)
    rows = retained(trainer)
    assert set(rows) <= {0, 1, 2, 3} and len(trainer.in_use.plan.prompts.row_Q) > len(rows)
    assert method is GRESO or (len(rows) == WANTED and logged(trainer, "rollout/rounds")[0] >= 2)
    wanted = stock(tiny_path, tmp_path, monkeypatch, rows, **{"loss_type": method["loss_type"]} | options)
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
    with refused(RoundsError, "step 0", "10 rounds", "0 of 30"):
        run(tiny_path, tmp_path, reward=constant)


def test_what_greso_learned_is_resumed(tiny_path, tmp_path):
    """The wrong twin has lost it, and its exploration starts anew."""
    straight, after = [], []
    first = rounds_run(tiny_path, tmp_path / "a", straight, **GRESO)
    first.train()
    assert logged(first, "prune/prompts_kept_share")[-1] < 1 and logged(first, "prune/explore_hard")[-1] != 0.5

    def resumed(name, seen):
        made = rounds_run(tiny_path, tmp_path / name, seen, **GRESO)
        made.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-5"))
        return made.session.source.learned

    assert resumed("b", after) == first.session.source.learned
    assert straight[-len(after) :] == after and alike(tmp_path / "a", tmp_path / "b")

    file = tmp_path / "a" / "checkpoint-5" / "dppo_state.json"
    state = json.loads(file.read_text())
    assert state["session"]["source"]["learned"]["hard"] != 0.5
    for learned, told in ((None, contextlib.nullcontext()), ({"wrong": 1}, refused(CheckpointError, "damaged"))):
        session = {name: value for name, value in state["session"].items() if name != "checksum"}
        session["source"]["learned"] = learned
        state["session"] = sealed(session)
        file.write_text(json.dumps(state))
        with warned("dppo_state.json"), told:
            assert resumed("c", []) != first.session.source.learned


def test_a_step_that_lacks_groups_goes_on_with_what_there_is(tiny_path, tmp_path):
    def one_problem(prompts, completions, answer, **_):
        rewards = length_reward(prompts, completions)
        return [r if int(n) == 3 else 0.0 for r, n in zip(rewards, answer, strict=True)]

    options = GRESO | {"reward": one_problem, "max_rounds": 2, "shuffle_dataset": False}
    _, made = run(tiny_path, tmp_path, **options)
    assert retained(made) == [3] and made.in_use.batch.sizes.denominator == GENERATIONS
