"""Checkpoints that lack something, are damaged, or cannot be written: a clear error, and never another run unsaid."""

import json
import os
import resource
import shutil
from pathlib import Path

import pytest
import torch
from refusals import refused, warned
from test_trl_resume import trainer, weights

from dppo.errors import CheckpointError
from dppo.trl.checkpoints import files as checkpoint_files
from dppo.trl.checkpoints import hooks as checkpoint_hooks
from dppo.trl.checkpoints.files import LIST_FILE, check_whole, latest_checkpoint


@pytest.fixture(scope="module")
def straight(tiny_path, tmp_path_factory):
    """A run left alone, and its checkpoints."""
    folder = tmp_path_factory.mktemp("straight")
    trainer(tiny_path, folder, seen=[]).train()
    return folder


@pytest.fixture
def run(straight, tmp_path):
    """Its first checkpoints, in a folder of their own."""
    for step in (2, 3):
        shutil.copytree(straight / f"checkpoint-{step}", tmp_path / f"checkpoint-{step}")
    return tmp_path


def resumed(path, run, **options):
    made = trainer(path, run, seen=[], **options)
    made.train(resume_from_checkpoint=str(run / "checkpoint-3"))
    return made


BINARY = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "dppo_history.npz")
NAMES = (*BINARY, "dppo_state.json")


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named_with_an_older_checkpoint(name, run):
    (run / "checkpoint-3" / name).unlink()
    with refused(CheckpointError, "checkpoint-3", name, "checkpoint-2", "accept_missing"):
        check_whole(run / "checkpoint-3")


@pytest.mark.parametrize("name", NAMES)
def test_without_a_list_of_files_half_a_file_is_an_error_too(name, tiny_path, run):
    """As in checkpoints of earlier versions, and of TRL's own trainer."""
    path = run / "checkpoint-3" / name
    os.truncate(path, path.stat().st_size // 2)
    (run / "checkpoint-3" / LIST_FILE).unlink()
    with refused(CheckpointError, "checkpoint-3", "Resume from"):
        resumed(tiny_path, run)


def test_what_is_missing_can_be_accepted_and_the_run_is_another(tiny_path, straight, run):
    (run / "checkpoint-3" / "optimizer.pt").unlink()
    with warned("optimizer.pt"):
        resumed(tiny_path, run, accept_missing=True)
    ours, theirs = weights(run), weights(straight)
    assert any(not torch.equal(ours[name], theirs[name]) for name in ours), "what went unsaid before"


def said(caught):
    return [str(each.message) for each in caught if "resumed with" in str(each.message)]


def test_settings_that_changed_are_said_with_what_they_do(tiny_path, run):
    changes = {"learning_rate": 1e-4, "temperature": 0.5, "beta": 0.1, "epsilon": 0.3, "max_completion_length": 6}
    with pytest.warns(UserWarning) as caught:
        made = resumed(tiny_path, run, scale_rewards="none", **changes)
    found = {line.split()[2].rstrip(":"): line for line in said(caught)}
    assert found.keys() == {*changes, "scale_rewards"}
    assert found["learning_rate"] == (
        "resumed with learning_rate: 0.01 -> 0.0001; ignored: the optimizer goes on with the checkpoint's"
    )
    assert found["temperature"] == "resumed with temperature: 1.0 -> 0.5; it holds from here"
    assert made.optimizer.param_groups[0]["initial_lr"] == 1e-2, "as it says"
    assert made.temperature == 0.5


def test_the_newest_complete_one_is_resumed(tiny_path, straight, run):
    (run / "checkpoint-4").mkdir()
    trainer(tiny_path, run, seen=[]).train(resume_from_checkpoint=True)
    ours, theirs = weights(run), weights(straight)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        trainer(tiny_path, run / "nothing", seen=[]).train(resume_from_checkpoint=True)


def test_older_checkpoints_go_when_the_new_one_is_on_the_disk(tiny_path, tmp_path, monkeypatch):
    """Power may go at any moment: files first, then their list, then the names, and only then the older one."""
    done, flush, rotate = [], os.fsync, checkpoint_hooks.rotate_checkpoints

    def flushed(descriptor):
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        flush(descriptor)

    def rotated(*args, **kwargs):
        done.append("rotated")
        rotate(*args, **kwargs)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(checkpoint_hooks, "rotate_checkpoints", rotated)
    trainer(tiny_path, tmp_path, seen=[], max_steps=2, save_total_limit=1).train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
    folder, last = tmp_path / "checkpoint-2", done[done.index("rotated") + 1 :]
    before = last[: last.index("rotated")]
    files = {path for path in folder.rglob("*") if path.is_file() and path.name != LIST_FILE}
    place = next(i for i, path in enumerate(before) if isinstance(path, Path) and LIST_FILE in path.name)
    assert files <= set(before[:place]), "all files are on the disk before they are listed"
    assert {folder, tmp_path} <= set(before[place:]), "and their names before an older one goes"
    assert {*json.loads((folder / LIST_FILE).read_text())["files"]} == {path.name for path in files}


def test_a_second_try_at_a_step_is_not_complete_before_its_end(run):
    """Files of equal length, half of them new: the list of the first try would call them whole."""
    checkpoint_files.begin(run / "checkpoint-3")
    assert latest_checkpoint(run) == run / "checkpoint-2" and not (run / "checkpoint-3" / LIST_FILE).exists()


def test_one_that_was_never_sealed_is_passed_over(run):
    """Killed, or out of power, after transformers had written its state and before all was on the disk."""
    (run / "checkpoint-3" / LIST_FILE).unlink()
    assert latest_checkpoint(run) == run / "checkpoint-2"
    state = json.loads((run / "checkpoint-3" / "dppo_state.json").read_text())
    del state["listed"]
    (run / "checkpoint-3" / "dppo_state.json").write_text(json.dumps(state))
    assert latest_checkpoint(run) == run / "checkpoint-3", "versions before this one had no list"


def test_a_full_disk_names_the_checkpoint_before(tiny_path, tmp_path):
    """The kernel refuses a byte beyond the limit, as it does where there is no room."""
    made = trainer(tiny_path, tmp_path, seen=[], max_steps=2)
    save, (soft, hard) = made._save_checkpoint, resource.getrlimit(resource.RLIMIT_FSIZE)

    def saving(*args):
        if made.state.global_step == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        try:
            save(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    made._save_checkpoint = saving
    with refused(CheckpointError, "checkpoint-2", "free space", "checkpoint-1"):
        made.train()
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-1"
