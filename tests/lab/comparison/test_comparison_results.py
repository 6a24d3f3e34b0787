"""``results.json`` from run folders made by hand: every figure computed beforehand."""

import json

import pytest
import run_folders

from dppo.lab.comparison.contestants import Contestant
from dppo.lab.comparison.plan import Comparison
from dppo.lab.comparison.results import paired, summarise
from dppo.lab.statistics import seed_interval

CONTESTANTS = tuple(
    Contestant(name=name, method=method, overrides=overrides)
    for name, method, overrides in (("trl", "trl", {}), ("dppo", "dppo", {}), ("wide", "cppo", {"learning_rate": 1e-3}))
)


@pytest.fixture
def comparison(tmp_path):
    config = {"model_name_or_path": "m", "dataset_name": "d", "eval_benchmarks": ["b"], "prompt_prune_rate": 0.3}
    return Comparison(folder=tmp_path, contestants=CONTESTANTS, seeds=(0, 1, 2), config=config)


def write_run(comparison, name, seed, points, **facts):
    """A run folder; points are (step, seconds, rollouts, accuracy)."""
    run_folders.write_run(comparison.folder / "runs" / name / f"seed_{seed}", points, task={"prompts": 96}, **facts)


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
    per_seed = {"0": 0.6, "1": 0.6, "2": 0.6}
    assert results["target"] == {"what": "final accuracy of trl, same seed", "per_seed": per_seed, "missing": None}
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
    assert dppo["to_target"]["seconds"]["median"] == pytest.approx(32.0) and dppo["to_target"]["reached"] == "3 of 3"
    speedup = results["speedup"]["dppo"]["time_to_trl_final"]
    assert speedup["median"] == pytest.approx(100 / 32) and speedup["low"] == pytest.approx(100 / 32)
    assert results["speedup"]["trl"]["time_to_trl_final"]["median"] == 1.0
    assert wide["biased"] == ["it is"] and wide["overrides"] == {"learning_rate": 1e-3}
    assert wide["left_out"] == ["prompt_prune_rate"] and dppo["left_out"] == []
    assert results["task"] == {"model": "m", "dataset": "d", "prompts": 96, "benchmarks": ["b"]}
    json.dumps(results, allow_nan=False)


@pytest.mark.parametrize("finals", [(0.0, 0.0, 0.0), (0.01, -0.02, 0.01)])
def test_where_the_baseline_did_not_improve_there_is_no_target_and_no_speedup(comparison, finals):
    """No one learns: accuracies are the start and noise, which a faster method meets in less time."""
    for seed, noise in enumerate(finals):
        write_run(comparison, "trl", seed, [(0, 0.2, 0, 0.3), (5, 50, 500, 0.3 - noise), (10, 100, 1000, 0.3 + noise)])
        write_run(comparison, "dppo", seed, [(0, 0.1, 0, 0.3), (10, 40, 800, 0.31)])
    results = summarise(comparison)
    target, found = results["target"], results["speedup"]["dppo"]["time_to_trl_final"]
    assert target["per_seed"] == found["per_seed"] == {"0": None, "1": None, "2": None}
    assert target["missing"].startswith("trl did not improve: its accuracy changed by +0.0") and found["median"] is None
    assert results["methods"]["dppo"]["to_target"]["reached"] is None


def test_runs_that_failed_or_are_missing_are_listed_and_count_nowhere(comparison):
    fill(comparison)
    write_run(comparison, "dppo", 1, [(0, 0, 0, 0.2)], status="failed", error="ValueError: no")
    (comparison.folder / "runs" / "wide" / "seed_2" / "run.json").unlink()
    write_run(comparison, "wide", 1, [(0, 0, 0, 0.2)], status="stopped")
    write_run(comparison, "wide", 0, [])
    (comparison.folder / "runs" / "dppo" / "seed_0" / "metrics.jsonl").write_text("x\n{}\n")
    methods = summarise(comparison)["methods"]
    dppo, wide = methods["dppo"], methods["wide"]["runs"]
    assert dppo["finished"] == "1 of 3"
    assert dppo["final"]["per_seed"] == {"0": None, "1": None, "2": pytest.approx(0.7)}
    assert [run["status"] for run in dppo["runs"]] == ["failed", "failed", "finished"]
    assert "line 1 is damaged" in dppo["runs"][0]["error"] and dppo["runs"][1]["error"] == "ValueError: no"
    assert dppo["equal_updates"]["difference"]["per_seed"]["1"] is None
    assert methods["trl"]["equal_seconds"]["at_per_seed"]["1"] == 100, "the others' runs do not count there"
    assert [run["status"] for run in wide] == ["failed", "running", "missing"]
    assert "it logged no accuracy" in wide[0]["error"] and wide[1]["error"] is None


def test_a_given_target_that_the_baseline_misses_bounds_the_speedup_from_below(tmp_path):
    """trl ends at .6 after 100 s; dppo passes .65 after 90% of 40 s: at least 100/36."""
    comparison = Comparison(folder=tmp_path, contestants=CONTESTANTS, seeds=(0, 1, 2), config={}, target=0.65)
    fill(comparison)
    found = summarise(comparison)["speedup"]["dppo"]["time_to_target"]
    assert found["median"] == pytest.approx(100 / 36) and found["at_most"] is None and found["high"] is None
    assert found["missed"] == {"method": 0, "baseline": 3, "both": 0}


def test_pairs_are_by_seed():
    """By hand; seeds that differ much and methods that do not: paired differences are narrow, unpaired ones are not."""
    left, right = {0: 0.51, 1: 0.71, 2: 0.92}, {2: 0.90, 1: 0.70, 0: 0.50}
    found = seed_interval(paired(left, right))
    assert found.per_seed == pytest.approx({0: 0.01, 1: 0.01, 2: 0.02})
    unpaired = seed_interval(paired(left, {0: 0.90, 1: 0.50, 2: 0.70}))
    assert found.low > 0 and unpaired.low < 0
    assert paired({0: 1.0, 1: None}, {0: 3.0}) == {0: -2.0, 1: None}
