"""``dppo demo`` end to end at a size of seconds: files, table, and lists with one figure per seed."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

import dppo_lab.cli.demo as command
from dppo_lab.demo.race import RaceSetting
from dppo_lab.demo.run import DemoSetting, improves
from dppo_lab.demo.task import QUICK

TINY = DemoSetting(
    task=replace(QUICK, warm_up_steps=3), train=18, held_out=9, race=RaceSetting(steps=2, evaluations=2, samples=1)
)


def test_demo_writes_results_curves_and_checkpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("dppo_lab.demo.run.QUICK", TINY)
    monkeypatch.setattr("dppo_lab.demo.run.SHARE_SAMPLES", 4)
    for module in ("loop", "evaluate"):
        monkeypatch.setattr(f"dppo_lab.demo.{module}.MAX_NEW_TOKENS", 12)
    assert command.main(["--quick", "--seeds", "2", "--threads", "1", "--output", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["methods"]) == {"grpo", "dppo"}
    figures = ("accuracy_start", "accuracy_end", "wall_seconds", "rollouts", "completions_trained", "tokens_trained")
    assert all(len(method[name]) == 2 for method in results["methods"].values() for name in figures)
    assert results["seeds"] == [0, 1]
    for share in results["difficulty_at_start"]:
        assert sum(share.values()) == pytest.approx(1.0)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "checkpoint" / "model.safetensors").exists()
    printed, shown = capsys.readouterr()
    assert "seed 0  grpo: 100%" in shown and "completions/s" in shown and "kept 100%" in shown and "accuracy" in shown
    assert "seed 0  grpo" not in printed and "\x1b" not in printed + shown
    assert "nearly always right" in printed and "completions trained" in printed and "2 seeds" in printed


def test_table_says_how_often_the_target_was_missed(capsys):
    method = {
        "accuracy_start": [0.4, 0.4],
        "accuracy_end": [0.6, 0.7],
        "wall_seconds": [10.0, 10.0],
        "seconds_to_grpo_final": [4.0, None],
        "equal_updates": [None, None],
        "curve": [],
        **{name: [1, 1] for name in ("rollouts", "completions_trained", "tokens_trained", "steps")},
    }
    results = {"methods": {"dppo": method}, "seeds": [0, 1], "difficulty_at_start": [{"a": 1.0, "b": 0.0, "c": 0.0}]}
    command.show(results, Console(width=100))
    assert "4.0 (not reached: 1)" in capsys.readouterr().out
    method["seconds_to_grpo_final"] = [None, None]
    command.show(results | {"grpo_improved": False}, Console(width=100))
    assert "GRPO did not improve" in capsys.readouterr().out


def test_there_is_nothing_to_reach_where_grpo_did_not_improve():
    assert improves([0.4, 0.4], [0.6, 0.5]) and not improves([0.4] * 3, [0.6, 0.3, 0.5]) and not improves([0.0], [0.0])
