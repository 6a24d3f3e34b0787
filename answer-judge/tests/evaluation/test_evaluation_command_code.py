"""The command on problems whose answer is a program, with the real sandbox and an engine without a model."""

import json
from pathlib import Path

import pytest
from evaluation_fakes import fake_engine

from answer_judge.evaluation import Generated, command, pass_at_k, read_results

TESTS = Path(__file__).parents[1]
HUMANEVAL = TESTS / "problems" / "code_humaneval.jsonl"
SOLUTIONS = {row["entry_point"]: row for row in map(json.loads, HUMANEVAL.read_text().splitlines())}


def answer(request, sampling):
    """A known solution for two seeds of three of two problems, the prompt's own function for the third one."""
    asked = "".join(map(chr, request.prompt))
    entry = next(name for name in SOLUTIONS if f"def {name}(" in asked)
    right = entry != "extremes" and request.seed % 3
    body = SOLUTIONS[entry]["canonical_solution"] if right else "    return None\n"
    return Generated(f"```python\n{SOLUTIONS[entry]['prompt']}{body}```", 20, "stop")


@pytest.fixture
def evaluated(tmp_path, monkeypatch, confined):
    def run(*words):
        monkeypatch.setattr(command, "load_engine", lambda name, spec: fake_engine(answer))
        given = f"--samples 4 --k 1,2,4 --program_cpu_seconds 2 --workers 1 --output {tmp_path / 'out'}"
        return command.main(["model", *words, *given.split()])

    return run


def test_pass_at_k_of_programs_is_unbiased(evaluated, tmp_path, capsys):
    (tmp_path / "HumanEval.jsonl").write_text(HUMANEVAL.read_text())
    assert evaluated("--benchmarks", "humaneval", "--data", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "note humaneval: not the standard set: 3 problems instead of 164" in printed
    assert "programs run with" in printed and "CPU seconds" in printed
    results = read_results(tmp_path / "out")
    found = results["benchmarks"]["humaneval"]
    lines = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    right = {id: sum(x["reason"] == "right" for x in lines if x["id"] == id) for id in {x["id"] for x in lines}}
    assert len(lines) == 12 and right["Mine/2"] == 0 and 0 < sum(right.values()) < 12
    for k in (1, 2, 4):
        expected = sum(pass_at_k(4, count, k) for count in right.values()) / 3
        assert found[f"pass@{k}"]["value"] == pytest.approx(expected)
    assert found["outcomes"]["right"] == sum(right.values()) and sum(found["outcomes"].values()) == 12
    assert len(results["settings"]["graded_by"]["humaneval"]) == 16
