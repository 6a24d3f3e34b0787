"""GRESO in TRL training: prompts that gave nothing are skipped, a step is stock TRL's, a resumed run is the same."""

import contextlib
import json

import pytest
from refusals import refused, warned
from round_runs import retained, rounds_run, stock
from tiny_runs import GENERATIONS, alike, length_reward, logged, relative_difference
from trl_gradients import TOLERANCE, dppo_run

from dppo.errors import CheckpointError

GRESO = dict(method="greso", loss_type="grpo", accept_bias=True)
WANTED = 3


def graded(prompts, completions, answer, **_):
    """Groups that differ for the first four problems, all right for even ones of the others, all wrong for odd ones."""
    rewards = [reward / 2 for reward in length_reward(prompts, completions)]
    return [r if int(n) < 4 else float(int(n) % 2 == 0) for r, n in zip(rewards, answer, strict=True)]


def run(path, tmp_path, **options):
    settings = dict(reward=graded, prompts=10, per_device_train_batch_size=WANTED * GENERATIONS)
    return dppo_run(path, tmp_path, **{**settings, **GRESO, **options})


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_a_step_is_stock_trl_on_the_groups_retained(loss_type, tiny_path, tmp_path, monkeypatch):
    mine, trainer = run(tiny_path, tmp_path, loss_type=loss_type)
    rows = retained(trainer)
    assert set(rows) <= {0, 1, 2, 3} and len(trainer.in_use.plan.prompts.row_Q) > len(rows)
    wanted = stock(tiny_path, tmp_path, monkeypatch, rows, loss_type=loss_type, reward=graded)
    assert relative_difference(mine[0], wanted[0]) < TOLERANCE


def test_what_was_learned_is_resumed(tiny_path, tmp_path):
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
        state["session"]["source"]["learned"] = learned
        file.write_text(json.dumps(state))
        with warned("dppo_state.json"), told:
            assert resumed("c", []) != first.session.source.learned


def test_a_step_that_lacks_groups_goes_on_with_what_there_is(tiny_path, tmp_path):
    def one_problem(prompts, completions, answer, **_):
        rewards = length_reward(prompts, completions)
        return [r if int(n) == 3 else 0.0 for r, n in zip(rewards, answer, strict=True)]

    _, trainer = run(tiny_path, tmp_path, reward=one_problem, max_rounds=2, shuffle_dataset=False)
    assert retained(trainer) == [3] and float(trainer.in_use.batch.denominator) == GENERATIONS
