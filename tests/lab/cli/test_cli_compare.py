"""``dppo compare``: a whole comparison, its tables, what it refuses, and how a stop reads."""

import io
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from rich.console import Console
from small_runs import TWO_STEPS

from dppo.lab.cli.main import main
from dppo.lab.comparison import runner, table
from dppo.lab.comparison.plan import QUICK, plan


@pytest.fixture
def config(tmp_path, untrained):
    """Two steps of the built-in configuration, from an untrained model."""
    small = TWO_STEPS | {"model_name_or_path": str(untrained), "output_dir": str(tmp_path / "out")}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(QUICK.read_text()) | small | {"eval_benchmark_every": 2}))
    return path


def test_a_comparison_prints_its_tables_and_can_be_repeated(config, tmp_path, capsys):
    words = ["compare", str(config), "--methods", "trl,dppo", "--seeds", "1"]
    assert main(words) == 0
    shown = capsys.readouterr()
    named = ("speedup", "equal seconds", "equal updates", "biased", "1 of 1", "equal rollouts")
    assert [text for text in named if text not in shown.out] == []
    assert "1 seed: no intervals are shown with fewer than 3. Try --seeds 5" in shown.out
    assert "Against trl, paired by seed. Target: final accuracy of trl, same seed." in shown.out
    assert "1/2 trl seed 0: 2/2 steps" in shown.err and "all runs: 100%" in shown.err
    assert "dppo | method: dppo" in (tmp_path / "out" / "runs" / "dppo" / "seed_0" / "output.txt").read_text()
    assert main(words) == 0
    assert "kept 2/2 dppo seed 0" in capsys.readouterr().err


def test_cpu_seconds_end_a_run_or_are_counted_alone(config, tmp_path):
    words = ["compare", str(config), "--methods", "dppo", "--seeds", "1", "--logging_steps", "1"]
    for number, (flag, steps, noted) in enumerate(((["1e-6"], 1, 1e-6), ([], 2, None))):
        out = tmp_path / str(number)
        assert main([*words, "--output_dir", str(out), "--eval_benchmark_every", "1", "--cpu_seconds", *flag]) == 0
        record, results = (json.loads((out / f"{name}.json").read_text()) for name in ("comparison", "results"))
        assert (record["clock"], record["seconds"]) == ("cpu", noted)
        assert results["methods"]["dppo"]["runs"][0]["curve"][-1]["step"] == steps


def test_a_run_that_fails_is_said_and_makes_the_exit_code_1(config, monkeypatch, capsys):
    train_with = runner.train_with

    def failing(kind, run, **more):
        if "/grpo/" in run.training.output_dir:
            raise ValueError("out of luck")
        return train_with(kind, run, **more)

    monkeypatch.setattr(runner, "train_with", failing)
    assert main(["compare", str(config), "--methods", "dppo,grpo", "--seeds", "1"]) == 1
    shown = capsys.readouterr()
    assert "failed 2/2 grpo seed 0: ValueError: out of luck" in shown.err
    assert "0 of 1" in shown.out and "failed grpo, seed 0: ValueError: out of luck" in shown.out


def test_a_stop_says_how_to_go_on(config, monkeypatch, capsys):
    monkeypatch.setattr(runner, "train_with", Mock(side_effect=KeyboardInterrupt))
    assert main(["compare", str(config), "--seeds", "2"]) == 130
    assert f"the same command goes on from here: dppo compare {config} --seeds 2" in capsys.readouterr().err


def test_the_example_is_the_built_in_configuration():
    assert Path(__file__).parents[3] / "examples" / "embedded_compare.yaml" == QUICK
    comparison = plan(None)
    assert [each.name for each in comparison.contestants] == ["trl", "grpo", "dppo"]
    assert comparison.check().keys() == {"trl", "grpo", "dppo"} and len(comparison.seeds) == 3


def method(**changes):
    """A method as ``results.json`` has it."""
    figure = lambda centre, low=None, high=None: {"mean": centre, "low": low, "high": high, "per_seed": {}}  # noqa: E731
    part = {"at": 40.0, "accuracy": figure(0.5), "difference": figure(0.031, low=0.002, high=0.06)}
    about = {"method": "dppo", "biased": [], "left_out": [], "finished": "5 of 5", "runs": []}
    equal = dict.fromkeys(("equal_updates", "equal_seconds", "equal_rollouts"), part)
    return {**about, **equal, "final": figure(0.8123, low=0.79, high=0.83), **changes}


def test_tables_show_figures_as_given():
    failed = {"status": "failed", "seed": 2, "error": "ValueError: [red]no[/]"}
    biased = {"biased": ["it always drops the rest [b]"], "left_out": ["prompt_prune_rate"], "runs": [failed]}
    common = {"per_seed": {"0": [1, 1]}, "reached": "5 of 5", "missed": {"method": 0, "baseline": 0, "both": 0}}
    speedups = {"trl": (1.0, 1.0, 1.0, 1.0), "dppo": (3.134, 2.5, 4.0, 3.134), "cppo": (None, 0.0, 2.0, 0.5)}
    results = {
        "seeds": [0, 1, 2, 3, 4],
        "baseline": "trl",
        "target": {"what": "final accuracy of trl, same seed", "missing": None},
        "methods": {"trl": method(method="trl"), "dppo": method(), "cppo": method(**biased, finished="4 of 5")},
        "speedup": {
            name: {"time_to_trl_final": dict(zip(("median", "low", "high", "at_most"), figures, strict=True)) | common}
            for name, figures in speedups.items()
        },
    }
    console = Console(width=table.NARROWEST, record=True, file=io.StringIO())
    table.show(results, console)
    text = console.export_text()
    lines = text.splitlines()
    (dppo,) = [line for line in lines if line.startswith("dppo  ") and "3.13" in line]
    assert dppo.split() == ["dppo", "3.13×", *["+3.1", "pp"] * 3, "81.2%", "no", "5", "of", "5"]
    below = lines[lines.index(dppo) + 1]
    assert below.split() == ["2.50", "to", "4.00", *["+0.2", "pp", "to", "+6.0", "pp"] * 3, "79.0%", "to", "83.0%"]
    (cppo,) = [line for line in lines if line.startswith("cppo  ") and "4 of 5" in line]
    assert "yes" in cppo and "not reached" in cppo and "0.00" not in cppo
    assert "biased cppo: it always drops the rest [b]" in text
    assert "cppo does not take prompt_prune_rate: left out" in text
    assert "failed cppo, seed 2: ValueError: [red]no[/]" in text and "…" not in text
