"""Whole comparisons of two steps: files, continuation, failures, and runs that do not touch each other."""

import json

import pytest
import yaml
from refusals import refused
from safetensors.torch import load_file
from small_runs import EMBEDDED, SMALL, equal

from dppo.errors import ConfigError
from dppo.lab.comparison import runner
from dppo.lab.comparison.plan import plan
from dppo.lab.comparison.runner import run_comparison
from dppo.trl.checkpoints import files

FIELDS = {
    **SMALL,
    **EMBEDDED,
    "embedded_problems": 12,
    "eval_benchmark_limit": 6,
    "eval_benchmark_every": 1,
    "reward_funcs": ["small_runs.odd_length"],
    "loss_type": "dr_grpo",
    "scale_rewards": "none",
    "learning_rate": 1e-3,
    "max_steps": 2,
    "logging_steps": 1,
    "save_strategy": "no",
    "seed": 3,
}


@pytest.fixture
def make(tmp_path, untrained):
    """Makes comparisons that start from one untrained model."""

    def comparison(methods=("trl", "dppo"), seeds=1, output="out", **changes):
        given = FIELDS | {"model_name_or_path": str(untrained), "output_dir": str(tmp_path / output)}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(given | changes))
        return plan(tmp_path / "config.yaml", methods=methods, seeds=seeds)

    return comparison


def weights(comparison, name, seed=3):
    return load_file(comparison.folder / "runs" / name / f"seed_{seed}" / "model.safetensors")


def test_contestants_from_start_to_results_and_each_run_as_if_alone(make):
    comparison, events = make(methods=("cppo", "trl", "dppo")), []
    results = run_comparison(comparison, events.append)
    assert results == json.loads((comparison.folder / "results.json").read_text())
    for method in results["methods"].values():
        (run,) = method["runs"]
        assert [(point["step"], point["rollouts"]) for point in run["curve"]] == [(0, 0), (1, 16), (2, 32)]
        assert run["status"] == "finished" and run["phases"]["rollout"] > 0
    first = {method["runs"][0]["curve"][0]["accuracy"] for method in results["methods"].values()}
    assert len(first) == 1, "the same start, the same draws"
    steps = [(event.name, event.step, event.number, event.runs) for event in events if event.stage == "train"]
    order = enumerate(("cppo", "trl", "dppo"), 1)
    assert [*dict.fromkeys(steps)] == [(name, step, number, 3) for number, name in order for step in (1, 2)]
    record = json.loads((comparison.folder / "comparison.json").read_text())
    assert record["methods"] == {name: {"method": name} for name in ("cppo", "trl", "dppo")} and record["seeds"] == [3]
    again = []
    run_comparison(comparison, again.append)
    assert [event.stage for event in again] == ["kept"] * 3
    alone = make(methods=("dppo",), output="alone")
    run_comparison(alone)
    assert equal(weights(comparison, "dppo"), weights(alone, "dppo"))
    assert not equal(weights(comparison, "dppo"), weights(comparison, "trl"))


def test_a_run_that_raises_is_on_record_and_the_others_go_on(make, monkeypatch):
    comparison = make(seed=4, max_steps=1)  # with this seed trl comes first
    monkeypatch.setattr(runner, "train_with", raising(runner.train_with, "trl", ValueError("out of luck")))
    events = []
    methods = run_comparison(comparison, events.append)["methods"]
    assert [(e.name, e.text) for e in events if e.stage == "failed"] == [("trl", "ValueError: out of luck")]
    assert (methods["trl"]["finished"], methods["dppo"]["finished"]) == ("0 of 1", "1 of 1")
    assert methods["trl"]["runs"][0]["error"] == "ValueError: out of luck"
    monkeypatch.undo()
    assert run_comparison(comparison)["methods"]["trl"]["finished"] == "1 of 1", "failed runs are tried again"


def raising(train_with, name, error, at=None):
    """``train_with`` that fails for one contestant: at once, or at a step."""

    def failing(kind, run, prepare=None, **more):
        if f"/{name}/" not in run.training.output_dir:
            return train_with(kind, run, prepare=prepare, **more)
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

        return train_with(kind, run, prepare=prepared, **more)

    return failing


@pytest.mark.parametrize(
    ("name", "again"), [("dppo", [3, 4]), pytest.param("trl", [1, 2, 3, 4], marks=pytest.mark.slow)]
)
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
    straight = make(methods=(name,), output="straight", **saved)
    run_comparison(straight)
    assert equal(weights(straight, name), weights(make(methods=(name,)), name))


def test_a_start_from_scratch_is_made_once_for_a_seed(make, made_quickly, monkeypatch):
    trained = []
    monkeypatch.setattr(runner, "train_with", lambda kind, run, **_: trained.append(run.model.model_name_or_path))
    comparison = make(seeds=2, model_name_or_path="scratch:embedded_quick")
    run_comparison(comparison)
    starts = [comparison.folder / "starts" / f"seed_{seed}" for seed in (3, 4)]
    assert [made[:2] for made in made_quickly] == [(starts[0], 3), (starts[1], 4)]
    assert trained == [str(starts[0])] * 2 + [str(starts[1])] * 2


def test_a_second_comparison_in_a_folder_is_refused_and_a_killed_one_taken_over(make, holder, capsys):
    """Two in one folder would train into the same runs."""
    comparison = make(methods=("dppo",), max_steps=1)
    (folder := comparison.folder).joinpath("comparison.json").write_text("{}")
    before = sorted(folder.rglob("*"))
    with refused(ConfigError, f"process {holder.pid} on", "since", f"output_dir: {folder}"):
        run_comparison(comparison)
    assert sorted(folder.rglob("*")) == before and folder.joinpath("comparison.json").read_text() == "{}"
    holder.kill()
    holder.wait()
    folder.joinpath("comparison.json").unlink()  # the lock alone does not make it a folder of something else
    assert run_comparison(comparison)["methods"]["dppo"]["finished"] == "1 of 1"
    assert f"{folder} is taken over from process {holder.pid}" in capsys.readouterr().out
    assert not folder.joinpath(files.WRITER_FILE).exists()
