"""``dppo demo`` at a size of seconds: three trainers, the files, and what the last words may say."""

import json
import re

import pytest
import yaml
from refusals import refused
from small_runs import TWO_STEPS

import dppo.lab.cli.demo as command
from dppo.errors import ConfigError
from dppo.lab.comparison import demo
from dppo.lab.comparison.demo import SIDES
from dppo.lab.report.sources import read_sources


def test_stock_trl_the_control_and_the_default_are_trained_and_shown(tmp_path, untrained, monkeypatch, capsys):
    given = yaml.safe_load(demo.CONFIG.read_text()) | TWO_STEPS | {"eval_benchmark_every": 1}
    given |= {"model_name_or_path": str(untrained), "compare": {"methods": {name: {} for name in SIDES}}}
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
    monkeypatch.setattr(demo, "CONFIG", tmp_path / "demo.yaml")
    monkeypatch.setattr(demo, "SECONDS", 1e9)
    out = tmp_path / "out"
    assert command.main(["--output", str(out)]) == 0
    printed, shown = capsys.readouterr()
    results = json.loads((out / "results.json").read_text())
    (out / "runs" / "trl" / "seed_0" / "left over").touch()
    assert [run["runs"][0]["curve"][-1]["step"] for run in results["methods"].values()] == [2, 2, 2]
    assert [each["method"] for each in results["methods"].values()] == list(SIDES)
    assert "\x1b" not in printed + shown
    assert re.search(r"trl +grpo +dppo", printed) and "trl, grpo and dppo train for" in printed.splitlines()[0]
    assert demo.WITHOUT_KL not in printed
    assert printed.count("one seed: no verdict") == 2 and "Not seen here:" in printed
    assert any("CPU seconds" in note for note in read_sources(out).notes), "a report of it says so"
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert command.main(["--output", str(out), "--no-kl"]) == 0 and demo.WITHOUT_KL in capsys.readouterr().out
    assert json.loads((out / "comparison.json").read_text())["config"]["beta"] == 0
    assert not (out / "runs" / "trl" / "seed_0" / "left over").exists(), "trained anew"


def runs_of(folder, **about):
    """The record of a comparison in a folder, and a file of one of its runs."""
    path = folder / "runs" / "trl" / "seed_0" / "model.safetensors"
    path.parent.mkdir(parents=True)
    path.touch()
    (folder / "comparison.json").write_text(json.dumps({"format": 1} | about))
    return path


@pytest.mark.parametrize("about", [{"seconds": None, "methods": dict.fromkeys(SIDES)}, {"seconds": 9.0}])
def test_runs_of_a_comparison_that_is_no_demonstration_are_kept(tmp_path, about):
    """The wrong twin takes every comparison for an earlier demonstration, and removes its runs."""
    path = runs_of(tmp_path, **about)
    with refused(ConfigError, tmp_path, "no demonstration", f"--output {tmp_path}-demo"):
        command.main(["--output", str(tmp_path)])
    assert path.exists()


def test_runs_of_a_demonstration_that_is_going_are_kept(tmp_path, holder):
    path = runs_of(tmp_path / "out", seconds=30.0, methods=dict.fromkeys(SIDES))
    with refused(ConfigError, f"process {holder.pid}"):
        command.main(["--output", str(tmp_path / "out")])
    assert path.exists()


def results_of(*accuracies):
    """``results.json`` with these accuracies of each side at equal seconds, of each seed."""
    methods = {}
    for name, values in zip(SIDES, accuracies, strict=True):
        found = {"mean": sum(values) / len(values), "low": min(values), "high": max(values)}
        found["per_seed"] = {str(seed): value for seed, value in enumerate(values)}
        methods[name] = {"equal_seconds": {"at": 10.0, "accuracy": found}}
    return {"methods": methods, "seeds": list(range(len(values)))}


@pytest.mark.parametrize(
    ("grpo", "says"),
    [
        ((0.6, 0.7, 0.8), "+10.0 pp (95% interval over 3 seeds +10.0 pp to +10.0 pp): ahead."),
        ((0.8, 0.9, 1.0), "−10.0 pp (95% interval over 3 seeds −10.0 pp to −10.0 pp): behind."),
        ((0.6, 0.9, 0.8), "+3.3 pp (95% interval over 3 seeds −10.0 pp to +10.0 pp): no difference is"),
    ],
)
def test_the_verdict_is_what_the_interval_allows(grpo, says):
    lines = list(demo.last_words(results_of((0.3, 0.4, 0.5), grpo, (0.7, 0.8, 0.9))))
    (against,) = [line for line in lines if line.startswith("dppo against grpo: ")]
    assert says in against and "trl 40.0%" in lines[1] and "ahead." in lines[2]


def test_the_verdict_counts_the_seeds_that_finished_of_sides_that_all_have_one():
    """The wrong twin counts those that were asked for, and advises as many again."""
    results = results_of((0.3,) * 5, (0.4,) * 5, (0.5,) * 5)
    for side in results["methods"].values():
        side["equal_seconds"]["accuracy"]["per_seed"] |= dict.fromkeys(("2", "3", "4"))
    against = list(demo.last_words(results))[-2]
    assert against.endswith("+10.0 pp; 2 seeds: no verdict. 3 of 5 did not finish.")
    results["methods"]["grpo"]["equal_seconds"]["accuracy"]["mean"] = None
    assert list(demo.last_words(results))[1:] == ["Nothing can be said: not every side has finished a run."]


def test_a_chat_model_learns_the_tutorials_task_with_a_kl_term(tmp_path):
    comparison = demo.demo_comparison(tmp_path, model="models/smollm2", seeds=2)
    assert comparison.config["dataset_name"] == "reasoning_gym:chain_sum" and comparison.config["beta"] == 0.04
    assert [each.name for each in comparison.contestants] == list(SIDES)
    assert "about 42 min" in demo.first_words(comparison)  # 2 x (3 x 300 s + 360 s)
    assert demo.demo_comparison(tmp_path, kl=False).config["beta"] == 0.0
