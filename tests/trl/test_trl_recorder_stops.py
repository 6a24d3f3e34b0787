"""Records of runs that stop, go on, fail, or find no room; and text that would break a line."""

import errno
import os
import warnings

import pytest
from cases import parameters
from tiny_runs import Stop, StopAfter, length_reward
from trl_recorder_runs import lines, make, run_file

from dppo.lab.files import read_lines
from dppo.lab.runs import recorder as recorder_module
from dppo.lab.runs.recorder import Journal

STEPS = 6
SAVED = {"save_strategy": "steps", "save_steps": 1, "max_steps": STEPS}
TRAINERS = pytest.mark.parametrize("ours", [True, False], ids=["dppo", "trl"])


def stopped_and_resumed(path, folder, at, **options):
    """A run that stops after a step that is not in the checkpoint it goes on from."""
    trainer, _ = make(path, folder, callbacks=[StopAfter(at + 1)], **SAVED, **options)
    with pytest.raises(Stop):
        trainer.train()
    before = run_file(folder), lines(folder, "metrics.jsonl")[-1]
    trainer, recorder = make(path, folder, **SAVED, **options)
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{at}"))
    return before, recorder


# With two steps and two passes a generation, step 2 is in the middle of one.
@pytest.mark.parametrize(
    "options",
    parameters(
        {"once": {}, "reused": {"steps_per_generation": 2, "num_iterations": 2, "per_device_train_batch_size": 8}},
        slow=["once"],
    ),
)
def test_a_resumed_record_is_that_of_a_run_never_stopped(options, tiny_path, tmp_path):
    trainer, straight = make(tiny_path, tmp_path / "a", **SAVED, **options)
    trainer.train()
    (failed, last), resumed = stopped_and_resumed(tiny_path, tmp_path / "b", 2, **options)
    assert failed["status"] == "failed" and failed["error"] == "Stop"
    assert lines(tmp_path / "a", "prompts.jsonl") == lines(tmp_path / "b", "prompts.jsonl")
    counts = ("total/rollouts", "total/rollout_tokens", "total/tokens_trained")
    for record, other in zip(*(lines(tmp_path / run, "metrics.jsonl") for run in ("a", "b")), strict=True):
        assert record["step"] == other["step"] and [record[n] for n in counts] == [other[n] for n in counts]
    assert [resumed.totals()[name] for name in counts] == [straight.totals()[name] for name in counts]
    seconds = [record["total/seconds"] for record in lines(tmp_path / "b", "metrics.jsonl")]
    assert seconds == sorted(seconds) and last["total/seconds"] > 0
    assert run_file(tmp_path / "b")["status"] == "finished" and run_file(tmp_path / "b")["error"] is None


def test_a_record_that_is_not_cut_has_steps_twice(tiny_path, tmp_path, monkeypatch):
    monkeypatch.setattr(Journal, "cut", lambda *_: None)
    stopped_and_resumed(tiny_path, tmp_path, 2)
    steps = [record["step"] for record in lines(tmp_path, "prompts.jsonl")]
    assert sorted(set(steps)) == list(range(1, STEPS + 1)) and len(steps) > STEPS


@TRAINERS
def test_a_reward_that_fails_is_on_record(ours, tiny_path, tmp_path):
    def failing(prompts, completions, **_):
        if trainer.state.global_step == 1:
            raise ValueError("no verifier\nhere")
        return length_reward(prompts, completions)

    trainer, recorder = make(tiny_path, tmp_path, ours=ours, reward=failing)
    with pytest.raises(Exception, match="no verifier"):
        trainer.train()
    record = run_file(tmp_path)
    assert record["status"] == "failed" and "no verifier\nhere" in record["error"]
    assert record["seconds"] == recorder.totals()["total/seconds"] > 0


def test_a_full_disk_ends_the_record_and_not_the_run(tiny_path, tmp_path, monkeypatch):
    """The disk takes three writes and half of the next one."""
    done, append = [0], recorder_module.append_lines

    def write(path, records, **options):
        done[0] += 1
        append(path, records, **options)
        if done[0] > 3:
            path.write_bytes(path.read_bytes()[:-20])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(recorder_module, "append_lines", write)
    trainer, recorder = make(tiny_path, tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    said = [str(w.message) for w in caught if "cannot write" in str(w.message)]
    assert len(said) == 1 and "No space left" in said[0] and "training goes on" in said[0]
    assert trainer.state.global_step == 3 and recorder.journal.stopped
    assert [record["step"] for record in read_lines(tmp_path / "prompts.jsonl")] == [1, 2]
    assert run_file(tmp_path)["status"] == "finished"
