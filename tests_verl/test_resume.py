"""A run that is killed in the middle of a step goes on from its checkpoint bit for bit."""

import json
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from in_process import PRUNING, sized, trainer

from dppo.errors import CheckpointError

HERE = Path(__file__).parent


def run(toy, checkpoints, out, killed_at=None, steps=6):
    command = [sys.executable, "resume_run.py", str(toy), str(checkpoints), str(steps), str(out)]
    command += [] if killed_at is None else [str(killed_at)]
    ended = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=900)
    assert ended.returncode == (0 if killed_at is None else -signal.SIGKILL), ended.stderr[-2000:]
    return None if killed_at else torch.load(out)


@pytest.fixture(scope="module")
def ended(toy, tmp_path_factory):
    """A run that was left alone, and one that was killed in step 5 and resumed from step 4."""
    folder = tmp_path_factory.mktemp("resume")
    alone = run(toy, folder / "alone", folder / "alone.pt")
    run(toy, folder / "killed", folder / "killed.pt", killed_at=5)
    return alone, run(toy, folder / "killed", folder / "killed.pt"), folder / "killed"


def test_a_killed_run_asks_the_same_prompts_and_ends_with_the_same_parameters(ended):
    alone, resumed, _ = ended
    assert resumed["first"] == 5 and min(alone["kept"]) < 1  # prompts were pruned: the history matters
    assert resumed["asked"] == [(step, prompt) for step, prompt in alone["asked"] if step >= 5]
    assert torch.equal(resumed["parameters"], alone["parameters"])


def test_without_our_part_the_resumed_run_is_another_one(ended, toy, tmp_path):
    """The comparison above can fail: with verl's own state alone, prompts start over and nothing is known of them."""
    alone, _, checkpoints = ended
    for name in ("dppo_state.json", "dppo_history.npz"):
        (checkpoints / "global_step_4" / name).unlink()
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("4")
    other = run(toy, checkpoints, tmp_path / "other.pt")
    assert other["first"] == 5 and not torch.equal(other["parameters"], alone["parameters"])


def options(folder, *others):
    return (*sized(4, 2), f"trainer.default_local_dir={folder}", "trainer.resume_mode=auto", *others)


def test_settings_that_changed_are_said_and_a_damaged_state_is_refused(toy, tmp_path):
    made = trainer(toy, "dynamic_pruning", *options(tmp_path))
    made.source.block(made.method, 1, generations=2)
    made._save_checkpoint()
    path = tmp_path / "global_step_1" / "dppo_state.json"
    assert json.loads(path.read_text())["session"]["source"]["offset"] == 4
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = trainer(toy, "dynamic_pruning", *options(tmp_path, f"{PRUNING}.completion_prune_rate=0.25"))
    assert again.source.stream.offset == 4 and again.global_steps == 2
    assert any("completion_prune_rate: 'auto' -> 0.25" in str(each.message) for each in caught)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(CheckpointError, match=r"is damaged.*trainer\.resume_from_path"):
        trainer(toy, "dynamic_pruning", *options(tmp_path))
