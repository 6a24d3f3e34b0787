"""Python on the pages runs as it stands, and what pages name is there: files, links, imports, arguments."""

import ast
import contextlib
import inspect
import pkgutil
import re
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "trl"))

from pages import PAGES, all_blocks, blocks  # noqa: E402
from tiny_runs import LOG_ALL, SHORT, length_reward, logged, problems, scripted, tiny_path  # noqa: E402

from dppo.errors import ConfigError  # noqa: E402
from dppo.objective import Tokens  # noqa: E402
from dppo.trl import DPPOConfig, DPPOTrainer  # noqa: E402
from dppo.types import Rewards  # noqa: E402

__all__ = ["tiny_path"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """``ran(page)``: the names that the blocks of a page leave behind, all that are not marked, in an empty folder."""

    @cache
    def names_of(page: Path) -> dict:
        names = {"__name__": page.stem}
        with contextlib.chdir(tmp_path_factory.mktemp(page.stem)):
            for block in all_blocks(page):
                if block.language == "python" and not block.marked:
                    exec(compile(block.code, page.name, "exec"), names)
        return names

    return names_of


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_on_pages_runs(page, ran):
    found = [block for block in all_blocks(page) if block.language == "python"]
    assert len(ran(page)) > 2 or all(block.marked for block in found)


def test_the_example_for_a_pencil_is_right(ran):
    """The table beside the code has its figures."""
    page = ROOT / "docs" / "estimators.md"
    names = ran(page)
    unweighted = (names["draws"] * names["gradient"]).sum(1)
    columns = [names["estimates"], unweighted / 4, unweighted / 2]
    lines = [line for line in page.read_text().splitlines() if line.startswith(("| the 2 |", "| the 1 |", "| mean |"))]
    said = [[float(cell.strip(" *").rpartition("= ")[2]) for cell in line.split("|")[2:-1]] for line in lines]
    assert said == [list(map(float, row)) for row in zip(*((*each, each.mean()) for each in columns), strict=True)]


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("by_log_length", "rloo")]
EXTENDING = ROOT / "docs" / "extending.md"


@pytest.mark.parametrize("name", ["mine", "shortest", *SLOW])
def test_the_methods_of_the_page_train(name, ran, tiny_path, tmp_path):
    """Three steps of each; the biased one must be accepted."""
    method, biased = ran(EXTENDING)[name], name == "shortest"
    options = SHORT | LOG_ALL | {"output_dir": str(tmp_path), "per_device_train_batch_size": 16}
    if biased:
        with pytest.raises(ConfigError, match="no weight makes up"):
            DPPOTrainer(tiny_path, length_reward, DPPOConfig(**options), problems(8), method=method)
    args = DPPOConfig(**options, accept_bias=biased)
    trainer = DPPOTrainer(tiny_path, length_reward, args, problems(8), rollout_func=scripted, method=method)
    trainer.train()
    assert trainer.method == method and trainer.state.global_step == 3
    kept, live = (logged(trainer, f"prune/{share}_share") for share in ("kept", "live"))
    assert all(a < b if method.completions.rate else a == b for a, b in zip(kept, live, strict=True))


def test_the_method_on_one_screen_runs(ran):
    """The core of a step, with the table of logits of docs/extending.md as the policy."""
    (heart,) = [code for code in blocks(ROOT / "docs" / "how_it_works.md", "python") if "session.plan" in code]
    extending, rolled_out = ran(EXTENDING), {}
    logits, answer = extending["logits"], extending["answer"]

    def roll_out(row_Q):
        row_N = row_Q.repeat_interleave(8)
        token_N = logits.detach()[row_N].softmax(1).multinomial(1, generator=torch.manual_seed(0))[:, 0]
        rolled_out.update(row_N=row_N, token_N=token_N)
        return Rewards.of_groups((token_N == answer[row_N]).double().view(-1, 8)), torch.ones_like(token_N)

    def forward(kept, advantage_B):
        logp = logits.log_softmax(1)[rolled_out["row_N"][kept], rolled_out["token_N"][kept]][:, None]
        mask = torch.ones_like(logp)
        return Tokens(logp_BT=logp, old_logp_BT=logp.detach(), advantage_B=advantage_B, mask_BT=mask)

    names = {"RolledOut": extending["RolledOut"], "session": extending["session"]}
    names |= {"roll_out": roll_out, "forward": forward}
    logits.grad = None
    exec(compile(heart, "how_it_works.md", "exec"), names)
    changed = logits.grad.abs().sum(1).nonzero()[:, 0]
    assert changed.tolist() == rolled_out["row_N"][names["kept"]].unique().tolist()
    assert 0 < len(names["kept"]) < len(rolled_out["row_N"])


def test_the_readmes_trainer_takes_those_arguments():
    (block,) = [block for block in blocks(ROOT / "README.md", "python") if "DPPOTrainer(" in block]
    calls = {ast.unparse(n.func): n for n in ast.walk(ast.parse(block)) if isinstance(n, ast.Call)}
    given = {name: {word.arg for word in call.keywords} for name, call in calls.items()}
    assert given["DPPOConfig"] <= {field.name for field in fields(DPPOConfig)}
    known = {n for cls in DPPOTrainer.__mro__ for n in inspect.signature(cls.__init__).parameters}
    assert given["DPPOTrainer"] <= known


def test_tests_that_pages_name_are_there():
    """Pages about proofs name the test of each claim."""
    pages = (ROOT / "docs").glob("*.md")
    named = {name for page in pages for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))}
    files = [file for folder in ("tests", "tests_verl") for file in (ROOT / folder).rglob("test_*.py")]
    assert named and named <= {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_imports_of_a_page_are_there(page):
    links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
    nodes = [n for code in blocks(page, "python") for n in ast.walk(ast.parse(code)) if isinstance(n, ast.ImportFrom)]
    for node in nodes:
        if node.module.startswith(("dppo", "answer_judge")):
            assert all(pkgutil.resolve_name(f"{node.module}.{name.name}") is not None for name in node.names)
