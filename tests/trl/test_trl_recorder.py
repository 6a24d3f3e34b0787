"""Records of runs of both trainers: what they hold, training without them, and runs that stop, go on or fail."""

import errno
import os
import warnings

import pytest
import torch
from cases import parameters
from refusals import refused
from tiny_runs import DEVICE, Stop, StopAfter, length_reward, scripted
from transformers import TrainerCallback
from trl import GRPOTrainer
from trl_recorder_runs import ROWS, lines, make, run_file

from dppo.errors import ConfigError
from dppo.lab.files import read_lines
from dppo.lab.runs import recorder as recorder_module
from dppo.lab.runs.recorder import Journal, RunRecorder

TRAINERS = pytest.mark.parametrize("ours", [True, False], ids=["dppo", "trl"])
REUSED = {"steps_per_generation": 2, "num_iterations": 2}


@TRAINERS
@pytest.mark.parametrize(
    ("options", "draws"), [({}, False), (REUSED, False), ({}, True)], ids=["once", "reused", "wrong twin"]
)
def test_recording_changes_no_weight(options, draws, ours, tiny_path, tmp_path):
    """The wrong twin draws from the generator that completions are sampled by."""
    weights, options = [], options | ({"completion_score": "length"} if ours else {})
    for recorded in (True, False):
        trainer, recorder = make(tiny_path, tmp_path / str(recorded), ours=ours, recorded=recorded, **options)
        trainer.rollout_func = None
        before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        if recorded and draws:
            recorder.journal.append = lambda *_: torch.rand(1, device=DEVICE)
        trainer.train()
        weights.append(trainer.model.state_dict())
    with_it, without = weights
    assert all(torch.equal(with_it[name], without[name]) for name in with_it) != draws
    assert not all(torch.equal(with_it[name], before[name]) for name in before), "something was learnt"


@TRAINERS
def test_records_are_those_of_the_rollouts_and_say_what_was_run(ours, tiny_path, tmp_path):
    """Counted a second time, where completions are made and where the draws are logged."""
    made, states, seen = [], [], {}

    def rollouts(prompts, trainer):
        output = scripted(prompts, trainer)
        made.append([len(ids) for ids in output["completion_ids"]])
        states.append(run_file(tmp_path)["status"])
        return output

    def reward(prompts, completions, answer, **_):
        rewards = length_reward(prompts, completions)
        for text, row, value in zip(completions, answer, rewards, strict=True):
            seen.setdefault((trainer.state.global_step + 1, int(row)), []).append((value, len(text.split()) + 1))
        return rewards

    trainer, recorder = make(tiny_path, tmp_path, ours=ours, hub_token="secret", reward=reward, max_steps=5)
    trainer.rollout_func = rollouts
    trainer.train()
    totals = recorder.totals()
    assert totals["total/rollouts"] == sum(map(len, made)) > 0
    assert totals["total/rollout_tokens"] == sum(map(sum, made))
    records = lines(tmp_path, "metrics.jsonl")
    steps = [record for record in records if "loss" in record]
    trained = sum(r["prune/tokens_trained"] for r in steps) if ours else totals["total/rollout_tokens"]
    assert totals["total/tokens_trained"] == steps[-1]["total/tokens_trained"] == trained > 0
    seconds = [record["total/seconds"] for record in records]
    assert seconds == sorted(seconds) and seconds[0] > 0
    assert all("total/seconds" in record for record in trainer.state.log_history)
    phases = {name for name in steps[-1] if name.startswith("time/")}
    assert {"time/rollout", "time/reward", "time/forward_backward", "time/optimizer"} <= phases
    assert sum(r[name] for r in steps for name in phases) <= totals["total/seconds"]
    assert all(r["rows/sequence_tokens"] <= r["rows/padded_tokens"] and r["rows/forwards"] >= 1 for r in steps)

    record = run_file(tmp_path)
    assert set(states) == {"running"} and record["status"] == "finished" and record["error"] is None
    assert record["format"] == 1 and record["method"] == ("dppo" if ours else "trl") and record["seed"] == 3
    assert record["biased"] == [] and record["paper"].startswith("arXiv:")
    assert record["updates"] == 5 and record["seconds"] == totals["total/seconds"]
    assert record["task"] == {"model": tiny_path, "dataset": "Dataset", "prompts": ROWS}
    assert record["config"]["learning_rate"] == 1e-2 and "weight_decay" not in record["config"]
    assert "secret" not in (tmp_path / "run.json").read_text()
    assert {"processor", "versions", "commit"} <= record["environment"].keys()

    if ours:
        prompts = lines(tmp_path, "prompts.jsonl")
        assert [record["step"] for record in prompts] == [1, 2, 3, 4, 5]
        for record in prompts:
            columns = (record[name] for name in ("rows", "rolled_out", "rewards", "tokens"))
            for row, keep, rewards, tokens in zip(*columns, strict=True):
                assert list(zip(rewards, tokens, strict=True)) == (seen[record["step"], row] if keep else [])
        assert not all(all(record["rolled_out"]) for record in prompts), "and some were not rolled out"
    with refused(ConfigError, "one trainer"):
        recorder.attach(trainer)
    with refused(ConfigError, "recorder.attach"):
        RunRecorder(tmp_path).phase("train").__enter__()


def test_evaluation_and_saving_are_not_training(tiny_path, tmp_path, monkeypatch):
    """A clock that moves only where a test moves it: a second a step, and long pauses elsewhere."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    saving = GRPOTrainer._save_checkpoint

    def slow_save(*args):
        now[0] += 1000
        return saving(*args)

    monkeypatch.setattr(GRPOTrainer, "_save_checkpoint", slow_save)

    class Steps(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            now[0] += 1
            with recorder.paused(), recorder.paused():
                now[0] += 100

        def on_prediction_step(self, args, state, control, **kwargs):
            now[0] += 10000

    options = dict(save_strategy="steps", save_steps=1, eval_strategy="steps", eval_steps=1)
    trainer, recorder = make(tiny_path, tmp_path, callbacks=[Steps()], **options)
    trainer.train()
    assert recorder.totals()["total/seconds"] == 3.0 and now[0] > 33000
    assert run_file(tmp_path)["seconds"] == 3.0


STEPS = 6
SAVED = {"save_strategy": "steps", "save_steps": 1, "max_steps": STEPS}


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
    "options", parameters({"once": {}, "reused": REUSED | {"per_device_train_batch_size": 8}}, slow=["once"])
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
