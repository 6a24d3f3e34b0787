"""Blocks on the pages that are no Python: commands parse as they stand, files are there, settings pass a dry run."""

import argparse
import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from accelerate.commands.launch import launch_command_parser
from pages import LANGUAGES, PAGES, ROOT, Block, all_blocks, lines_of

import dppo.lab.cli.main as command
from answer_judge.evaluation.command import build_parser as build_eval_parser
from dppo.errors import ConfigError
from dppo.lab.comparison.plan import plan
from dppo.lab.gym import is_gym
from dppo.lab.runs.dry_run import dry_run
from dppo.lab.runs.parsing import parse_fields, read_file, read_flags
from dppo.lab.runs.words import split_words
from dppo.trl import DPPOConfig

BLOCKS = [block for page in PAGES for block in all_blocks(page)]
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
PROJECTS = [tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in (".", "answer-judge")]
EXTRAS = {extra for project in PROJECTS for extra in project["project"]["optional-dependencies"]}
HERE = re.compile(r"(?:dppo|answer-judge|tests|benchmarks|docs|examples)/[\w./-]+")


def left_over(main: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words that the parser of a command leaves over. The command stops there."""
    parse, found = argparse.ArgumentParser.parse_known_args, []

    def parse_and_stop(self, *given, **named):
        found.extend(parse(self, *given, **named)[1])
        raise EOFError

    with monkeypatch.context() as patched, pytest.raises(EOFError):
        patched.setattr(argparse.ArgumentParser, "parse_known_args", parse_and_stop)
        main()
    return found


def refusal(read: Callable[[], object]) -> list[str]:
    try:
        read()
    except (ConfigError, SystemExit) as error:
        return [str(error)]
    return []


def dppo_problems(words: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    name, *rest = words
    if name not in command.COMMANDS:
        return [f"there is no command {name}"]
    if name == "train":
        return refusal(lambda: read_flags(split_words(rest)[1]))
    if name == "eval" and not any(map(is_gym, words)):
        return refusal(lambda: build_eval_parser("dppo eval").parse_args(rest))
    fields: list[str] = []
    run = command.import_module(f"dppo.lab.cli.{name}").main
    found = refusal(lambda: fields.extend(left_over(lambda: run(rest), monkeypatch)))
    if name in ("demo", "eval", "report") or "--frozen" in words:
        return found + [f"no flag {word}" for word in fields if word.startswith("-")]
    return found or refusal(lambda: read_flags(fields))


def line_problems(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is wrong with a line of shell: an unknown command is wrong, too."""
    words = [word for word in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    missing = [f"no file {path}" for path in HERE.findall(line) if not (ROOT / path).exists()]
    match words:
        case ["dppo", *rest]:
            return missing + dppo_problems(rest, monkeypatch)
        case ["make", *targets]:
            return [f"make has no {target}" for target in targets if target not in TARGETS]
        case ["pip", "install", *_]:
            named = {extra for found in re.findall(r"\[([\w,]+)\]", line) for extra in found.split(",")}
            return [f"no extra {extra}" for extra in named - EXTRAS]
        case ["accelerate", "launch", *rest]:
            place = next(n for n, word in enumerate(rest) if word.endswith(".py") or word == "dppo.lab.cli.main")
            ours = [] if rest[place].endswith(".py") else dppo_problems(rest[place + 1 :], monkeypatch)
            return missing + refusal(lambda: launch_command_parser().parse_args(rest[: place + 1])) + ours
        case ["python", "-m", name] if name.startswith("dppo"):
            return [] if importlib.util.find_spec(name) else [f"no module {name}"]
        case ["python", script, *rest] if HERE.fullmatch(script) and not missing:
            flags = [word.split("=")[0] for word in rest if word.startswith("--")]
            return [f"{script} has no {flag}" for flag in flags if f'"{flag}"' not in (ROOT / script).read_text()]
    return missing or [f"nobody checks {line}"]


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "bash"], ids=lambda block: block.place)
def test_lines_of_shell_parse_and_name_what_is_there(block, monkeypatch):
    lines = lines_of(block.code)
    found = {line: problems for line in lines if (problems := line_problems(line, monkeypatch))}
    if block.marked:  # commands of others, which nobody checks here; ours among them are checked all the same
        found = {line: wrong for line, wrong in found.items() if not wrong[0].startswith("nobody checks")}
    assert lines and not found


@pytest.mark.parametrize(
    "wrong",
    [
        "dppo trian examples/embedded.yaml",
        "dppo train examples/embedded.yaml --learningrate 1e-6",
        "dppo train examples/embedded.yaml --max_steps many",
        "dppo compare --seeds five",
        "make demos",
        "pip install -e '.[tlr]'",
        "accelerate launch --num_process_ 8 -m dppo.lab.cli.main train CONFIG.yaml",
        "accelerate launch --num_processes 8 -m dppo.lab.cli.main trian CONFIG.yaml",
        "accelerate launch --num_processes 8 examples/no_such_script.py MODEL",
        "python -m dppo.verl.plug",
        "python examples/prompt_values.py CONFIG.yaml --sample 4",
        "rm -rf runs",
    ],
)
def test_wrong_lines_of_shell_are_found(wrong, monkeypatch, capsys):
    assert line_problems(wrong, monkeypatch)


def setting_problems(block: Block, folder: Path) -> list[str]:
    """What a dry run, or the checks before a comparison, find wrong with a block of settings."""
    fields = yaml.safe_load(block.code)
    base = "qwen3_4b_math/train.yaml" if "use_vllm" in fields else "embedded.yaml"  # an example that they fit
    fields = {**read_file(ROOT / "examples" / base), **fields, "output_dir": str(folder)}
    if "prompt_prior" in fields:  # the column that the problems of the example have
        fields["prompt_prior"]["column"] = "teacher_rate"
    try:
        if "compare" in fields:
            fields = {**read_file(ROOT / "examples" / "embedded_compare.yaml"), **fields}
            file = folder / "compare.yaml"
            file.write_text(yaml.safe_dump(fields))
            plan(file).check()
            return []
        run = parse_fields({**fields, "use_cpu": True}, DPPOConfig, without_gpu=True)
        return [finding.text for finding in dry_run(run) if finding.kind == "wrong"]
    except ConfigError as error:
        return [str(error)]


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "yaml" and not b.marked], ids=lambda b: b.place)
def test_settings_pass_a_dry_run(block, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert setting_problems(block, tmp_path) == []


@pytest.mark.parametrize(
    "wrong", ["reward_funcs: [majority_votes]", "prompt_prune_rate: 2", "compare: {methods: {dpo: {}}}"]
)
def test_wrong_settings_are_found(wrong, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    (block,) = all_blocks(ROOT / "README.md", f"```yaml\n{wrong}\n```\n")
    assert setting_problems(block, tmp_path)


def test_every_block_is_run_or_says_why_it_is_not():
    assert {block.place: block.language for block in BLOCKS if block.language not in LANGUAGES} == {}
    files = (ROOT / "tests" / "test_docs.py", ROOT / "answer-judge" / "tests" / "test_judge_readme.py")
    found = "".join(path.read_text() for path in files)
    assert [block.place for block in BLOCKS if block.test and f"def {block.test}(" not in found] == []
    for block in BLOCKS:
        if block.language == "json":
            json.loads(block.code)
    text = "<!-- not run: a reason -->\n```python\n1/0\n```\n\n<!-- not run: -->\n```python\n1/0\n```\n"
    assert [block.marked for block in all_blocks(ROOT / "README.md", text)] == [True, False]
