"""The command on problems whose answer is a program, with the real sandbox and an engine without a model."""

import json
from pathlib import Path

import pytest
from evaluation_fakes import fake_engine, sample_lines

from answer_judge.evaluation import Generated, command, pass_at_k, read_results

HUMANEVAL = Path(__file__).parents[1] / "problems" / "code_humaneval.jsonl"
ROWS = [json.loads(line) for line in HUMANEVAL.read_text().splitlines()]


def answer(request, sampling):
    """A known solution for two seeds of three of the first problems, a function without an answer for the last one."""
    asked = "".join(map(chr, request.prompt))
    row = next(row for row in ROWS if f"def {row['entry_point']}(" in asked)
    body = row["canonical_solution"] if row != ROWS[-1] and request.seed % 3 else "    return None\n"
    return Generated(f"```python\n{row['prompt']}{body}```", 20, "stop")


def test_pass_at_k_of_programs_is_unbiased(tmp_path, monkeypatch, confined, capsys):
    monkeypatch.setattr(command, "load_engine", lambda name, spec: fake_engine(answer))
    (tmp_path / "HumanEval.jsonl").write_text(HUMANEVAL.read_text())
    words = f"model --benchmarks humaneval --data {tmp_path} --output {tmp_path / 'out'} --samples 4 --k 1,2,4"
    assert command.main([*words.split(), "--program_cpu_seconds", "2", "--workers", "1"]) == 0
    assert "not the standard set: 3 problems instead of 164" in capsys.readouterr().out
    found = read_results(tmp_path / "out")["benchmarks"]["humaneval"]
    lines = [json.loads(line) for line in sample_lines(tmp_path / "out")]
    right = {id: sum(x["reason"] == "right" for x in lines if x["id"] == id) for id in {x["id"] for x in lines}}
    assert len(lines) == 12 and 0 < sum(right.values()) < 12 and found["outcomes"]["right"] == sum(right.values())
    for k in (1, 2, 4):
        assert found[f"pass@{k}"]["value"] == pytest.approx(sum(pass_at_k(4, n, k) for n in right.values()) / 3)
