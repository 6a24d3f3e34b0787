"""The step benchmark compares like with like, and its phases are the whole of a step."""

import json
import sys
from dataclasses import replace

import pytest
from refusals import refused

from benchmarks.speed import step, step_report, turns

SHORT = replace(step.QUICK, easy=(2,), middle=(2,), hard=(3,))
SMALLEST = step.Setting(
    task=SHORT, warm_up_steps=60, prompts=4, generations=4, dataset=8, repetitions=2, max_new_tokens=24
)
PRUNED = step.CONTESTANTS[-1]


@pytest.mark.slow
def test_the_command_prints_bars_and_writes_every_field(tmp_path, monkeypatch, capsys):
    output = tmp_path / "step.json"
    monkeypatch.setattr(step, "QUICK_SETTING", SMALLEST)
    monkeypatch.setattr(step, "CONTESTANTS", (step.BASELINE, step.UNPRUNED, PRUNED))
    monkeypatch.setattr(sys, "argv", ["step.py", "--quick", "--output", str(output)])
    step.main()
    content, printed = json.loads(output.read_text()), capsys.readouterr().out
    assert set(content) == {"rows", "environment"}
    assert content["environment"]["seeds"] == [step.SEED]
    rows = content["rows"]
    for row in rows:
        assert tuple(row) == step_report.FIELDS
        assert row["lowest"] <= row["quartile_low"] <= row["median"] <= row["quartile_high"] <= row["highest"]
    phases = {(row["backend"], row["contestant"], row["phase"]) for row in rows if row["figure"] == "phase"}
    assert len(phases) == len(step.BACKENDS) * 3 * len(turns.PHASES)
    barred = [row for row in rows if row["bar"] is not None]
    assert {row["figure"] for row in barred} == {"ratio", "ratio_cpu", "overhead_phases", "overhead_net"}
    assert printed.count(" met\n") + printed.count(" MISSED\n") == len(barred) == 2 * len(step.BACKENDS) + 2
    assert all(row["same_completions"] for row in barred)


def steps_of(*metrics):
    """Steps of given total, prune and model seconds."""
    phases = dict.fromkeys(turns.PHASES, 0.0)
    return [
        turns.Step(
            seconds=total,
            cpu_seconds=total,
            phases=phases | {"prune": prune, "forward_backward": model, "other": total - prune - model},
            tokens=10,
            scored=5,
            seen={(1,): ((2,),)},
        )
        for total, prune, model in metrics
    ]


def test_ratio_and_overhead_of_known_steps():
    trl, ours = steps_of((2.0, 0.0, 1.9), (4.0, 0.0, 3.8)), steps_of((1.0, 0.02, 0.88), (1.0, 0.12, 0.66))
    ratio, *_ = step_report.ratio_records("replayed", trl, "ours", ours, bar=3.5)
    assert (ratio["median"], ratio["lowest"], ratio["highest"], ratio["met"]) == (3.0, 2.0, 4.0, False)
    phases, net = step_report.overhead_records("replayed", trl, "ours", ours)
    assert phases["median"] == pytest.approx((0.02 / 2 + 0.12 / 4) / 2)
    assert net["median"] == pytest.approx(((0.12 - 0.1) / 2 + (0.34 - 0.2) / 4) / 2)
    assert phases["met"] is (phases["median"] < 0.02)
    assert net["met"] is False
    other = [replace(taken, seen={(1,): ((3,),)}) for taken in ours]
    assert step_report.first_difference(trl, ours) is None and step_report.first_difference(trl, other) == 0
    assert not step_report.ratio_records("replayed", trl, "twin", other, bar=1.0)[0]["same_completions"]
    with refused(ValueError, "twin and TRL saw different completions"):
        step_report.overhead_records("replayed", trl, "twin", other)
