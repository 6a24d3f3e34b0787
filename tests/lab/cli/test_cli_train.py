"""``dppo train --dry_run`` and its exit codes, on the examples that ship."""

import re
from dataclasses import MISSING, fields
from pathlib import Path

import torch
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.model_config import ModelConfig

from dppo.lab.cli.main import main
from dppo.lab.cli.train_help import USUAL, full_help, short_help
from dppo.lab.runs.fields import RunArguments
from dppo.lab.runs.parsing import build_parser
from dppo.settings import OwnSettings
from dppo.trl import DPPOConfig

EXAMPLES = Path(__file__).parents[3] / "examples"


FLAG = re.compile(r"^  (?:-h, )?(--[\w-]+)", re.MULTILINE)


def entries(text):
    """Every field of a help with its text, in order."""
    parts = FLAG.split(text)[1:]
    return [(name, " ".join(words.split())) for name, words in zip(parts[::2], parts[1::2], strict=True)]


def test_the_help_has_ours_first_then_the_usual_ones_and_each_once():
    names = [name for name, _ in entries(short_help())]
    ours = [f"--{each.name}" for kind in (RunArguments, OwnSettings) for each in fields(kind)]
    assert names == ["--help", "--help_all", *ours, *(f"--{each.name}" for each in USUAL)]
    assert len(set(names)) == len(names) and 20 <= len(USUAL) <= 25
    assert not re.search(r"--\w+-\w", short_help()), "a field has one name here"
    names = [name for name, _ in entries(full_help())]
    assert len(set(names)) == len(names) > 200 and "default: None" not in full_help()
    assert {name[2:] for name in names} - {"help", "help_all"} == build_parser().hints().keys()


def test_defaults_of_the_usual_fields_are_those_that_take_effect(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = DPPOConfig(use_cpu=True, bf16=False)
    cpu = {"bf16": True, "use_cpu": False}  # what it takes to make one here
    for name, kind, default, _ in USUAL:
        owner = DPPOConfig if name in DPPOConfig.__dataclass_fields__ else ModelConfig
        declared = owner.__dataclass_fields__[name].default
        effect = declared if declared not in (None, MISSING) else cpu.get(name, getattr(made, name, None))
        assert default == (str(effect).lower() if isinstance(effect, bool | None) else str(effect)), name
        assert kind in (bool, int, float, str) and f"--{name}" in build_parser()._option_string_actions


def test_help_of_the_class_lists_our_fields_with_their_texts_and_not_those_of_trl():
    listed = DPPOConfig.__doc__.split("Attributes:\n")[1]
    names = re.findall(r"^    (\w+) \(", listed, re.MULTILINE)
    assert names == [each.name for each in fields(OwnSettings)] and "method" in names
    words = " ".join(listed.split())
    assert all(each.metadata["help"] in words for each in fields(OwnSettings))
    assert not {"learning_rate", "output_dir"} & {*names} and "(default: 0.875)" in words
    assert {each.name for each in fields(DPPOConfig)} - {each.name for each in fields(GRPOConfig)} <= {*names}


def test_the_papers_setting_is_planned_without_a_network(tmp_path, capsys):
    words = [str(EXAMPLES / "qwen3_4b_math" / "train.yaml"), "--dry_run", "true", "--output_dir", str(tmp_path / "out")]
    assert main(["train", *words]) == 0
    printed = capsys.readouterr().out
    assert "unchecked model Qwen/Qwen3-4B" in printed and "unchecked dataset math" in printed
    assert "of a block of 256, about 128 are rolled out" in printed
    assert "gradient unbiased" in printed and "biased:" not in printed
    assert "optimizer steps per generation: 1" in printed and "for 8 processes" in printed
    assert "no GPU here" in printed or torch.accelerator.is_available()


def test_a_step_of_several_generations_is_said(tmp_path, capsys):
    """On twice the processes a generation has half of the calls, and the accumulation that was set does not follow."""
    words = [str(EXAMPLES / "qwen3_4b_math" / "train.yaml"), "--dry_run", "true", "--output_dir", str(tmp_path / "out")]
    main(["train", *words, "--processes", "16"])
    assert "an optimizer step takes 2 generations: gradient_accumulation_steps=10" in capsys.readouterr().out
    main(["train", *words, "--processes", "16", "--gradient_accumulation_steps", "5"])
    assert "an optimizer step takes" not in capsys.readouterr().out


def test_a_stopped_run_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    out = tmp_path / "my out"
    words = ["train", str(EXAMPLES / "embedded.yaml"), "--output_dir", str(out)]
    command = f"dppo train {EXAMPLES / 'embedded.yaml'} --output_dir '{out}'"

    def stops(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dppo.lab.runs.parts.train_with", stops)
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
