"""What would stop a run late is found before anything is loaded, by dry runs and by real ones."""

from unittest.mock import Mock

import pytest
from small_runs import small_words
from trl import GRPOConfig

from dppo.lab.cli.main import main
from dppo.lab.runs.parsing import parse_fields, parse_run
from dppo.lab.runs.preflight import preflight_problems


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch):
    for name in ("prepare_model", "build_trainer", "load_benchmarks"):
        loads = Mock(side_effect=AssertionError("a model was made or loaded"))
        monkeypatch.setattr(f"dppo.lab.runs.parts.{name}", loads)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--model_name_or_path /no/such/model", "model /no/such/model: no such folder."),
        ("--dataset_path /no/such.jsonl", "dataset_path=/no/such.jsonl: no such file or folder (looked in "),
        ("--eval_strategy steps --eval_dataset_name no.parquet", "eval_dataset_name=no.parquet: no such file"),
        ("--reward_weights 1 2", "reward_weights=[1.0, 2.0] must have one number for each of 1 reward"),
    ],
)
def test_dry_and_real_runs_say_it_in_one_line(tmp_path, capsys, more, says):
    words = small_words(tmp_path / "out", *more.split())
    assert main(["train", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"dppo train: {says}") and said.count("\n") == 1
    assert main(["train", *words, "--dry_run"]) == 1
    wrong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WRONG")]
    assert len(wrong) == 1 and says in wrong[0]
    assert not (tmp_path / "out").exists()


def test_data_that_is_there_or_on_the_hub_or_not_used_is_no_problem(tmp_path):
    here = tmp_path / "here.jsonl"
    here.write_text("")
    for more in (
        ["--dataset_path", str(here)],
        ["--dataset_name", "owner/somewhere"],
        ["--eval_dataset_name", "nowhere.jsonl"],  # nothing is evaluated
        ["--eval_strategy", "steps", "--eval_dataset_name", "embedded"],
    ):
        assert preflight_problems(parse_run(small_words(tmp_path / "out", *more))) == [], more


def test_rewards_and_ranges_are_checked_before_a_model_from_scratch_is_warmed_up(tmp_path):
    rewards = ("--reward_funcs", "accuracy", "acuracy", "math.sqroot", "check:any:thing")
    first, second = preflight_problems(parse_run(small_words(tmp_path / "out", *rewards)))
    assert "'acuracy' is not known. Did you mean accuracy?" in first and "'math.sqroot' cannot be imported" in second
    fields = {"output_dir": str(tmp_path), "dataset_name": "embedded", "model_name_or_path": "scratch:embedded"}
    run = parse_fields({**fields, "use_cpu": True, "bf16": False, "learning_rate": -1.0}, GRPOConfig)
    (problem,) = preflight_problems(run)
    assert "learning_rate=-1" in problem and "[0, inf)" in problem, "TRL's own trainer gets the same ranges"
