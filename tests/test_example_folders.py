"""Every folder of ``examples``: its configurations pass a dry run, and its page has the cost that ``dppo plan`` prints.

``WRITE_EXAMPLES=1`` writes what is printed into the pages.
"""

import os
import re
import shlex

import pytest
import yaml
from pages import ROOT, lines_of

from dppo_lab.cli.main import main

FOLDERS = sorted(
    page.parent for page in (ROOT / "examples").glob("*/README.md") if page.parent.name != "sample_compare"
)
CONFIGS = sorted(
    path
    for folder in FOLDERS
    for path in folder.glob("*.yaml")
    if "output_dir" in yaml.safe_load(path.read_text(encoding="utf-8"))
)
PRINTED = re.compile(
    r"(<!-- printed -->\n```bash\n(?P<command>.*?)```\n\n```text\n)(?P<block>.*?)(?=^```$)", re.DOTALL | re.M
)
SCREEN = 60
"""Most lines of a page, without what is printed."""
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
    lines = PRINTED.sub("", text).splitlines()
    assert lines[0].startswith("# ") and len(lines) <= SCREEN
    assert "\n## Cost\n" in text and "\n## What to watch\n" in text and "```bash\n" in text


def shown(printed: str) -> str:
    """What a page has of a plan: its title, its table and what follows from it, without notes and legend."""
    lines = printed.partition("\nto paste")[0].splitlines()
    return "\n".join(
        line.rstrip() for line in lines if line and not line.startswith(("- note:", "  noise:", "  in brackets"))
    )


@pytest.mark.parametrize(
    "folder", [each for each in FOLDERS if (each / "figures.yaml").exists()], ids=lambda path: path.name
)
def test_the_cost_on_a_page_is_what_the_plan_prints(folder, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "1000")  # no line is broken
    page = folder / "README.md"
    found = PRINTED.search(text := page.read_text(encoding="utf-8"))
    assert found, f"{page}: no block that is marked as printed"
    (line,) = lines_of(found["command"])
    assert main(shlex.split(line)[1:]) == 0
    block = shown(capsys.readouterr().out) + "\n"
    if os.environ.get("WRITE_EXAMPLES"):
        page.write_text(text.replace(found[0], found[1] + block), encoding="utf-8")
    else:
        assert found["block"] == block, "WRITE_EXAMPLES=1 writes it anew"
