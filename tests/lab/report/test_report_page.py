import json
import re
import shutil

import pytest
import report_folders as made
from refusals import refused

import dppo_lab.report.page as page_module
from dppo.errors import ConfigError
from dppo_lab.report import write_report


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    comparison = shutil.copytree(made.SAMPLE, folder / "cmp")
    path = comparison / "runs" / "dppo" / "seed_1" / "run.json"
    path.write_text(json.dumps(made.about_run("dppo", 1, status="failed", error="OutOfMemoryError: 3 GB short")))
    return write_report([comparison], folder / "out" / "page.html")


@pytest.fixture(scope="module")
def page(written):
    return written.page.read_text(encoding="utf-8")


def test_every_panel_is_there_and_linked(page):
    panels = ["table", "accuracy", "seconds", "pruning", "prompts", "rows", "completions", "runs", "settings"]
    assert re.findall(r'<section id="(\w+)">', page) == panels
    assert [panel for panel in panels if f'href="#{panel}"' not in page] == []


def test_the_page_needs_no_network_and_no_script(page):
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert f'content="{policy}"' in page
    assert "<script" not in page
    assert set(re.findall(r'(?:src|href)="([^"#]{0,14})', page)) <= {"data:,", "data:image/png", ""}
    assert "@import" not in page
    assert "url(http" not in page


def test_what_was_asked_for_is_in_it(page):
    there = ("seed 1 failed", "OutOfMemoryError: 3 GB short", "2 of 3", "learning_rate", "Xeon(R) Processor", "2.13.0")
    assert [words for words in (*there, "eprint = {2603.04135}", "80 of 80") if words not in page] == []
    assert all(re.search(rf"\b{name}\b", page) for name in ("trl", "grpo", "cppo", "dppo"))
    assert not any(words in page for words in ("record_completions", "not show", "damaged"))


def test_figures_lie_beside_the_page_as_png_and_svg(written):
    assert written.missing == ()
    assert {path.parent.name for path in written.figures} == {"page_figures"}
    assert sorted({path.suffix for path in written.figures}) == [".png", ".svg"]
    assert len(written.figures) == 2 * (4 + 1 + 6 + 2 + 2)
    assert all(path.stat().st_size > 1000 for path in written.figures)
    assert (written.page.parent / "page_figures" / "accuracy-seconds.png").read_bytes().startswith(b"\x89PNG")


def test_one_run_has_the_panels_that_make_sense_for_one_and_the_same_bytes_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "as_png", lambda figure: b"")  # slow, and not in the page
    run = made.write_run(tmp_path / "one", updates=20)
    written = write_report([run], tmp_path / "one.html")
    before = written.page.read_bytes()
    assert write_report([run], tmp_path / "one.html").page.read_bytes() == before
    page = written.page.read_text(encoding="utf-8")
    assert "Seconds per update" in page
    assert "dppo compare CONFIG.yaml" in page
    assert "What it took to reach the target" not in page
    assert 'id="of-all"' not in page
    assert written.missing == ()


def test_a_run_with_logs_alone_makes_a_page_that_says_what_is_missing(tmp_path):
    made.write_lines(tmp_path / "old" / "metrics.jsonl", [{"step": 1, "loss": 0.1}])
    written = write_report([tmp_path / "old"], tmp_path / "page.html")
    page = written.page.read_text(encoding="utf-8")
    assert "<svg" not in page
    assert page.count('class="missing"') == len(written.missing) + 4
    assert "record_completions: 16" in page
    assert "No configuration" in page


def test_text_is_a_path_and_an_output_that_cannot_be_is_refused(tmp_path):
    run = tmp_path / "run"
    made.write_lines(run / "metrics.jsonl", [{"step": 1, "loss": 0.1}])
    assert write_report(str(run), str(tmp_path / "page.html")).page.exists()
    assert f"dppo report {run} --output {tmp_path / 'page.html'}" in (tmp_path / "page.html").read_text()
    assert "--output" not in write_report(run, run / "report.html").page.read_text()
    refusals = (([run], "page.pdf", "page.html"), ([], "p.html", "dppo report"), ([run], ".", "report.html"))
    for folders, output, named in refusals:
        with refused(ConfigError, named):
            write_report(folders, tmp_path / output)
