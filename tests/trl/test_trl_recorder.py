"""What a recorder leaves behind, for both trainers, and that training is the same with and without it."""

import errno
import json
import threading

import pytest
import torch
from conftest_trl import GENERATIONS, length_reward, problems, scripted
from safetensors.torch import load_file
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from dppo.errors import ConfigError
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.trl import journal as journal_module
from dppo.trl.journal import Journal, encoded, records_of
from dppo.trl.recorder import RunRecorder

PROMPTS = 4


class Metrics(TrainerCallback):
    """Stands in for whatever reads logs."""

    def __init__(self, folder):
        self.journal = Journal(folder)

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.journal.append("metrics.jsonl", [{"step": state.global_step, **logs}])


class Stop(Exception):
    """Stands in for whatever ends a run."""


class StopAfter(TrainerCallback):
    def __init__(self, step, error=Stop):
        self.step, self.error = step, error

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step > self.step:
            raise self.error


def make(path, folder, *, ours=True, recorded=True, reward=length_reward, callbacks=(), completions=None, **options):
    settings = dict(
        output_dir=str(folder),
        per_device_train_batch_size=PROMPTS * GENERATIONS,
        num_generations=GENERATIONS,
        max_completion_length=12,
        max_steps=3,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        seed=3,
    )
    settings.update(options)
    if ours:
        settings = {"prompt_prune_rate": 0.5, "completion_prune_rate": 0.5, "loss_type": "dr_grpo"} | settings
    trainer = (DPPOTrainer if ours else GRPOTrainer)(
        model=path,
        reward_funcs=reward,
        args=(DPPOConfig if ours else GRPOConfig)(**settings),
        train_dataset=problems(8),
        callbacks=[*callbacks, Metrics(folder)],
        rollout_func=scripted,
    )
    recorder = RunRecorder(folder, completions=completions).attach(trainer) if recorded else None
    return trainer, recorder


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def run_file(folder):
    return json.loads((folder / "run.json").read_text())


TRAINERS = pytest.mark.parametrize("ours", [True, False], ids=["dppo", "trl"])


@TRAINERS
@pytest.mark.parametrize("options", [{}, {"steps_per_generation": 2, "num_iterations": 2}], ids=["once", "reused"])
def test_recording_changes_no_weight(ours, options, tiny_path, tmp_path):
    for name, recorded in (("with", True), ("without", False)):
        trainer, _ = make(tiny_path, tmp_path / name, ours=ours, recorded=recorded, **options)
        trainer.train()
        trainer.save_model(str(tmp_path / name))
    with_it, without = (load_file(tmp_path / name / "model.safetensors") for name in ("with", "without"))
    assert all(torch.equal(with_it[name], without[name]) for name in with_it)
    start = load_file(f"{tiny_path}/model.safetensors")
    assert not all(torch.equal(with_it[name], start[name]) for name in start), (
        "nothing was learnt, nothing could differ"
    )


def test_a_recorder_that_draws_from_the_global_generator_would_show(tiny_path, tmp_path):
    """The wrong twin of the test above, with completions by transformers, which samples from that generator."""
    weights = []
    for name in ("with", "without"):
        trainer, recorder = make(tiny_path, tmp_path / name, recorded=name == "with", completion_score="length")
        trainer.rollout_func = None
        if recorder is not None:
            recorder.journal.append = lambda *_: torch.rand(1)
        trainer.train()
        weights.append({n: p.detach().clone() for n, p in trainer.model.named_parameters()})
    assert not all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@TRAINERS
def test_totals_are_those_of_the_rollouts(ours, tiny_path, tmp_path):
    """Counted a second time, where completions are made and where TRL counts their lengths."""
    made = []

    def rollouts(prompts, trainer):
        output = scripted(prompts, trainer)
        made.append([len(ids) for ids in output["completion_ids"]])
        return output

    trainer, recorder = make(tiny_path, tmp_path, ours=ours)
    trainer.rollout_func = rollouts
    trainer.train()
    totals = recorder.totals()
    assert totals["total/rollouts"] == sum(map(len, made)) > 0
    assert totals["total/rollout_tokens"] == sum(map(sum, made))
    records = [record for record in lines(tmp_path, "metrics.jsonl") if "loss" in record]
    trained = sum(r["prune/tokens_trained"] for r in records) if ours else totals["total/rollout_tokens"]
    assert totals["total/tokens_trained"] == trained
    assert records[-1]["total/tokens_trained"] == trained
    assert all("total/seconds" in record for record in lines(tmp_path, "metrics.jsonl"))
    seconds = [record["total/seconds"] for record in lines(tmp_path, "metrics.jsonl")]
    assert seconds == sorted(seconds) and seconds[0] > 0
    phases = {name for name in records[-1] if name.startswith("time/")}
    assert {"time/rollout", "time/reward", "time/forward_backward", "time/optimizer"} <= phases
    assert sum(r[name] for r in records for name in phases) <= totals["total/seconds"]


def test_tokens_of_every_pass_count(tiny_path, tmp_path):
    options = {"steps_per_generation": 2, "num_iterations": 2, "max_steps": 4, "per_device_train_batch_size": 8}
    trainer, recorder = make(tiny_path, tmp_path, **options)
    trainer.train()
    records = [record for record in lines(tmp_path, "metrics.jsonl") if "loss" in record]
    assert recorder.totals()["total/tokens_trained"] == sum(r["prune/tokens_trained"] for r in records)
    assert len(lines(tmp_path, "prompts.jsonl")) == 1 and lines(tmp_path, "prompts.jsonl")[0]["step"] == 1
