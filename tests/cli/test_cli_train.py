"""``dppo train --dry_run`` and its exit codes, on the examples that ship."""

from pathlib import Path

import pytest
import torch

from dppo.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_no_arguments_prints_the_help(capsys):
    assert main(["train"]) == 2
    assert main(["train", "--help"]) == 0
    assert "--completion_prune_rate" in capsys.readouterr().out


def test_the_papers_setting_is_planned_without_a_network(tmp_path, capsys):
    words = [str(EXAMPLES / "qwen3_4b_math.yaml"), "--dry_run", "true", "--output_dir", str(tmp_path / "out")]
    assert main(["train", *words]) == 0
    printed = capsys.readouterr().out
    assert "unchecked model Qwen/Qwen3-4B" in printed and "unchecked dataset math" in printed
    assert "of a block of 256, about 128 are rolled out" in printed
    assert "gradient unbiased" in printed and "biased:" not in printed
    assert "optimizer steps per generation: 1" in printed and "for 8 processes" in printed
    assert "no GPU here" in printed or torch.accelerator.is_available()


def test_a_step_of_several_generations_is_said(tmp_path, capsys):
    """On twice the processes a generation has half of the calls, and the accumulation that was set does not follow."""
    words = [str(EXAMPLES / "qwen3_4b_math.yaml"), "--dry_run", "true", "--output_dir", str(tmp_path / "out")]
    main(["train", *words, "--processes", "16"])
    assert "an optimizer step takes 2 generations: gradient_accumulation_steps=10" in capsys.readouterr().out
    main(["train", *words, "--processes", "16", "--gradient_accumulation_steps", "5"])
    assert "an optimizer step takes" not in capsys.readouterr().out


def test_local_copy_of_the_papers_data_is_checked(tmp_path, capsys):
    real = Path(__file__).parents[3] / "shared" / "data" / "train" / "math_train.jsonl.gz"
    if not real.exists():
        pytest.skip("the MATH training set is not beside this checkout")
    words = [str(EXAMPLES / "qwen3_4b_math.yaml"), "--dry_run", "true", "--output_dir", str(tmp_path / "out")]
    with pytest.warns(UserWarning, match="occur more than once"):
        assert main(["train", *words, "--dataset_path", str(real)]) == 0
    assert "11998 problems" in capsys.readouterr().out


def test_wrong_data_fails_the_dry_run(tmp_path, capsys):
    words = [str(EXAMPLES / "embedded.yaml"), "--dry_run", "true", "--output_dir", str(tmp_path / "out")]
    assert main(["train", *words]) == 0
    assert main(["train", *words, "--dataset_path", str(tmp_path / "no.jsonl")]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_bad_field_is_one_line_and_exit_code_two(tmp_path, capsys):
    words = [str(EXAMPLES / "embedded.yaml"), "--completion_prune_rate", "2", "--output_dir", str(tmp_path / "out")]
    assert main(["train", *words]) == 2
    assert "completion_prune_rate=2 must be in [0, 1)" in capsys.readouterr().err


def test_a_stopped_run_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    out = tmp_path / "my out"
    words = ["train", str(EXAMPLES / "embedded.yaml"), "--output_dir", str(out)]
    command = f"dppo train {EXAMPLES / 'embedded.yaml'} --output_dir '{out}'"

    def stops(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dppo.cli.train.train_with", stops)
    assert main(words) == 130
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line == f"stopped before a checkpoint (save_steps=30); it starts again with: {command}"

    out.mkdir()
    (out / "run.json").write_text("{}")
    assert main(words) == 130
    assert capsys.readouterr().err.strip().endswith(f"it starts again with: {command} --overwrite")

    (out / "checkpoint-30").mkdir()
    (out / "checkpoint-30" / "trainer_state.json").write_text("{}")
    for given in ([], ["--resume"]):
        assert main([*words, *given]) == 130
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line == f"stopped; it goes on from {out / 'checkpoint-30'} with: {command} --resume"
