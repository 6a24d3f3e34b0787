"""``dppo eval --engine vllm`` beside ``--engine transformers``: the same texts and verdicts in float32."""

import json

import pytest
from conftest import question, run

PROBLEMS = [{"problem": question(i), "answer": str(i + i % 3 + (i == 7))} for i in range(8)] + [
    {"problem": f"{i}*{i}-{i}=?", "answer": str(i)} for i in range(8, 24)
]
"""Eight that are known by heart, one of them with another answer, and sixteen that are not."""


@pytest.fixture(scope="module")
def samples(answering, tmp_path_factory):
    """By engine, what every problem was answered with and the verdict."""
    folder, found = tmp_path_factory.mktemp("evaluation"), {}
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    for engine in ("vllm", "transformers"):
        words = ["--benchmarks", f"mine={folder / 'mine.jsonl'}", "--prompt_template", "{problem}", "--engine", engine]
        words += ["--temperature", "0", "--samples", "1", "--max_new_tokens", "24", "--output", folder / engine]
        run("-m", "dppo.lab.cli.main", "eval", answering, *words)
        lines = (folder / engine / "samples.jsonl").read_text().splitlines()
        found[engine] = sorted(map(json.loads, lines), key=lambda sample: sample["id"])
    return found


def test_texts_and_verdicts_are_those_of_transformers(samples):
    print(samples["vllm"][:2])
    assert len(samples["vllm"]) == len(PROBLEMS) and samples["vllm"] == samples["transformers"]


def test_some_are_right_and_some_are_not(samples):
    print([sample["reason"] for sample in samples["vllm"]])
    assert {"right", "wrong"} <= {sample["reason"] for sample in samples["vllm"]}
