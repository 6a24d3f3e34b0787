"""What docs/evaluation.md says of benchmarks, verdicts and figures is what the library does."""

import re
from pathlib import Path

import pytest

from answer_judge.evaluation import BENCHMARKS, parse_benchmark
from answer_judge.evaluation.sampling import Sampling

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evaluation.md").read_text()
CELLS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]


def test_table_of_benchmarks():
    rows = {cells[0].strip("`"): cells for cells in CELLS if len(cells) == 7 and cells[0].startswith("`")}
    assert len(rows) >= 6  # a new record need not be in the table; what is there must be true
    for name, (_, problems, samples, file, hub, *_) in rows.items():
        record = BENCHMARKS[name]
        assert (int(problems.replace(",", "")), int(samples)) == (record.problems, record.samples)
        assert file.strip("`") == record.file and hub == (record.hub or "").split(":")[0]


def test_template_and_sampling():
    assert BENCHMARKS["gsm8k"].template in PAGE
    default = Sampling()
    assert f"temperature {default.temperature}, top_p {default.top_p}, no top_k, 2,048 new tokens" in PAGE
    assert (default.top_k, default.max_new_tokens) == (0, 2048)


VERDICTS = [
    (text, cells[1].strip("`"))
    for cells in CELLS
    if len(cells) == 3 and cells[1].strip("`") in ("right", "wrong", "no_answer", "unparsed")
    for text in re.findall(r"`([^`]+)`", cells[0])
]


@pytest.mark.parametrize(("text", "reason"), VERDICTS)
def test_verdicts_on_the_example(text, reason, verifier):
    assert verifier.verify(text, "5").reason == reason


def test_every_verdict_is_in_the_table():
    assert {reason for _, reason in VERDICTS} == {"right", "wrong", "no_answer", "unparsed"} and len(VERDICTS) == 12


def test_commands_name_things_that_exist():
    for text in re.findall(r"--benchmark (\S+)", PAGE):
        if "=" in text and "FILE" not in text:
            parse_benchmark(text)
