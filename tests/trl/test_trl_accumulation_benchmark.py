"""The benchmark of accumulation: trainers take turns over the same completions, and its rows have every figure."""

import json
import sys
from dataclasses import replace

from benchmarks.speed import accumulation

SMALLEST = replace(accumulation.QUICK, completions=16, accumulations=(2,))
FIELDS = {"trainer", "accumulation", "passes", "needed", "seconds", "saved_true", "saved_printed"}


def test_the_command_prints_a_line_and_writes_a_row_for_each_case(tmp_path, monkeypatch, capsys):
    output = tmp_path / "accumulation.json"
    monkeypatch.setattr(accumulation, "QUICK", SMALLEST)
    monkeypatch.setattr(sys, "argv", ["accumulation", "--quick", "--output", str(output)])
    accumulation.main()
    printed, found = capsys.readouterr().out.splitlines(), json.loads(output.read_text())
    assert found["environment"]["seeds"] == [accumulation.SEED] and len(printed) == 2 + len(found["rows"])
    assert found["equal_passes"]["ratio_median"] > 0
    rows = {(row["trainer"], row["budget"]): row for row in found["rows"]}
    assert set(rows) == {("grpo", 256), ("sft", 256), ("dpo", 256), ("grpo", "default")}
    for row in rows.values():
        assert row.keys() >= FIELDS and row["saved_true"] < 1 and row["seconds"] > 0
        assert row["needed"] <= row["passes"] <= row["passes_unpruned"]
        assert (row["saved_printed"] is None) == (row["trainer"] != "grpo")
    assert rows["dpo", 256]["needed"] > rows["sft", 256]["needed"] >= 1, "a pair is two sequences"
    assert 0 < rows["grpo", 256]["saved_printed"] < 1 and rows["grpo", 256]["rollout_cost"] is not None


def test_the_published_metrics_keep_what_is_promised():
    """Passes are rows that hold something, 'saved' is within 5 points of the truth, and costs ignore the calls."""
    found = json.loads(accumulation.RESULT.read_text())
    for trainer in ("grpo", "sft", "dpo"):
        rows = [row for row in found["rows"] if row["trainer"] == trainer and row["budget"] != "default"]
        assert [row["accumulation"] for row in rows] == [1, 2, 4, 8, 16, 32, 64]
    assert all(row["passes"] == row["needed"] for row in found["rows"])
    printed = [row for row in found["rows"] if row["saved_printed"] is not None]
    assert len(printed) == 14 and all(abs(row["saved_true"] - row["saved_printed"]) < 0.05 for row in printed)
    costs = [row["rollout_cost"] for row in printed if row["budget"] != "default"]
    assert max(costs) <= 2 * min(costs)
    assert abs(found["equal_passes"]["ratio_median"] - 1) < 0.1


def test_completions_are_the_same_with_both_rewards():
    prompts = [accumulation.text_of(7, 8)] * accumulation.GROUP
    first, again = (accumulation.scripted(prompts, None) for _ in range(2))
    assert first == again and len({tuple(ids) for ids in first["completion_ids"]}) == accumulation.GROUP
    for rewards, flat in ((accumulation.reward, 1), (accumulation.different, 4)):
        given = rewards(completions=[""] * 8, alive=[False] * 4 + [True] * 4)
        assert len(set(given[4:])) == 4 and len(set(given[:4])) == flat
