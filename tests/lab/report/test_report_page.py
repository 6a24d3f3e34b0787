"""The page of a report: panels, contents, and no network."""

import json
import re
import shutil

import report_folders as made
from refusals import refused

from dppo.errors import ConfigError
from dppo.lab.report import write_report


def test_a_comparison_has_every_panel_what_was_asked_for_and_needs_no_network(tmp_path):
    comparison = shutil.copytree(made.SAMPLE, tmp_path / "cmp")
    path = comparison / "runs" / "dppo" / "seed_1" / "run.json"
    path.write_text(json.dumps(made.about_run("dppo", 1, status="failed", error="OutOfMemoryError: 3 GB short")))
    written = write_report(comparison, tmp_path / "page.html")
    page = written.page.read_text(encoding="utf-8")
    assert written.missing == () and page.count("<img ") == 2 + 1 + 3
    panels = ["table", "accuracy", "seconds", "pruning", "settings"]
    assert re.findall(r'<section id="(\w+)">', page) == panels
    assert [panel for panel in panels if f'href="#{panel}"' not in page] == []
    there = ("dppo 2 of 3", "OutOfMemoryError: 3 GB short", "2 of 3", "learning_rate", "Xeon(R) Processor", "2.13.0")
    assert [words for words in there if words not in page] == []
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page and "<script" not in page
    assert set(re.findall(r'(?:src|href)="([^"#]{0,14})', page)) <= {"data:,", "data:image/svg", ""}


def test_one_run_has_the_same_bytes_each_time(tmp_path):
    run = made.write_run(tmp_path / "one", updates=20)
    written = write_report(run, tmp_path / "one.html")
    before = written.page.read_bytes()
    assert write_report(run, tmp_path / "one.html").page.read_bytes() == before and written.missing == ()
    assert b"dppo compare CONFIG.yaml" in before


def test_logs_alone_make_a_page_that_says_what_is_missing(tmp_path):
    """As a script leaves them. Text is a path, and an output that cannot be is refused."""
    run = tmp_path / "old"
    made.write_lines(run / "metrics.jsonl", [{"step": 1, "loss": 0.1}])
    written = write_report(str(run), str(tmp_path / "page.html"))
    page = written.page.read_text(encoding="utf-8")
    assert "<img " not in page and page.count('class="missing"') == len(written.missing) + 2
    assert "No configuration" in page and f"dppo report {run} --output {tmp_path / 'page.html'}" in page
    assert "--output" not in write_report(run, run / "report.html").page.read_text()
    for output, named in (("page.pdf", "page.html"), (".", "report.html")):
        with refused(ConfigError, named):
            write_report(run, tmp_path / output)
