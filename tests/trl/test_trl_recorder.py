"""What a recorder leaves behind, for both trainers, and that training is the same with and without it."""

from pathlib import Path

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from tiny_runs import DEVICE, length_reward, scripted
from transformers import TrainerCallback
from trl import GRPOTrainer
from trl_recorder_runs import ROWS, lines, make, run_file

from dppo.errors import ConfigError
from dppo.lab.runs.recorder import RunRecorder

TRAINERS = pytest.mark.parametrize("ours", [True, False], ids=["dppo", "trl"])


@TRAINERS
@pytest.mark.parametrize("options", [{}, {"steps_per_generation": 2, "num_iterations": 2}], ids=["once", "reused"])
def test_recording_changes_no_weight(ours, options, tiny_path, tmp_path):
    for name, recorded in (("with", True), ("without", False)):
        trainer, _ = make(tiny_path, tmp_path / name, ours=ours, recorded=recorded, **options)
        trainer.train()
        trainer.save_model(str(tmp_path / name))
    folders = tmp_path / "with", tmp_path / "without", Path(tiny_path)
    with_it, without, start = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(torch.equal(with_it[name], without[name]) for name in with_it)
    assert not all(torch.equal(with_it[name], start[name]) for name in start), "something was learnt"


def test_a_recorder_that_draws_from_the_global_generator_would_show(tiny_path, tmp_path):
    """The wrong twin of the test above, with completions by transformers, which samples from that generator."""
    weights = []
    for name in ("with", "without"):
        trainer, recorder = make(tiny_path, tmp_path / name, recorded=name == "with", completion_score="length")
        trainer.rollout_func = None
        if recorder is not None:
            recorder.journal.append = lambda *_: torch.rand(1, device=DEVICE)
        trainer.train()
        weights.append({n: p.detach().clone() for n, p in trainer.model.named_parameters()})
    assert not all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@TRAINERS
def test_totals_are_those_of_the_rollouts_and_the_run_file_says_what_was_run(ours, tiny_path, tmp_path):
    """Counted a second time, where completions are made and where the draws are logged."""
    made, states = [], []

    def rollouts(prompts, trainer):
        output = scripted(prompts, trainer)
        made.append([len(ids) for ids in output["completion_ids"]])
        states.append(run_file(tmp_path)["status"])
        return output

    trainer, recorder = make(tiny_path, tmp_path, ours=ours, hub_token="secret")
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
    assert record["updates"] == 3 and record["seconds"] == totals["total/seconds"]
    assert record["task"] == {"model": tiny_path, "dataset": "Dataset", "prompts": ROWS}
    assert record["config"]["learning_rate"] == 1e-2 and "weight_decay" not in record["config"]
    assert "secret" not in (tmp_path / "run.json").read_text()
    assert {"processor", "versions", "commit"} <= record["environment"].keys()


def test_prompts_are_recorded_with_what_was_drawn_and_rewarded(tiny_path, tmp_path):
    seen = {}

    def reward(prompts, completions, answer, **_):
        rewards = length_reward(prompts, completions)
        for text, row, value in zip(completions, answer, rewards, strict=True):
            seen.setdefault((trainer.state.global_step + 1, int(row)), []).append((value, len(text.split()) + 1))
        return rewards

    trainer, _ = make(tiny_path, tmp_path, reward=reward, max_steps=5)
    trainer.train()
    records = lines(tmp_path, "prompts.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5]
    for record in records:
        columns = (record[name] for name in ("rows", "rolled_out", "rewards", "tokens"))
        for row, keep, rewards, tokens in zip(*columns, strict=True):
            assert list(zip(rewards, tokens, strict=True)) == (seen[record["step"], row] if keep else [])
    assert not all(all(record["rolled_out"]) for record in records), "and some were not rolled out"


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

    trainer, recorder = make(tiny_path, tmp_path, callbacks=[Steps()], save_strategy="steps", save_steps=1)
    trainer.eval_dataset = trainer.train_dataset
    trainer.args.eval_strategy = trainer.args.eval_strategy.__class__("steps")
    trainer.args.eval_steps = trainer.state.eval_steps = 1
    trainer.train()
    assert recorder.totals()["total/seconds"] == 3.0 and now[0] > 33000
    assert run_file(tmp_path)["seconds"] == 3.0


def test_a_recorder_records_one_trainer(tiny_path, tmp_path):
    trainer, recorder = make(tiny_path, tmp_path)
    with refused(ConfigError, "one trainer"):
        recorder.attach(trainer)
    with refused(ConfigError, "recorder.attach"):
        RunRecorder(tmp_path).phase("train").__enter__()
