"""``dppo eval --engine vllm`` beside ``--engine transformers``: the same texts and verdicts in float32."""

import json

from conftest import question, run

PROBLEMS = [{"problem": question(i), "answer": str(i + i % 3 + (i == 7))} for i in range(8)] + [
    {"problem": f"{i}*{i}-{i}=?", "answer": str(i)} for i in range(8, 24)
]
"""Eight that are known by heart, one of them with another answer, and sixteen that are not."""


def test_texts_and_verdicts_are_those_of_transformers_right_and_wrong(answering, tmp_path):
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    found = {}
    for engine in ("vllm", "transformers"):
        words = ["--benchmarks", f"mine={tmp_path / 'mine.jsonl'}", "--prompt_template", "{problem}"]
        words += ["--engine", engine, "--output", tmp_path / engine]
        words += ["--temperature", "0", "--samples", "1", "--max_new_tokens", "24"]
        run("-m", "dppo.lab.cli.main", "eval", answering, *words)
        lines = (tmp_path / engine / "samples.jsonl").read_text().splitlines()
        found[engine] = sorted(map(json.loads, lines), key=lambda sample: sample["id"])
    samples = found["vllm"]
    print(samples[:2])
    assert len(samples) == len(PROBLEMS) and samples == found["transformers"]
    assert {"right", "wrong"} <= {sample["reason"] for sample in samples}
