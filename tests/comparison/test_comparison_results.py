"""``results.json`` from run folders made by hand: every figure computed beforehand."""

import json
import math

import pytest
import yaml

from dppo.comparison.contestants import Contestant
from dppo.comparison.plan import Comparison
from dppo.comparison.results import paired, speedup, summarise
from dppo.files import write_json
from dppo.statistics import seed_interval

CONTESTANTS = tuple(
    Contestant(name=name, method=method, overrides=overrides)
    for name, method, overrides in (("trl", "trl", {}), ("dppo", "dppo", {}), ("wide", "cppo", {"learning_rate": 1e-3}))
)


@pytest.fixture
def comparison(tmp_path):
    config = {"model_name_or_path": "m", "dataset_name": "d", "eval_benchmarks": ["b"], "prompt_prune_rate": 0.3}
    return Comparison(folder=tmp_path, contestants=CONTESTANTS, seeds=(0, 1, 2), config=config)


def write_run(comparison, name, seed, points, *, status="finished", error=None, biased=()):
    """A run folder; points are (step, seconds, rollouts, accuracy)."""
    folder = comparison.folder / "runs" / name / f"seed_{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    record = {"format": 1, "status": status, "error": error, "biased": list(biased), "paper": "p"}
    write_json(folder / "run.json", {**record, "task": {"prompts": 96}})
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": seed}))
    lines = [
        {
            "step": step,
            "total/seconds": seconds,
            "total/rollouts": rollouts,
            "total/tokens_trained": 10 * rollouts,
            "eval/average/pass@1": accuracy,
        }
        for step, seconds, rollouts, accuracy in points
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def fill(comparison):
    """trl: 10 steps in 100 s. dppo: 10 steps in 40 s, better by .1. wide: 20 steps of half the rollouts in 50 s."""
    for seed in (0, 1, 2):
        write_run(comparison, "trl", seed, [(0, 0, 0, 0.2), (10, 100, 1000, 0.6)])
        write_run(comparison, "dppo", seed, [(0, 0, 0, 0.2), (10, 40, 800, 0.7)])
        write_run(comparison, "wide", seed, [(0, 0, 0, 0.2), (10, 25, 500, 0.3), (20, 50, 1000, 0.5)], biased=["it is"])


def test_every_figure_by_hand(comparison):
    fill(comparison)
    results = summarise(comparison)
    dppo, wide = results["methods"]["dppo"], results["methods"]["wide"]
    assert results["baseline"] == "trl" and results["seeds"] == [0, 1, 2]
    assert results["target"] == {
        "what": "final accuracy of trl, same seed",
        "per_seed": {"0": 0.6, "1": 0.6, "2": 0.6},
    }
    assert dppo["final"]["mean"] == pytest.approx(0.7)
    assert dppo["equal_updates"]["at"] == 10 and wide["equal_updates"]["accuracy"]["mean"] == pytest.approx(0.3)
    assert wide["equal_updates"]["difference"]["mean"] == pytest.approx(-0.3)
    # 40 seconds: trl has done 40% of its way, wide has done 15 of its 25 seconds from .3 to .5
    assert dppo["equal_seconds"]["at_per_seed"] == {"0": 40, "1": 40, "2": 40}
    assert dppo["equal_seconds"]["difference"]["mean"] == pytest.approx(0.7 - 0.36)
    assert wide["equal_seconds"]["accuracy"]["mean"] == pytest.approx(0.42)
    # 800 rollouts
    assert dppo["equal_rollouts"]["difference"]["mean"] == pytest.approx(0.7 - 0.52)
    # .6 is reached after 80% of dppo's 40 s
    assert dppo["to_target"]["seconds"]["median"] == pytest.approx(32.0)
    assert dppo["to_target"]["rollouts"]["median"] == pytest.approx(640)
    assert dppo["to_target"]["tokens_trained"]["median"] == pytest.approx(6400)
    assert dppo["to_target"]["reached"] == "3 of 3"
    speedup = results["speedup"]["dppo"]["time_to_trl_final"]
    assert speedup["median"] == pytest.approx(100 / 32) and speedup["low"] == pytest.approx(100 / 32)
    assert results["speedup"]["trl"]["time_to_trl_final"]["median"] == 1.0
    assert wide["biased"] == ["it is"] and wide["overrides"] == {"learning_rate": 1e-3}
    assert wide["left_out"] == ["prompt_prune_rate"] and dppo["left_out"] == []
    assert results["task"] == {"model": "m", "dataset": "d", "prompts": 96, "benchmarks": ["b"]}
    json.dumps(results, allow_nan=False)


def test_a_target_never_reached_is_a_speedup_of_zero(comparison):
    fill(comparison)
    results = summarise(comparison)
    wide = results["methods"]["wide"]["to_target"]
    assert wide["reached"] == "0 of 3" and wide["seconds"]["median"] is None
    assert results["speedup"]["wide"]["time_to_trl_final"]["per_seed"] == {"0": 0.0, "1": 0.0, "2": 0.0}
    write_run(comparison, "wide", 0, [(0, 0, 0, 0.2), (20, 50, 1000, 0.7)])
    speedup = summarise(comparison)["speedup"]["wide"]["time_to_trl_final"]
    assert speedup["median"] == 0.0 and speedup["high"] == pytest.approx(100 / 40)


def test_runs_that_failed_are_listed_and_left_out_of_no_count(comparison):
    fill(comparison)
    write_run(comparison, "dppo", 1, [(0, 0, 0, 0.2)], status="failed", error="ValueError: no")
    results = summarise(comparison)
    dppo = results["methods"]["dppo"]
    assert dppo["finished"] == "2 of 3"
    assert dppo["final"] == {"mean": pytest.approx(0.7), "low": None, "high": None, "per_seed": {
        "0": pytest.approx(0.7), "1": None, "2": pytest.approx(0.7)}}  # fmt: skip
    assert [(run["status"], run["error"]) for run in dppo["runs"]][1] == ("failed", "ValueError: no")
    assert dppo["equal_updates"]["difference"]["per_seed"]["1"] is None
    assert results["methods"]["wide"]["equal_seconds"]["at_per_seed"]["1"] == 50, "the failed run does not count there"
    for seed in (0, 1, 2):
        write_run(comparison, "dppo", seed, [], status="failed", error="ValueError: no")
    results = summarise(comparison)
    assert results["methods"]["dppo"]["finished"] == "0 of 3"
    assert results["methods"]["dppo"]["final"]["mean"] is None
    assert results["speedup"]["dppo"]["time_to_trl_final"]["median"] is None


def test_runs_that_are_missing_stopped_or_without_figures(comparison):
    fill(comparison)
    (comparison.folder / "runs" / "wide" / "seed_2" / "run.json").unlink()
    write_run(comparison, "wide", 1, [(0, 0, 0, 0.2)], status="failed", error="KeyboardInterrupt: ")
    write_run(comparison, "wide", 0, [])
    runs = summarise(comparison)["methods"]["wide"]["runs"]
    assert [run["status"] for run in runs] == ["failed", "running", "missing"]
    assert "it logged no accuracy" in runs[0]["error"] and runs[1]["error"] is None
    (comparison.folder / "runs" / "dppo" / "seed_0" / "metrics.jsonl").write_text("x\n{}\n")
    assert "line 1 is damaged" in summarise(comparison)["methods"]["dppo"]["runs"][0]["error"]


def test_without_trl_the_first_is_the_baseline_and_a_target_can_be_given(tmp_path):
    comparison = Comparison(folder=tmp_path, contestants=CONTESTANTS[1:], seeds=(0, 1, 2), config={}, target=0.45)
    fill(comparison)
    results = summarise(comparison)
    assert results["baseline"] == "dppo" and results["target"]["what"] == "accuracy 0.45"
    speedup = results["speedup"]["wide"]["time_to_target"]
    assert speedup["median"] == pytest.approx(20 / 43.75)
    assert results["methods"]["dppo"]["final"]["per_seed"].keys() == {"0", "1", "2"}


def test_speedups():
    assert speedup(12.0, 4.0) == 3.0
    assert speedup(12.0, math.inf) == 0.0
    assert speedup(0.0, 0.0) == 1.0


def test_pairs_are_by_seed():
    """By hand; seeds that differ much and methods that do not: paired differences are narrow, unpaired ones are not."""
    left, right = {0: 0.51, 1: 0.71, 2: 0.92}, {2: 0.90, 1: 0.70, 0: 0.50}
    found = seed_interval(paired(left, right))
    assert found.per_seed == pytest.approx({0: 0.01, 1: 0.01, 2: 0.02})
    unpaired = seed_interval(paired(left, {0: 0.90, 1: 0.50, 2: 0.70}))
    assert found.low > 0 and unpaired.low < 0
    assert paired({0: 1.0, 1: None}, {0: 3.0}) == {0: -2.0, 1: None}
