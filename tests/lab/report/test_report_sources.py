"""Sources of a report: runs and comparisons."""

import shutil

import report_folders as made
from refusals import refused

from dppo.errors import ConfigError
from dppo.lab.report.curves import averaged, how_to_read
from dppo.lab.report.sources import read_sources
from dppo.lab.runs.reader import read_run


def test_a_comparison_is_read_with_its_results():
    contents = read_sources(made.SAMPLE)
    assert [group.label for group in contents.groups] == ["trl", "grpo", "cppo", "dppo"]
    assert [len(group.runs) for group in contents.groups] == [3] * 4
    assert contents.groups[3].compared.speedup["median"] > 2 and contents.groups[0].compared.is_baseline
    assert contents.notes == () and contents.title == "sample_compare"


def test_neither_run_nor_comparison_says_what_was_looked_for(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with refused(ConfigError, folder, "run.json", "metrics.jsonl", "comparison.json", "dppo report"):
            read_sources(folder)


def test_a_run_without_logs_is_refused_alone_and_listed_beside_others(tmp_path):
    empty = made.write_run(tmp_path / "empty", "grpo")
    (empty / "metrics.jsonl").unlink()
    with refused(ConfigError, "metrics.jsonl", empty, "--logging_steps 5"):
        read_sources(empty)
    comparison = shutil.copytree(made.SAMPLE, tmp_path / "cmp")
    (comparison / "runs" / "grpo" / "seed_0" / "metrics.jsonl").unlink()
    contents = read_sources(comparison)
    assert any("there are no logs" in note and "seed_0" in note for note in contents.notes)
    assert "grpo 2 of 3" in how_to_read(contents)


def test_a_run_that_goes_on_is_in_no_mean_with_those_that_ended(tmp_path):
    comparison = shutil.copytree(made.SAMPLE, tmp_path / "cmp")
    runs, error = comparison / "runs" / "dppo", "OutOfMemoryError: 3 GB"
    made.write_run(runs / "seed_1", seed=1, updates=20, status="stopped")
    failed = made.write_run(runs / "seed_2", seed=2, updates=20, status="failed", error=error)
    contents = read_sources(comparison)
    assert [run.seed for run in averaged(contents.groups[3])] == [0] and "dppo 1 of 3" in how_to_read(contents)
    assert f"{failed} failed: {error}" in contents.notes


def test_a_series_has_the_last_record_of_an_update_and_only_finite_figures(tmp_path):
    folder = made.write_run(tmp_path / "run")
    steps = [(5, 0.1), (10, 0.2), (15, 0.3), (10, 0.25), (15, 0.35)]
    values = [0.5, float("nan"), None, float("inf"), "much", True, 0.25]
    records = [{"step": s, "again": v} for s, v in steps] + [{"step": 20 + s, "x": v} for s, v in enumerate(values)]
    made.write_lines(folder / "metrics.jsonl", records)
    again, mixed = (read_run(folder).series(name) for name in ("again", "x"))
    assert (again.x_I.tolist(), again.value_I.tolist()) == ([5, 10, 15], [0.1, 0.25, 0.35])
    assert (mixed.x_I.tolist(), mixed.value_I.tolist(), mixed.left_out) == ([20, 26], [0.5, 0.25], 5)
