"""Checkpoints that lack something, are damaged, or cannot be written: a clear error, and never another run unsaid."""

import json
import os
import resource
import shutil
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import dpo_runs
import pytest
import sft_runs
import torch
from accelerate import PartialState
from datasets import concatenate_datasets
from refusals import refused, warned
from resumed_runs import trainer
from sft_runs import ours, solutions
from tiny_runs import alike, logged, problems

from dppo.errors import CheckpointError
from dppo.rewards import identities
from dppo.trl import loop
from dppo.trl.checkpoints import files as checkpoint_files
from dppo.trl.checkpoints.files import EDITED, LIST_FILE, MISSING, find_faults, latest_checkpoint, refuse
from dppo.trl.checkpoints.resume import REFERENCE
from dppo.trl.grpo.prompts import content_of


@pytest.fixture(scope="module")
def straight(tiny_path, tmp_path_factory):
    """A run left alone, and its checkpoints."""
    folder = tmp_path_factory.mktemp("straight")
    trainer(tiny_path, folder).train()
    return folder


@pytest.fixture
def run(straight, tmp_path):
    """Its first checkpoints, in a folder of their own."""
    for step in (2, 3):
        shutil.copytree(straight / f"checkpoint-{step}", tmp_path / f"checkpoint-{step}")
    return tmp_path


def check(folder, **accepted):
    """The faults of a checkpoint, or its refusal."""
    refuse(folder, faults := find_faults(folder), **accepted)
    return faults


def damage(path):
    """Other bytes at the same length; a second time, the old ones."""
    content = bytearray(path.read_bytes())
    middle = slice(len(content) // 2, len(content) // 2 + 4096)
    content[middle] = bytes(byte ^ 255 for byte in content[middle])
    path.write_bytes(content)


def resumed(path, run, **options):
    made = trainer(path, run, **options)
    made.train(resume_from_checkpoint=str(run / "checkpoint-3"))
    return made


BINARY = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "dppo_history.npz")
NAMES = (*BINARY, "dppo_state.json")


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_or_missing_file_is_named_with_a_checkpoint_that_is_whole(name, run):
    newest, older = run / "checkpoint-3", run / "checkpoint-2"
    assert check(newest) == {}
    if name in BINARY:  # damage leaves its size
        damage(newest / name)
        with refused(CheckpointError, newest, name, "damaged", f"Resume from {older}"):
            check(newest, accept_missing=True)
    (newest / name).unlink()
    accept = () if name == BINARY[0] else ("accept_missing",)
    with refused(CheckpointError, newest, name, f"Resume from {older}", *accept):
        check(newest)
    if accept:
        assert MISSING in check(newest, accept_missing=True).values()
        damage(older / BINARY[0])
        with refused(CheckpointError, newest, name, "no other whole checkpoint"):
            check(newest)
    else:
        with refused(CheckpointError, name):
            check(newest, accept_missing=True)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_list_of_files_half_a_file_is_an_error_too(name, tiny_path, run):
    """As in those of TRL's own trainer."""
    path = run / "checkpoint-3" / name
    os.truncate(path, 8 if path.suffix == ".json" else path.stat().st_size // 2)  # of text always in the same word
    (run / "checkpoint-3" / LIST_FILE).unlink()
    with refused(CheckpointError, "checkpoint-3", "Resume from"):
        resumed(tiny_path, run)


@pytest.mark.parametrize("make", [partial(trainer, beta=0.1), dpo_runs.ours], ids=["grpo", "dpo"])
def test_a_reference_that_follows_goes_on(make, tiny_path, tmp_path):
    moving = dict(sync_ref_model=True, ref_model_sync_steps=1, max_steps=3, save_strategy="steps", save_steps=2)
    whole, again = (make(tiny_path, tmp_path / folder, **moving) for folder in ("a", "b"))
    for parameter in whole.ref_model.parameters():  # a view, as some versions of transformers load them
        parameter.data = torch.stack([parameter.data, parameter.data], dim=-1)[..., 0]
    whole.train()
    checkpoint = tmp_path / "a" / "checkpoint-2"
    again.train(resume_from_checkpoint=str(checkpoint))
    for model in ("model", "ref_model"):
        assert all(map(torch.equal, getattr(whole, model).parameters(), getattr(again, model).parameters())), model
    (checkpoint / REFERENCE).unlink()
    with refused(CheckpointError, "sync_ref_model", "accept_missing=True"):
        again.train(resume_from_checkpoint=str(checkpoint))
    again.args.accept_missing = True
    with warned("sync_ref_model has moved", " is another run"):
        again.train(resume_from_checkpoint=str(checkpoint))


def test_checkpoints_of_the_model_alone_do_not_send_to_each_other(tiny_path, tmp_path):
    """The wrong twin looks at checksums alone, and so each of them names the other as the one to resume from."""
    trainer(tiny_path, tmp_path, max_steps=2, save_only_model=True).train()
    for step in (1, 2):
        with refused(CheckpointError, "save_only_model: true", "optimizer.pt", "no other whole") as info:
            check(tmp_path / f"checkpoint-{step}")
        assert "Resume from" not in str(info.value)
    with warned("optimizer.pt"):
        made = trainer(tiny_path, tmp_path, max_steps=3, accept_missing=True)
        made.train(resume_from_checkpoint=True)
    assert made.state.global_step == 3
    with refused(CheckpointError, "checkpoint-3"):  # which has all its parts
        check(tmp_path / "checkpoint-2")


@pytest.mark.parametrize("text", ["{", "{}", '{"files": {"model.safetensors": 5}}', '{"files": []}'])
def test_a_list_that_is_damaged_or_of_another_version_is_named(text, run):
    (run / "checkpoint-3" / LIST_FILE).write_text(text)
    with refused(CheckpointError, "checkpoint-3", LIST_FILE, "checkpoint-2"):
        check(run / "checkpoint-3", accept_missing=True)


def test_a_resume_checks_contents_and_says_what_was_edited(tiny_path, run):
    damage(run / "checkpoint-3" / "optimizer.pt")
    with refused(CheckpointError, "optimizer.pt", "checkpoint-2"):
        resumed(tiny_path, run)
    damage(run / "checkpoint-3" / "optimizer.pt")
    state = run / "checkpoint-3" / "trainer_state.json"
    text = state.read_text()
    state.write_text(text[:-9])
    with refused(CheckpointError, "trainer_state.json", "checkpoint-2"):
        resumed(tiny_path, run)
    state.write_text(text + " ")
    assert check(run / "checkpoint-3") == {"trainer_state.json": EDITED}
    with pytest.warns(UserWarning, match=r"checkpoint-3: trainer_state\.json changed .*checkpoint-2"):
        resumed(tiny_path, run)


def test_each_file_is_read_by_one_of_those_that_share_the_work(run, monkeypatch):
    read, measured = [], checkpoint_files.measured
    monkeypatch.setattr(checkpoint_files, "measured", lambda path: read.append(path.name) or measured(path))
    for reader in range(3):
        find_faults(run / "checkpoint-3", reader=reader, readers=3)
    assert sorted(read) == sorted(path.name for path in (run / "checkpoint-3").iterdir() if path.name != LIST_FILE)


def test_the_state_of_another_optimizer_is_refused(tiny_path, run):
    """It loaded, and failed in the first step with a KeyError."""
    with refused(CheckpointError, "optim='sgd'", "momentum", "adamw_torch", "optimizer.pt", "accept_missing"):
        resumed(tiny_path, run, optim="sgd")
    (run / "checkpoint-3" / "optimizer.pt").unlink()
    with warned("optimizer.pt"):
        assert resumed(tiny_path, run, optim="sgd", accept_missing=True).state.global_step == 8


HALVES = partial(trainer, steps_per_generation=2, per_device_train_batch_size=8)
LACKING = {
    "generation": (HALVES, "dppo_batch_0.safetensors"),
    "history": (HALVES, "dppo_history.npz"),
    "sft": (sft_runs.ours, "dppo_rows.npz"),
    "dpo": (dpo_runs.ours, "dppo_rows.npz"),
}


@pytest.mark.parametrize(("make", "name"), LACKING.values(), ids=LACKING)
def test_a_run_counts_its_tokens_on_and_without_a_file_goes_on_where_that_is_accepted(make, name, tiny_path, tmp_path):
    """The wrong twin offers ``accept_missing`` and then cannot read the file."""
    saving = dict(max_steps=5, save_strategy="steps", save_steps=1)
    whole, again, accepts = (
        make(tiny_path, tmp_path / folder, accept_missing=folder == "c", **saving) for folder in ("a", "b", "c")
    )
    whole.train()
    checkpoint = tmp_path / "a" / "checkpoint-3"
    again.train(resume_from_checkpoint=str(checkpoint))
    assert logged(again, "num_tokens")[-1] == logged(whole, "num_tokens")[-1]
    (checkpoint / name).unlink()
    with warned(f"lacks {name}"):
        accepts.train(resume_from_checkpoint=str(checkpoint))
    assert accepts.state.global_step == 5


def said(caught):
    return [str(each.message) for each in caught if "resumed with" in str(each.message)]


def test_everything_that_changed_is_said_with_what_it_does(tiny_path, run, tmp_path_factory):
    """Fields of TRL and ours, the reward function, the rows, and the model, whose folder has another name."""
    other = shutil.copytree(tiny_path, tmp_path_factory.mktemp("other") / "model")
    changes = {"learning_rate": 1e-4, "temperature": 0.5, "beta": 0.1, "epsilon": 0.3, "max_completion_length": 6}
    changes |= {"off_policy_mask_threshold": 2.0, "use_bias_correction_kl": False, "generation_kwargs": {"top_k": 5}}
    named = lambda prompts, completions, **_: [float(len(text)) for text in completions]  # noqa: E731
    with pytest.warns(UserWarning) as caught:
        made = resumed(str(other), run, prompts=9, reward=named, scale_rewards="none", logging_steps=3, **changes)
    found = {line.split()[2].rstrip(":"): line for line in said(caught)}
    assert found.keys() == {*changes, "scale_rewards", "model", "dataset", "reward_funcs"}, "and not logging_steps"
    assert "0.01 -> 0.0001; ignored" in found["learning_rate"] and "1.0 -> 0.5; it holds" in found["temperature"]
    assert "trained weights are the checkpoint's" in found["model"] and "'<lambda>'" in found["reward_funcs"]
    assert made.optimizer.param_groups[0]["initial_lr"] == 1e-2, "as it says"
    assert made.temperature == 0.5


@pytest.mark.parametrize("kind", [sft_runs, dpo_runs], ids=["sft", "dpo"])
def test_trainers_on_rows_say_what_changed(kind, tiny_path, tmp_path):
    saving = dict(max_steps=2, save_strategy="steps", save_steps=1)
    first = kind.ours(tiny_path, tmp_path / "a", **saving)
    first.train()
    other = shutil.copytree(tiny_path, tmp_path / "model")
    data = {sft_runs: solutions, dpo_runs: dpo_runs.pairs}[kind](10).select([*range(1, 10), 0])
    made = kind.ours(str(other), tmp_path / "b", data=data, max_length=9, max_grad_norm=0.5, **saving)
    with pytest.warns(UserWarning) as caught:
        made.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    names = {line.split()[2].rstrip(":") for line in said(caught)}
    assert {"max_length", "max_grad_norm", "model", "dataset"} <= names <= {"ref_model"} | names


def test_a_fingerprint_is_of_content_in_its_order():
    data = problems(6)
    changed = data.map(lambda row: {"answer": "7" if row["answer"] == "5" else row["answer"]})
    again = concatenate_datasets([data, data]).select(range(6, 12))
    others = data.select(range(6)[::-1]), data.select(range(5)), changed
    wanted, same, *differing = (content_of(each, identities(each["prompt"])) for each in (data, again, *others))
    assert same == wanted and len({wanted, *differing}) == 4


@pytest.mark.parametrize(("asked", "field"), [(True, None), (None, "true"), (None, "checkpoint-3")])
def test_the_newest_complete_one_is_resumed_and_others_are_said(asked, field, tiny_path, straight, run):
    """By ``train`` or by the field, which TRL's trainer leaves to scripts: before, the run started at step 1."""
    shutil.copytree(run / "checkpoint-3", run / "checkpoint-4")
    (run / "checkpoint-4" / "trainer_state.json").unlink()
    path = field if field in (None, "true") else str(run / field)
    made = trainer(tiny_path, run, resume_from_checkpoint=path)
    with pytest.warns(UserWarning, match="checkpoint-4 is passed over"):
        made.train(resume_from_checkpoint=asked)
    assert made.last_checkpoint and len(made.state.log_history) > 8
    assert alike(run, straight)


def test_a_checkpoint_that_is_not_there_is_refused(tiny_path, run):
    made = trainer(tiny_path, run / "nothing", resume_from_checkpoint=str(run / "checkpoint-7"))
    for asked, named in ((True, "no complete checkpoint"), (None, "checkpoint-7 cannot be resumed")):
        with refused(CheckpointError, named):
            made.train(resume_from_checkpoint=asked)


def test_older_checkpoints_go_when_the_new_one_is_on_the_disk(tiny_path, tmp_path, monkeypatch):
    """Power may go at any moment: files first, then their list, then the names, and only then the older one."""
    done, flush, rotate = [], os.fsync, loop.rotate_checkpoints

    def flushed(descriptor):
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        flush(descriptor)

    def rotated(*args, **given):
        done.append("rotated")
        rotate(*args, **given)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(loop, "rotate_checkpoints", rotated)
    trainer(tiny_path, tmp_path, max_steps=2, save_total_limit=1).train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
    folder, last = tmp_path / "checkpoint-2", done[done.index("rotated") + 1 :]
    before = last[: last.index("rotated")]
    files = {path for path in folder.rglob("*") if path.is_file() and path.name != LIST_FILE}
    place = next(i for i, path in enumerate(before) if isinstance(path, Path) and LIST_FILE in path.name)
    assert files <= set(before[:place]), "all files are on the disk before they are listed"
    assert {folder, tmp_path} <= set(before[place:]), "and their names before an older one goes"
    assert {*json.loads((folder / LIST_FILE).read_text())["files"]} == {path.name for path in files}


def test_a_checkpoint_is_complete_only_at_its_end_in_a_second_try_too(tiny_path, tmp_path, monkeypatch):
    """Files of equal length, half of them new: with the list of the first try it is complete."""
    made = trainer(tiny_path, tmp_path, max_steps=2)
    folder = tmp_path / "checkpoint-2"
    before = tmp_path / "checkpoint-1"
    made.train()
    save = partial(made._save_checkpoint, made.model, None)
    assert latest_checkpoint(tmp_path) == folder and not find_faults(folder)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "seal", lambda folder: None)  # the run is killed just before
        save()
    assert latest_checkpoint(tmp_path) == before
    save()
    assert not find_faults(folder)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(made, "save_extra", Mock(side_effect=KeyboardInterrupt))  # midway
        save()
    assert "trainer_state.json" in find_faults(folder), "nothing but the missing state tells"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # a byte more is refused, as where there is no room
    try:
        with refused(CheckpointError, "checkpoint-2", "free space", "checkpoint-1"):
            save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert latest_checkpoint(tmp_path) == before


def test_checkpoints_that_were_not_written_to_their_end_are_passed_over(run):
    """Killed while transformers wrote its state, or out of power before all was on the disk."""
    (run / "checkpoint-3" / LIST_FILE).unlink()
    for step, state in ((11, None), (12, '{"epoch": 1'), (13, "[]")):
        (run / f"checkpoint-{step}").mkdir()
        if state is not None:
            (run / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert latest_checkpoint(run) == run / "checkpoint-2"
    (run / "checkpoint-3" / "dppo_state.json").unlink()
    assert latest_checkpoint(run) == run / "checkpoint-3", "TRL's own have neither"
    (run / "checkpoint-3").rename(run / "checkpoint-10")
    assert latest_checkpoint(run) == run / "checkpoint-10", "by number"
    assert latest_checkpoint(run / "nothing") is None


@pytest.mark.parametrize("make", [trainer, ours])
def test_each_node_has_the_state_where_it_is_asked_for(make, tiny_path, tmp_path, monkeypatch):
    """As the first process of the second node."""
    made = make(tiny_path, tmp_path)
    monkeypatch.setitem(PartialState._shared_state, "process_index", 1)
    for asked in (False, True):
        made.args.save_on_each_node = asked
        made.save_extra(tmp_path / "checkpoint-1")
        assert (tmp_path / "checkpoint-1" / "dppo_state.json").exists() == asked
