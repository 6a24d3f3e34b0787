"""``dppo train --dry_run`` and its exit codes, on the examples that ship."""

import re
from dataclasses import fields
from pathlib import Path
from unittest.mock import Mock

import torch

from dppo.lab.cli.main import main
from dppo.lab.cli.train import full_help, short_help
from dppo.lab.runs.fields import RunArguments
from dppo.lab.runs.parsing import build_parser
from dppo.settings import OwnSettings

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_help_has_ours_with_their_defaults_and_the_long_one_all():
    names = re.findall(r"^  (--\w+)", short_help(), re.MULTILINE)
    ours = [f"--{each.name}" for kind in (RunArguments, OwnSettings) for each in fields(kind)]
    assert names == ["--help_all", *ours] and "(default: 0.875)" in " ".join(short_help().split())
    named = {*re.findall(r"--(\w+)", full_help())}
    assert build_parser().hints().keys() <= named and len(named) > 200


def test_the_papers_setting_is_planned_without_a_network(tmp_path, capsys):
    words = [str(EXAMPLES / "qwen3_4b_math" / "train.yaml"), "--dry_run", "true", "--output_dir", str(tmp_path / "out")]
    assert main(["train", *words]) == 0
    printed = capsys.readouterr().out
    assert "unchecked model Qwen/Qwen3-4B" in printed and "unchecked dataset math" in printed
    assert "about 128 of the 256 of a generation are rolled out" in printed
    assert "gradient unbiased" in printed and "biased:" not in printed
    assert "for 8 processes" in printed
    assert "no GPU here" in printed or torch.accelerator.is_available()


def test_a_stopped_run_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    out = tmp_path / "my out"
    words = ["train", str(EXAMPLES / "embedded.yaml"), "--output_dir", str(out)]
    command = f"dppo train {EXAMPLES / 'embedded.yaml'} --output_dir '{out}'"

    monkeypatch.setattr("dppo.lab.runs.parts.train_with", Mock(side_effect=KeyboardInterrupt))
    assert main(words) == 130
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line == f"stopped before a checkpoint (save_steps=30); it starts again with: {command}"

    out.mkdir()
    (out / "run.json").write_text("{}")
    assert main(words) == 130
    assert capsys.readouterr().err.strip().endswith(f"it starts again with: {command} --overwrite")

    (out / "checkpoint-30").mkdir()
    (out / "checkpoint-30" / "trainer_state.json").write_text("{}")
    assert main([*words, "--resume"]) == 130
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line == f"stopped; it goes on from {out / 'checkpoint-30'} with: {command} --resume"
