"""Every folder of ``examples``: its configurations pass a dry run, and its page is a screen."""

import pytest
import yaml
from pages import ROOT

from dppo.lab.cli.main import main

FOLDERS = sorted(
    page.parent for page in (ROOT / "examples").glob("*/README.md") if page.parent.name != "sample_compare"
)
CONFIGS = sorted(
    path
    for folder in FOLDERS
    for path in folder.glob("*.yaml")
    if "output_dir" in yaml.safe_load(path.read_text(encoding="utf-8"))
)
SCREEN = 60
"""Most lines of a page."""
PROGRAM = '{{"text": "Write a function that adds {}.", "test_list": ["assert add(1) == 1 + {}"]}}\n'


def dry_run(words, folder, capsys):
    """The exit code of a dry run of ``dppo train`` into an empty folder, and its lines."""
    code = main(["train", *words, "--dry_run", "--output_dir", str(folder / "out")])
    return code, capsys.readouterr().out.splitlines()


def test_the_folders_that_a_user_looks_for_are_there():
    assert {"gsm8k", "gsm8k_8_gpus", "verl", "code", "countdown"} <= {folder.name for folder in FOLDERS}
    assert len(CONFIGS) >= 6


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_configuration_passes_a_dry_run(config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code, lines = dry_run([str(config.relative_to(ROOT))], tmp_path, capsys)
    assert code == 0 and not [line for line in lines if line.startswith("WRONG")]
    assert any(line.startswith("plan      method: dppo") for line in lines)


def test_a_dry_run_sees_what_is_wrong_with_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code, lines = dry_run(["examples/code/train.yaml", "--eval_benchmarks", "humanevil"], tmp_path, capsys)
    assert code == 1 and any(line.startswith("WRONG") and "humanevil" in line for line in lines)


def test_programs_are_judged_by_the_tests_of_a_local_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    file = tmp_path / "mbpp.jsonl"
    file.write_text("".join(PROGRAM.format(i, i) for i in range(16)))
    code, lines = dry_run(["examples/code/train.yaml", "--dataset_path", str(file)], tmp_path, capsys)
    assert code == 0 and any("16 problems with columns" in line for line in lines)
    assert any("rewards: code_tests" in line for line in lines)
    file.write_text(file.read_text().replace("test_list", "tests"))
    code, lines = dry_run(["examples/code/train.yaml", "--dataset_path", str(file)], tmp_path, capsys)
    assert code == 1 and any(line.startswith("WRONG") for line in lines)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_page_is_a_screen_with_a_command_a_cost_and_what_to_watch(folder):
    text = (folder / "README.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[0].startswith("# ") and len(lines) <= SCREEN
    assert "\n## Cost\n" in text and "\n## What to watch\n" in text and "```bash\n" in text
