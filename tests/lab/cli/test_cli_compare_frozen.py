"""``dppo compare --frozen``: prints every table, writes everything, and its exit code is the verdict."""

import json
from dataclasses import replace

import pytest
from wrong_weights import DOUBLED

from dppo.lab.cli import compare as command
from dppo.lab.frozen import lines
from dppo.lab.frozen.table import TITLES


@pytest.fixture
def quick(subject, monkeypatch):
    """The command on a small subject."""
    monkeypatch.setattr("dppo.lab.demo.subject.embedded_subject", lambda seed, prompts: subject)


def test_everything_is_printed_and_written(quick, tmp_path, capsys):
    words = "--frozen --rates 0.5 --draws 100 --methods trl,dapo,cppo,infobatch,dppo --output"
    assert command.main([*words.split(), str(tmp_path / "frozen.json")]) == 0
    text, saved = capsys.readouterr().out, json.loads((tmp_path / "frozen.json").read_text())
    assert [title for title in TITLES.values() if title not in text] == []
    assert "PASS 0 rows are biased without saying so" in text
    assert "declared cppo: completion pruning is biased" in text
    assert "…" not in text, "nothing is cut off"
    assert saved["passed"] and saved["draws"] == 100 and saved["rates"] == [0.5]
    rows = {(r["name"], r["level"], r["prompt_rate"], r["completion_rate"]): r for r in saved["rows"]}
    assert len(rows) == len(saved["rows"]) == 2 + 4 + 4
    assert rows["dppo", "prompts", 0.5, 0.0]["verdict"] == "unbiased"
    assert rows["cppo", "completions", 0.0, 0.5]["bias_low"] is None


def test_a_bias_that_is_not_declared_fails(quick, monkeypatch, capsys):
    honest = lines.as_embedded()

    def lying(name):
        method = honest(name)
        return replace(method, completions=replace(method.completions, weighting=DOUBLED))

    monkeypatch.setattr(lines, "as_embedded", lambda: lying)
    assert command.frozen(["--rates", "0.5", "--draws", "100", "--methods", "dppo"]) == 1
    text = capsys.readouterr().out
    assert "WRONG dppo (r_q 0, r_o 0.5)" in text and "FAIL 1 rows are biased without saying so" in text
