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


def test_a_target_is_reached_on_the_line_between_two_evaluations():
    curve = [(1.0, 3.0), (2.0, 2.0), (3.0, 2.5)]
    assert bench.reached(curve, 2.2) == pytest.approx(1.8) and bench.reached(curve, 2.0) == 2.0
    assert bench.reached(curve, 3.0) == 1.0 and bench.reached(curve, 1.9) is None


def test_the_best_rate_is_there_soonest_and_an_end_of_the_grid_grows():
    """What never gets there is behind all that do, and the lower loss ahead among those."""
    seconds = {4e-3: 9.0, 8e-3: 5.0, 16e-3: 7.0}

    def tried(rate):
        return bench.Tried(seconds=seconds.get(rate, float("inf")), loss=rate)

    best, found = bench.best_rate(tried)
    assert best == 8e-3 and sorted(found) == [*bench.RATES, 8e-3, 16e-3]
    seconds.clear()
    assert bench.best_rate(lambda rate: bench.Tried(seconds=float("inf"), loss=abs(rate - 2e-3)))[0] == 2e-3
