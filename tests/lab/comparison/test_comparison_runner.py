"""Whole comparisons of two steps: files, continuation, failures, and runs that do not touch each other."""

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file

from dppo.errors import ConfigError
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer
from dppo_lab.comparison import runner
from dppo_lab.comparison.plan import plan
from dppo_lab.comparison.runner import run_comparison

FIELDS = {
    "dataset_name": "embedded_quick",
    "embedded_problems": 12,
    "eval_benchmarks": ["embedded_quick"],
    "eval_benchmark_limit": 6,
    "eval_benchmark_every": 1,
    "rollout_func": "embedded",
    "reward_funcs": ["comparison_rewards.odd_length"],
    "loss_type": "dr_grpo",
    "scale_rewards": "none",
    "num_generations": 4,
    "per_device_train_batch_size": 16,
    "max_completion_length": 8,
    "learning_rate": 1e-3,
    "max_steps": 2,
    "logging_steps": 1,
    "save_strategy": "no",
    "gradient_checkpointing": False,
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "seed": 3,
}


@pytest.fixture
def make(tmp_path):
    build_model(0).save_pretrained(tmp_path / "model")
    build_tokenizer().save_pretrained(tmp_path / "model")

    def comparison(methods=("trl", "dppo"), seeds=1, folder="out", **changes):
        given = {**FIELDS, "model_name_or_path": str(tmp_path / "model"), "output_dir": str(tmp_path / folder)}
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({**given, **changes}))
        return plan(path, methods=methods, seeds=seeds)

    return comparison


def weights(comparison, name, seed=3):
    return load_file(comparison.folder / "runs" / name / f"seed_{seed}" / "model.safetensors")


def equal(left, right):
    return all(torch.equal(left[name], right[name]) for name in right)


def test_two_contestants_from_start_to_results(make):
    comparison, events = make(), []
    results = run_comparison(comparison, events.append)
    assert results == json.loads((comparison.folder / "results.json").read_text())
    for name in ("trl", "dppo"):
        (run,) = results["methods"][name]["runs"]
        assert [point["step"] for point in run["curve"]] == [0, 1, 2]
        assert [point["rollouts"] for point in run["curve"]] == [0, 16, 32]
        assert run["status"] == "finished" and run["phases"]["rollout"] > 0
    first = [results["methods"][name]["runs"][0]["curve"][0]["accuracy"] for name in ("trl", "dppo")]
    assert first[0] == first[1], "the same start, the same draws"
    steps = [(event.name, event.step, event.number, event.runs) for event in events if event.stage == "train"]
    assert [*dict.fromkeys(steps)] == [("dppo", 1, 1, 2), ("dppo", 2, 1, 2), ("trl", 1, 2, 2), ("trl", 2, 2, 2)]
    record = json.loads((comparison.folder / "comparison.json").read_text())
    assert record["methods"] == {"trl": {"method": "trl"}, "dppo": {"method": "dppo"}} and record["seeds"] == [3]
    again = []
    run_comparison(comparison, again.append)
    assert [event.stage for event in again] == ["kept", "kept"]


def test_a_run_is_the_same_alone_or_after_others(make):
    run_comparison(make(methods=("trl", "cppo", "dppo"), folder="many"))
    torch.rand(5)
    run_comparison(make(methods=("dppo",), folder="alone"))
    torch.rand(5)
    run_comparison(make(methods=("trl",), folder="stock"))
    assert equal(weights(make(folder="many"), "dppo"), weights(make(folder="alone"), "dppo"))
    assert equal(weights(make(folder="many"), "trl"), weights(make(folder="stock"), "trl"))
    assert not equal(weights(make(folder="many"), "dppo"), weights(make(folder="many"), "trl"))


def test_random_numbers_that_go_on_from_run_to_run_would_show(make, monkeypatch):
    """The wrong twin: rollouts from one generator that every run of the process goes on drawing from."""
    from dppo_lab.demo import rollouts

    shared = torch.Generator()
    monkeypatch.setattr(rollouts, "torch_generator", lambda *key, device: shared)
    shared.manual_seed(0)
    run_comparison(make(methods=("dppo", "trl"), folder="many"))  # with this seed trl comes first
    shared.manual_seed(0)
    run_comparison(make(methods=("dppo",), folder="alone"))
    assert not equal(weights(make(folder="many"), "dppo"), weights(make(folder="alone"), "dppo"))


@pytest.mark.parametrize(("name", "again"), [("dppo", [2]), ("trl", [1, 2])])
def test_a_run_that_was_ended_after_its_last_checkpoint_takes_no_further_step(make, name, again):
    saved = {"save_strategy": "steps", "save_steps": 1}
    comparison = make(methods=(name,), **saved)
    before = run_comparison(comparison)["methods"][name]["runs"][0]["curve"]
    path, trained = comparison.run_folder(comparison.contestants[0], 3) / "run.json", weights(comparison, name)
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": "running"}))
    events = []
    (run,) = run_comparison(comparison, events.append)["methods"][name]["runs"]
    assert [*dict.fromkeys(event.step for event in events if event.stage == "train")] == again, (
        "from the checkpoint before the last"
    )
    assert run["status"] == "finished"
    assert [(p["step"], p["rollouts"], p["accuracy"]) for p in run["curve"]] == [
        (p["step"], p["rollouts"], p["accuracy"]) for p in before
    ]
    assert equal(weights(comparison, name), trained)


def test_a_run_reproduces_from_its_config(make, tmp_path):
    from dppo_lab.runs.parsing import parse_run
    from dppo_lab.runs.parts import train

    comparison = make(methods=("dppo",))
    run_comparison(comparison)
    config = comparison.run_folder(comparison.contestants[0], 3) / "config.yaml"
    train(parse_run([str(config), "--output_dir", str(tmp_path / "again")]))
    assert equal(weights(comparison, "dppo"), load_file(tmp_path / "again" / "model.safetensors"))


def test_a_run_that_raises_is_on_record_and_the_others_go_on(make, monkeypatch):
    monkeypatch.setattr(runner, "train_with", raising(runner.train_with, "trl", ValueError("out of luck")))
    events = []
    results = run_comparison(make(seeds=2), events.append)
    assert [(event.name, event.text) for event in events if event.stage == "failed"] == [
        ("trl", "ValueError: out of luck")
    ] * 2
    assert results["methods"]["trl"]["finished"] == "0 of 2" and results["methods"]["dppo"]["finished"] == "2 of 2"
    assert results["methods"]["trl"]["runs"][0]["error"] == "ValueError: out of luck"
    monkeypatch.undo()
    assert run_comparison(make(seeds=2))["methods"]["trl"]["finished"] == "2 of 2", "failed runs are tried again"


def raising(train_with, name, error, at=None):
    """``train_with`` that fails for one contestant: at once, or at a step."""

    def failing(kind, run, report=None, prepare=None):
        if f"/{name}/" not in run.training.output_dir:
            return train_with(kind, run, report, prepare)
        if at is None:
            raise error

        def prepared(trainer):
            prepare(trainer)
            step = trainer.training_step

            def stops(*args, **kwargs):
                if trainer.state.global_step == at:
                    raise error
                return step(*args, **kwargs)

            trainer.training_step = stops

        return train_with(kind, run, report, prepared)

    return failing


@pytest.mark.parametrize(("name", "again"), [("dppo", [3, 4]), ("trl", [1, 2, 3, 4])])
def test_a_stopped_comparison_goes_on_from_the_checkpoint(make, monkeypatch, name, again):
    """TRL's own run starts again: resumed after its first epoch of three steps it would replay it."""
    saved = {"save_strategy": "steps", "save_steps": 1, "max_steps": 4}
    monkeypatch.setattr(runner, "train_with", raising(runner.train_with, name, KeyboardInterrupt(), at=2))
    with pytest.raises(KeyboardInterrupt):
        run_comparison(make(methods=(name,), **saved))
    monkeypatch.undo()
    events = []
    results = run_comparison(make(methods=(name,), **saved), events.append)
    assert [*dict.fromkeys(event.step for event in events if event.stage == "train")] == again
    (run,) = results["methods"][name]["runs"]
    assert [(point["step"], point["rollouts"]) for point in run["curve"]] == [(step, 16 * step) for step in range(5)]
    straight = make(methods=(name,), folder="straight", **saved)
    run_comparison(straight)
    assert equal(weights(straight, name), weights(make(methods=(name,)), name))


def test_changed_fields_are_refused_before_anything_is_trained(make):
    run_comparison(make(methods=("dppo",)))
    with pytest.raises(ConfigError, match="learning_rate"):
        run_comparison(make(methods=("dppo",), learning_rate=1e-4))
    with pytest.raises(ConfigError, match="dppo: argument --learning_rate"):
        run_comparison(make(methods=("dppo", "trl"), learning_rate="fast"))
    before = weights(make(), "dppo")
    run_comparison(make(methods=("dppo",), learning_rate=1e-4), overwrite=True)
    assert not equal(weights(make(), "dppo"), before)


def test_a_start_from_scratch_is_made_once_for_a_seed(make, monkeypatch, tmp_path):
    made = []

    def quickly(folder, *, seed, **options):
        made.append((folder, seed))
        build_model(seed).save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)

    monkeypatch.setattr("dppo_lab.runs.parts.prepare_embedded", quickly)
    comparison = make(seeds=2, model_name_or_path="scratch:embedded_quick")
    run_comparison(comparison)
    starts = comparison.folder / "starts"
    assert made == [(starts / "seed_3", 3), (starts / "seed_4", 4)]
    assert not list((comparison.folder / "runs").glob("*/*/start"))
