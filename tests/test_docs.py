"""Code on the pages runs as it stands, and what pages name is there: files, imports, commands, flags, fields."""

import ast
import importlib
import inspect
import io
import re
import sys
from contextlib import redirect_stdout, suppress
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import yaml

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "trl"))

from conftest_trl import tiny_path  # noqa: E402
from test_arrows import ALLOWED  # noqa: E402
from trl_recorder_runs import make  # noqa: E402

from dppo.cli.main import COMMANDS, main  # noqa: E402
from dppo.objective import Tokens  # noqa: E402
from dppo.types import Rewards  # noqa: E402

__all__ = ["tiny_path"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language on a page, in order."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [code for name, code in fenced if name == language]


def run(page: Path, found: list[str], names: dict) -> None:
    """Run blocks one after the other in the same names."""
    for block in found:
        exec(compile(block, page.name, "exec"), names)


@pytest.fixture(scope="module")
def extending():
    """The names that docs/extending.md leaves behind, its engine among them."""
    page, names = ROOT / "docs" / "extending.md", {"__name__": "extending"}
    found = blocks(page, "python")
    assert len(found) >= 9
    run(page, found, names)
    return names


def test_the_example_for_a_pencil_is_right():
    """The code runs, and the table beside it has its figures."""
    page, names = ROOT / "docs" / "estimators.md", {}
    run(page, blocks(page, "python")[:1], names)
    draws, gradient = names["draws"], names["gradient"]
    unweighted = (draws * gradient).sum(1)
    columns = [names["estimates"], unweighted / 4, unweighted / 2]
    lines = [line for line in page.read_text().splitlines() if line.startswith(("| the 2 |", "| the 1 |", "| mean |"))]
    for row, line in enumerate(lines):
        values = [column.mean() if row == 2 else column[row] for column in columns]
        said = [float(cell.strip(" *").rpartition("= ")[2]) for cell in line.split("|")[2:-1]]
        assert said == [float(value) for value in values]
    assert len(lines) == 3


def test_the_callback_logs_its_metric(extending, tiny_path, tmp_path):
    trainer, _ = make(tiny_path, tmp_path, recorded=False, max_steps=1)
    trainer.add_callback(extending["LongestKept"](trainer))
    trainer.train()
    logged = [record for record in trainer.state.log_history if "mine/longest_kept" in record]
    assert len(logged) == 1 and logged[0]["mine/longest_kept"] == extending["longest_kept"](trainer.in_use.plan) > 0


def test_the_method_on_one_screen_runs_and_is_that_of_the_loop(extending):
    """The README's heart of a step, with the table of logits of docs/extending.md as the policy."""
    page = ROOT / "README.md"
    (heart,) = [block for block in blocks(page, "python") if "plan_step" in block]
    logits, answer, rolled_out = extending["logits"], extending["answer"], {}

    def roll_out(row_Q):
        row_N = row_Q.repeat_interleave(8)
        token_N = logits.detach()[row_N].softmax(1).multinomial(1, generator=torch.manual_seed(0))[:, 0]
        rolled_out.update(row_N=row_N, token_N=token_N)
        return Rewards.of_groups((token_N == answer[row_N]).double().view(-1, 8)), torch.ones_like(token_N)

    def forward(kept, advantage_B):
        logp = logits.log_softmax(1)[rolled_out["row_N"][kept], rolled_out["token_N"][kept]][:, None]
        mask = torch.ones_like(logp)
        return Tokens(logp_BT=logp, old_logp_BT=logp.detach(), advantage_B=advantage_B, mask_BT=mask)

    imported = {name: extending[name] for name in ("RolledOut", "plan_step", "step_streams", "micro_batch_loss")}
    values = {"source": extending["source"], "method": extending["method"], "seed": 0, "step": 100}
    logits.grad = None
    run(page, [heart], names := {**imported, **values, "roll_out": roll_out, "forward": forward})
    changed = logits.grad.abs().sum(1).nonzero()[:, 0]
    assert changed.tolist() == rolled_out["row_N"][names["kept"]].unique().tolist()
    assert 0 < len(names["kept"]) < len(rolled_out["row_N"])

    loop = (ROOT / "dppo" / "demo" / "loop.py").read_text()
    called = {ast.unparse(n.func).split(".")[-1] for n in ast.walk(ast.parse(heart)) if isinstance(n, ast.Call)}
    assert {name for name in called - {"roll_out", "forward"} if f"{name}(" not in loop} == set()


def wrong_imports(code: str) -> set[str]:
    """Names that are imported from this library and are not there."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dppo"):
            module = importlib.import_module(node.module)
            found |= {f"{node.module}.{n.name}" for n in node.names if not hasattr(module, n.name)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_imports_on_pages_are_there(page):
    assert set().union(*map(wrong_imports, blocks(page, "python"))) == set()


def test_the_readmes_trainer_takes_those_arguments():
    from dppo.trl import DPPOConfig, DPPOTrainer

    (block,) = [block for block in blocks(ROOT / "README.md", "python") if "DPPOTrainer(" in block]
    calls = {ast.unparse(n.func): n for n in ast.walk(ast.parse(block)) if isinstance(n, ast.Call)}
    given = {name: {word.arg for word in call.keywords} for name, call in calls.items()}
    assert given["DPPOConfig"] <= {field.name for field in fields(DPPOConfig)}
    known = {n for cls in DPPOTrainer.__mro__ for n in inspect.signature(cls.__init__).parameters}
    assert given["DPPOTrainer"] <= known


CHECKOUT = r"(?:dppo|tests|benchmarks|docs|examples)/[\w./]*\w"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_links_and_modules_that_a_page_names_are_there(page):
    text = page.read_text()
    named = {path for path in re.findall(rf"`({CHECKOUT})`", text) if not (ROOT / path).exists()}
    links = {link for link in re.findall(r"\]\((?!http)([^)#]+)", text) if not (page.parent / link).exists()}
    assert named | links == set()
    for dotted in re.findall(r"`(dppo(?:\.\w+)+)[`(]", text):
        assert importable(dotted), dotted


def importable(dotted: str) -> bool:
    """Whether this is a module, or a name in one."""
    module, _, name = dotted.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(dotted))
    except ModuleNotFoundError:
        return False


def chains(page: Path) -> list[list[set[str]]]:
    """Lines of arrows in blocks of a page, each as the parts that stand between its arrows."""
    lines = [line for block in blocks(page, "") for line in block.splitlines() if " <- " in line]
    return [[set(re.findall(r"\w+", parts)) for parts in line.split(" <- ")] for line in lines]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_arrows_on_pages_are_those_that_are_enforced(name):
    found = chains(ROOT / name)
    named = set().union(*(parts for chain in found for parts in chain))
    assert named <= ALLOWED.keys() and len(found) == 4
    if name == "CONTRIBUTING.md":
        assert named == ALLOWED.keys()
    for chain in found:
        for place, parts in enumerate(chain):
            later = set().union(*chain[place + 1 :])
            assert all(not ALLOWED[part] & later for part in parts), chain


def commands(page: Path) -> list[str]:
    """Every line that calls the command in a block without a language, lines that go on joined."""
    text = "\n".join([*blocks(page, ""), *blocks(page, "bash")]).replace("\\\n", " ")
    return [line.split(" #")[0] for line in text.splitlines() if re.match(r"(\w+=\S+ )*dppo ", line)]


@pytest.fixture(scope="module")
def flags():
    """Flags of each command, as its help says; those with a configuration take its fields too."""

    def of(*words: str) -> set[str]:
        with redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
            main([*words, "--help"])
        return set(re.findall(r"--\w+", printed.getvalue()))

    found = {name: of(name) for name in COMMANDS} | {"train": of("train", "--help_all")}
    return {
        **found,
        "compare": found["compare"] | of("compare", "--frozen") | found["train"],
        "verify": found["verify"] | found["train"],
    }


def test_commands_on_pages_have_those_flags(flags):
    found = [(page.name, line) for page in PAGES for line in commands(page)]
    assert len(found) > 20
    for page, line in found:
        name = line.split("dppo ")[1].split()[0]
        assert set(re.findall(r"(?<=\s)--\w+", line)) <= flags[name], (page, line)
    assert "--target" in flags["compare"] and "--no_such_flag" not in flags["compare"]


def test_settings_on_pages_are_fields(flags):
    found = [setting for page in PAGES for block in blocks(page, "yaml") for setting in yaml.safe_load(block).items()]
    assert len(found) > 5
    settings = {name for name, _ in found} | {
        name for key, value in found if key == "compare" for own in value["methods"].values() for name in own
    }
    assert {f"--{name}" for name in settings - {"compare"}} <= flags["train"]
