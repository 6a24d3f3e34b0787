"""A run that is killed in the middle of a step goes on from its checkpoint bit for bit."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from in_process import PRUNING, sized, trainer

from dppo.errors import CheckpointError

HERE = Path(__file__).parent


def run(toy, checkpoints, *killed_at):
    """What the run has written, if it is not killed."""
    command = [sys.executable, "resume_run.py", str(toy), str(checkpoints), *killed_at]
    ended = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=900)
    assert ended.returncode == (-signal.SIGKILL if killed_at else 0), ended.stderr[-2000:]
    return None if killed_at else torch.load(checkpoints / "found.pt")


def test_a_killed_run_asks_the_same_prompts_and_ends_with_the_same_parameters(toy, tmp_path):
    alone, checkpoints = run(toy, tmp_path / "alone"), tmp_path / "killed"
    run(toy, checkpoints, "5")
    resumed = run(toy, checkpoints)
    assert resumed["first"] == 5 and min(alone["kept"]) < 1  # prompts were pruned: the history matters
    assert resumed["asked"] == [(step, prompt) for step, prompt in alone["asked"] if step >= 5]
    assert torch.equal(resumed["parameters"], alone["parameters"])

    # wrong: with verl's own state alone prompts start over, and nothing is known of them
    for name in ("dppo_state.json", "dppo_history.npz"):
        (checkpoints / "global_step_4" / name).unlink()
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("4")
    other = run(toy, checkpoints)
    assert other["first"] == 5 and not torch.equal(other["parameters"], alone["parameters"])


def test_settings_that_changed_are_said_and_a_damaged_state_is_refused(toy, tmp_path):
    options = (*sized(4, 2), f"trainer.default_local_dir={tmp_path}", "trainer.resume_mode=auto")
    made = trainer(toy, "dynamic_pruning", *options)
    made.source.block(made.method, 1, generations=2)
    made._save_checkpoint()
    path = tmp_path / "global_step_1" / "dppo_state.json"
    assert json.loads(path.read_text())["session"]["source"]["offset"] == 4
    with pytest.warns(UserWarning, match="completion_prune_rate: 'auto' -> 0.25"):
        again = trainer(toy, "dynamic_pruning", *options, f"{PRUNING}.completion_prune_rate=0.25")
    assert again.source.stream.offset == 4 and again.global_steps == 2
    path.write_text(path.read_text()[:-20])
    with pytest.raises(CheckpointError, match=r"is damaged.*trainer\.resume_from_path"):
        trainer(toy, "dynamic_pruning", *options)
