"""The benchmark of supervised fine-tuning: its loss is the model's own, and a target counts from when it is reached."""

import json

import pytest
import torch

from benchmarks.learning import supervised as bench


def test_the_loss_is_the_models_own_over_all_held_out_tokens(tmp_path):
    rows = [
        {"problem": f"{i} + {i}?", "answer": str(2 * i), "solution": f"It is {2 * i}.\n" * (i + 1)} for i in range(8)
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = bench.task_of(str(tmp_path / "p.jsonl"), quick=True)
    model = bench.build_model(0, bench.model_config(len(task.tokenizer), longest=256, pad=0, end=3))
    total, count = 0.0, 0
    for ids, prompt in task.held_out:
        labels = torch.tensor([[-100] * prompt + ids[prompt:]])
        total += model(input_ids=torch.tensor([ids]), labels=labels).loss.item() * (len(ids) - prompt)
        count += len(ids) - prompt
    assert bench.held_out_loss(model, task) == pytest.approx(total / count, rel=1e-5)
