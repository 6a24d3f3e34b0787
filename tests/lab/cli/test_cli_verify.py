"""``dppo verify``: prints every check, writes the report, and its exit code is the verdict."""

import json
from functools import partial

import pytest

from dppo.lab.cli import verify as command
from dppo.lab.cli.main import main
from dppo.lab.frozen import variance
from dppo.methods import METHODS
from dppo.verification import checks
from dppo.verification.checks import above, at_most

FOUND = {
    "enumeration": [at_most("1 completions, dppo: every outcome", 3e-17, 1e-12, checks.BIAS)],
    "token": [
        at_most("1 tokens, dppo, cuts: every outcome", 2e-16, 1e-12, checks.BIAS),
        above("5 control: cuts by what is sampled later, dppo_threshold: every outcome", 0.21, 1e-12, checks.BIAS),
    ],
    "round": [],
    "draw": [at_most("2 prompts, dppo, grpo: 160 draws", -2.1e-05, 3.9e-04, f"{checks.SQUARED} +- 2.8e-05")],
    "parity": [at_most("3 nothing pruned, equal to TRL: grpo", 1e-7, 1e-5, checks.DIFFERENCE)],
}
"""Instead of the checks that take long, by the part of ``verify`` that finds them; among them the longest lines."""


@pytest.fixture
def quick(subject, monkeypatch):
    """The command on a small subject, its long checks found already; gives the methods that each was asked for."""
    asked = []
    monkeypatch.setattr("dppo.lab.demo.subject.embedded_subject", lambda: subject)
    monkeypatch.setattr(variance, "variance_table", partial(variance.variance_table, draws=4))
    for part, found in FOUND.items():
        given = lambda *of, found=found: asked.append(of) or found  # noqa: E731
        monkeypatch.setattr(f"dppo.verification.checks.{part}_checks", given)
    return asked


def test_all_passes_and_everything_is_printed_and_written(quick, tmp_path, capsys):
    words = ["verify", "--draws", "160", "--variance", "--output", str(tmp_path / "report.json")]
    assert main(words) == 0
    assert quick[0] == ((METHODS["dppo"], METHODS["dppo_threshold"]),) and len(quick) == len(FOUND)
    text, saved = capsys.readouterr().out, json.loads((tmp_path / "report.json").read_text())
    lines = text.splitlines()
    assert saved["passed"] and f"PASS all {len(saved['checks'])} checks" in text
    for check in saved["checks"]:
        (line,) = {line for line in lines if check["name"][2:] in line}
        assert line.startswith("PASS")
        assert f"{check['figure']:.2g}" in line and f"{check['bound']:.2g}" in line
        assert (" > " if "control" in check["name"] else " <= ") in line
    assert [title for title in (*command.SECTIONS.values(), *checks.UNITS) if title not in text] == []
    assert {*command.MEANINGS} == {*checks.UNITS} and all(meaning in text for meaning in command.MEANINGS.values())
    assert "proportional  abs(A) sqrt(length)" in text and "drawn at random" in text
    assert "…" not in text, "nothing is cut off"
    kept = ("subject", "passed", "checks", "variance", "ceilings", "failure_rate", "environment", "seconds")
    assert set(saved) == set(kept)
    assert set(saved["checks"][0]) == {"name", "figure", "bound", "passed", "what"}
    assert {"torch", "trl", "dppo"} <= set(saved["environment"]["versions"]) and len(saved["variance"]) > 30
    (ceiling,) = saved["ceilings"]  # six prompts are too few for one of theirs
    assert ceiling["level"] == "completions" and 1 <= ceiling["low"] <= ceiling["value"] <= ceiling["high"]
    assert f"pilot: pruning completions can save at most {ceiling['value']:.2f}x" in text


def test_the_table_of_variances_and_few_draws_are_asked_for(quick, capsys):
    assert main(["verify", "--draws", "160"]) == 0
    text = capsys.readouterr().out
    assert "proportional" not in text and "pilot: " in text and "160 draws" in text
    assert main(["verify", "--draws", "4"]) == 2 and "--draws 1000" in capsys.readouterr().err


def test_a_check_that_fails_and_a_declared_bias_are_printed(monkeypatch, capsys):
    checks = (at_most("1 right", 0.1, 1.0, "a distance"), at_most("1 wrong", 2.0, 1.0, "a distance"))
    monkeypatch.setattr("dppo.verification.verify.verify", lambda *given, **named: checks)
    monkeypatch.setattr("dppo.verification.verify.described", lambda *given: "")
    for part in ("variance_table", "pilot_ceilings"):
        monkeypatch.setattr(variance, part, lambda *given: ())
    monkeypatch.setattr("dppo.lab.demo.subject.embedded_subject", lambda: None)
    biased = METHODS["dppo_gdpo"].with_rates(prompt=0.5, completion=0.5)
    monkeypatch.setattr("dppo.methods.METHODS", {"dppo": biased, "dppo_threshold": METHODS["dppo"]})
    assert main(["verify"]) == 1
    text = capsys.readouterr().out
    assert "FAIL 1 of 2 checks" in text and text.count("FAIL  ") == 1
    assert "advantage is biased under prompt pruning" in text
