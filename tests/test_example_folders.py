"""Folders of ``examples``: their configurations pass a dry run, and the custom task has a checker that holds."""

import json
import re

import pytest
import yaml
from pages import ROOT

from dppo.lab.cli.main import main
from examples.countdown.task import problems, right

CONFIGS = [
    path
    for path in sorted((ROOT / "examples").glob("*/*.yaml"))
    if path.parent.name != "sample_compare" and "output_dir" in yaml.safe_load(path.read_text(encoding="utf-8"))
]


@pytest.fixture
def dry_run(tmp_path, monkeypatch, capsys):
    """``dry_run(words)``: the exit code of a dry run of ``dppo train`` into an empty folder, and its lines."""
    monkeypatch.chdir(ROOT)

    def ran(*words):
        code = main(["train", *words, "--dry_run", "--output_dir", str(tmp_path / "out")])
        return code, capsys.readouterr().out.splitlines()

    return ran


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_configuration_passes_a_dry_run(config, dry_run):
    code, lines = dry_run(str(config.relative_to(ROOT)))
    assert code == 0 and not [line for line in lines if line.startswith("WRONG")]
    assert any(line.startswith("plan      method: dppo") for line in lines)


def test_records_of_the_sample_name_no_place_of_the_machine_that_made_them():
    texts = {str(path): path.read_text() for path in (ROOT / "examples/sample_compare").rglob("*") if path.is_file()}
    assert [name for name, text in texts.items() if re.search(r"/(tmp|home|root|work|Users)/", text)] == []


def test_programs_are_judged_by_the_tests_of_a_local_file_and_what_is_wrong_is_seen(dry_run, tmp_path):
    code, lines = dry_run("examples/code/train.yaml", "--eval_benchmarks", "humanevil")
    assert code == 1 and any(line.startswith("WRONG") and "humanevil" in line for line in lines)
    file = tmp_path / "mbpp.jsonl"
    rows = [{"text": f"Write a function that adds {i}.", "test_list": [f"assert add(1) == 1 + {i}"]} for i in range(16)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, lines = dry_run("examples/code/train.yaml", "--dataset_path", str(file))
    assert code == 0 and any("16 problems with columns" in line for line in lines)
    assert any("rewards: code_tests" in line for line in lines)
    file.write_text(file.read_text().replace("test_list", "tests"))
    code, lines = dry_run("examples/code/train.yaml", "--dataset_path", str(file))
    assert code == 1 and any(line.startswith("WRONG") for line in lines)


ROW = {"numbers": [3, 5, 7], "target": 26}
ANSWERS = {
    r"\boxed{3*7+5}": True,
    r"\boxed{1} no: \boxed{ (7 * 3) + 5 }": True,
    r"\boxed{3*7+5": False,
    r"\boxed{26}": False,
    r"\boxed{5*5+1}": False,
    r"\boxed{3*7+5.0}": False,
    r"\boxed{3*7+5-3+3}": False,
    r"\boxed{7**3}": False,
    r"\boxed{__import__('os')}": False,
    rf"\boxed{{{'-' * 150}3*7+5}}": False,
}


@pytest.mark.parametrize("completion", ANSWERS)
def test_the_checker_is_right_where_one_that_only_evaluates_is_fooled(completion):
    assert right(completion, ROW) is ANSWERS[completion]
    if completion in (r"\boxed{26}", r"\boxed{5*5+1}"):
        assert eval(completion[7:-1]) == ROW["target"]


def test_the_file_is_what_the_generator_writes():
    rows = [json.loads(line) for line in (ROOT / "examples/countdown/problems.jsonl").read_text().splitlines()]
    assert rows == problems(96, 0) != problems(96, 1)
    assert all(right(row["solution"], row) and right(f"\\boxed{{{row['answer']}}}", row) for row in rows)
    assert len({row["problem"] for row in rows}) == 96
