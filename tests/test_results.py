"""Tables of the pages follow the files of results, and an outdated page is found."""

import inspect
import json

import pytest
from cogapp import Cog

from benchmarks import pages
from benchmarks.learning import tables

READ = pages.read
KEYS = ("strength", "completion_rate", "prompt_rate", "beta", "entropy_coef", "router_coef", "rate", "prune", "keep")
"""Numbers of the files that select a row."""
DRAWN = {
    name: draw
    for name, draw in inspect.getmembers(pages, inspect.isfunction)
    if draw.__module__ == pages.__name__
    and not name.startswith("_")
    and inspect.signature(draw).return_annotation is str
    and not inspect.signature(draw).parameters
}


def changed(found, name=""):
    """The same record with every figure changed."""
    if isinstance(found, dict):
        return {key: changed(value, key) for key, value in found.items()}
    if isinstance(found, list):
        return [changed(value) for value in found]
    return 0.8 * found + 0.01 if isinstance(found, float) and name not in KEYS else found


@pytest.mark.parametrize("name", sorted(DRAWN.keys() - {"chat_model"}))
def test_a_changed_figure_changes_the_table(name, monkeypatch):
    table = DRAWN[name]()
    monkeypatch.setattr(pages, "read", lambda name: changed(READ(name)))
    other = DRAWN[name]()
    assert other != table and table.count("\n") == other.count("\n")


def test_an_outdated_page_is_found(tmp_path):
    """As `make lint` finds it. The page is redrawn, and then passes."""
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- [[[cog import cog; from benchmarks import pages; cog.outl(pages.ranks()) ]]] -->\n"
        f"{pages.ranks().replace('.48', '.49')}\n<!-- [[[end]]] -->\n"
    )
    check = ["cog", "--check", "--verbosity=0", str(page)]
    assert Cog().main(check) == 5
    assert Cog().main(["cog", "-r", "--verbosity=0", str(page)]) == 0
    assert pages.ranks() in page.read_text() and Cog().main(check) == 0


def test_the_section_on_a_chat_model_has_its_runs(tmp_path, monkeypatch):
    ratio = {"median": 2.5, "low": 2.0, "high": 3.0, "at_most": 2.5, "missing": None, "per_seed": {"0": [2.5, 2.5]}}
    method = {
        "runs": [{}, {}],
        "against_trl": ratio,
        "step_seconds": {"whole": 9.0, "rollout": 5.0, "forward_backward": 3.0},
        "chosen": {"silent_share": 0.25},
        "final_accuracy": {"mean": 0.5, "low": 0.4, "high": 0.6},
    }
    record = {"regimes": {"no_kl": {"methods": {"default": method}}}}
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    with pytest.raises(FileNotFoundError):
        pages.chat_model()
    (tmp_path / "smollm2.json").write_text(json.dumps(record))
    section = pages.chat_model()
    assert section.startswith("\n## A real chat model\n") and tables.chat_model(record["regimes"]) in section
    assert "| no KL term | dppo, default | 2 | 2.50 [2.00, 3.00] | not run | 9.0 |" in section
