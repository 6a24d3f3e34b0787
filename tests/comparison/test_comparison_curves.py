"""Curves: what logs say, what a stopped run repeated, and what is read off between points."""

import json
import math

import pytest

from dppo.comparison.curves import Point, accuracy_at, amount_to, curve_of, phases_of, read_logs
from dppo.errors import EvaluationError


def record(step, accuracy=None, **more):
    totals = {"total/seconds": 10.0 * step, "total/rollouts": 100 * step, "total/tokens_trained": 7 * step}
    return {"step": step, **totals, **({} if accuracy is None else {"eval/average/pass@1": accuracy}), **more}


def written(path, records, tail=""):
    path.write_text("".join(json.dumps(each) + "\n" for each in records) + tail)
    return path


CURVE = curve_of([record(0, 0.2), record(5, 0.4), record(10, 0.3), record(20, 0.8)])


def test_points_are_evaluations():
    assert CURVE[1] == Point(step=5, seconds=50.0, rollouts=500, tokens_trained=35, accuracy=0.4)
    assert curve_of([record(1), record(2)]) == []
    assert len(curve_of([record(5, 0.4), record(5, 0.5)])) == 1, "the last of a step"


def test_an_evaluation_without_totals():
    with pytest.raises(EvaluationError, match="step 5 has no total/seconds"):
        curve_of([{"step": 5, "eval/average/pass@1": 0.5}])


def test_what_a_stopped_run_repeated_is_left_out(tmp_path):
    path = written(tmp_path / "metrics.jsonl", [record(5, 0.1), record(10, 0.9), record(15, 0.9), record(10, 0.2)])
    assert [(r["step"], r["eval/average/pass@1"]) for r in read_logs(path)][1:] == [(10, 0.9), (10, 0.2)]
    assert [(p.step, p.accuracy) for p in curve_of(read_logs(path))] == [(5, 0.1), (10, 0.2)]


def test_a_cut_off_last_line_and_a_damaged_one(tmp_path):
    assert len(read_logs(written(tmp_path / "a.jsonl", [record(5)], '{"step": 1'))) == 1
    with pytest.raises(EvaluationError, match="line 1 is damaged"):
        read_logs(written(tmp_path / "b.jsonl", [], "nonsense\n" + json.dumps(record(1)) + "\n"))
    with pytest.raises(EvaluationError, match="cannot be read"):
        read_logs(tmp_path / "none.jsonl")


def test_read_off_on_straight_lines():
    """By hand: at step 2.5 half of the way from .2 to .4; at 125 s a quarter of .3 to .8."""
    assert accuracy_at(CURVE, "step", 2.5) == pytest.approx(0.3)
    assert accuracy_at(CURVE, "seconds", 125.0) == pytest.approx(0.3 + 0.25 * 0.5)
    assert accuracy_at(CURVE, "rollouts", 2000) == pytest.approx(0.8)
    assert accuracy_at(CURVE, "step", 21) is None
    assert accuracy_at(CURVE[:1], "step", 0) == 0.2


def test_amounts_to_a_target():
    """By hand: .35 is first passed three quarters of the way from step 0 to 5, however low it falls later."""
    assert amount_to(CURVE, 0.35, "step") == pytest.approx(3.75)
    assert amount_to(CURVE, 0.35, "seconds") == pytest.approx(37.5)
    assert amount_to(CURVE, 0.55, "tokens_trained") == pytest.approx(70 + 0.5 * 70)
    assert amount_to(CURVE, 0.1, "seconds") == 0.0
    assert amount_to(CURVE, 0.9, "seconds") == math.inf


def test_phases_are_means_of_the_steps_between_logs():
    """By hand: 5 steps of 2 s, then 10 of 1 s."""
    logs = [record(5, **{"time/rollout": 2.0}), record(10, 0.3), record(15, **{"time/rollout": 1.0})]
    assert phases_of(logs) == {"rollout": pytest.approx(20.0)}
