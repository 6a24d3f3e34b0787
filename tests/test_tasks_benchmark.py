"""What the benchmark of the task with silent groups reads off rewards."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.learning import tasks
from dppo_lab.demo.task import SILENT, make_split

ROOT = Path(__file__).parents[1]


def looks(*rows):
    """(P, 8) rewards of prompts that are right so many times of 8."""
    return torch.stack([(torch.arange(8) < right).double() for right in rows])


def test_kinds_are_told_by_answers_and_lengths():
    kinds = [tasks.kind_of(problem, SILENT) for problem in make_split(0, train=400, task=SILENT).train]
    assert {kind: kinds.count(kind) for kind in tasks.KINDS} == {"mastered": 200, "live": 120, "wrong_gold": 80}
    sure = replace(SILENT, wrong_golds=False)
    assert "wrong_gold" not in {tasks.kind_of(each, sure) for each in make_split(0, train=400, task=sure).train}


def test_what_is_silent_and_stays_so_by_hand():
    """Of 5 prompts 4 are silent first; 3 of these later, when the live one is too: 4 in 5 again, of which 3 stay."""
    first, second, third = looks(8, 8, 0, 0, 4), looks(8, 7, 0, 0, 8), looks(8, 8, 0, 1, 7)
    silent_EP = [tasks.silent(each) for each in (first, second, third)]
    assert [each.tolist() for each in silent_EP] == [
        [True, True, True, True, False],
        [True, False, True, True, True],
        [True, True, True, False, False],
    ]
    assert tasks.still_silent(silent_EP) == [0.75, 0.5]
    kinds = ["mastered", "mastered", "wrong_gold", "wrong_gold", "live"]
    row = tasks.seen([first, second, third], kinds)
    assert row["dead"] == pytest.approx([0.8, 0.8, 0.6]) and row["dead_end"] == pytest.approx(0.6)
    assert row["right_live_start"] == 0.5 and row["right_live_end"] == 7 / 8 and row["silent_live"] == [0.0, 1.0, 0.0]
    assert row["right_mastered_end"] == 1.0 and row["right_wrong_gold_end"] == 1 / 16
    assert [row[f"share_{kind}"] for kind in tasks.KINDS] == pytest.approx([0.4, 0.2, 0.4])


def test_mastered_problems_of_the_file_stay_mastered():
    rows = json.loads((ROOT / "benchmarks" / "results" / "tasks.json").read_text())["rows"]
    found, rare = ([row for row in rows if row["task"] == name] for name in tasks.FIELDS)
    assert min(len(found), len(rare)) >= 3
    mastered = [row[f"right_mastered_{end}"] for row in found for end in ("start", "end")]
    assert min(mastered) > 0.998 and sum(mastered) / len(mastered) >= 0.999
