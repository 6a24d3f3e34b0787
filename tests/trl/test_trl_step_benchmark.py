"""The step benchmark compares like with like, and its phases are the whole of a step."""

import json
import sys
import time
from dataclasses import replace

import pytest

from benchmarks.speed import step, step_report, turns

pytestmark = pytest.mark.slow

SHORT = replace(step.QUICK, easy=(2,), middle=(2,), hard=(3,))
SMALLEST = step.Setting(
    task=SHORT, warm_up_steps=60, prompts=4, generations=4, dataset=8, repetitions=2, max_new_tokens=24
)
PRUNED = step.CONTESTANTS[-1]
NOT_TRAINING = ("optimizer", "other")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return step.build_bench(tmp_path_factory.mktemp("step"), SMALLEST)


def run(bench, *entries):
    """Trainers and all their steps; entries are pairs of a contestant and where its completions come from."""
    with step.quiet(), pytest.MonkeyPatch.context() as patch:
        # Clocks count the processor's time: while a process waits for it, one of two clocks may have been read already.
        patch.setattr(time, "perf_counter", time.process_time)
        trainers = [step.build_trainer(bench, *entry) for entry in entries]
        clocks = [contestant.clock(trainer) for (contestant, _), trainer in zip(entries, trainers, strict=True)]
        return trainers, step.take_turns(trainers, clocks, seed=step.SEED)


@pytest.fixture(scope="module")
def played(bench):
    replay = step.replayed(bench)
    return run(
        bench,
        (step.BASELINE, replay),
        (step.UNPRUNED, replay),
        (PRUNED, replay),
        (step.BASELINE, step.decoded(bench)),
    )


@pytest.mark.slow
def test_a_twin_that_sees_other_completions_is_flagged(bench, played):
    replay, trl = step.replayed(bench), played[1][0]

    def altered(prompts, trainer):
        output = replay(prompts, trainer)
        if trainer.state.global_step == SMALLEST.steps - 1:
            output["completion_ids"][5] = output["completion_ids"][5][:-1]
            output["logprobs"][5] = output["logprobs"][5][:-1]
        return output

    _, (twin,) = run(bench, (step.UNPRUNED, altered))
    assert step_report.first_difference(trl, twin) == SMALLEST.steps - 1
    assert not step_report.ratio_records("replayed", trl, "twin", twin, bar=1.0)[0]["same_completions"]
    with pytest.raises(ValueError, match=f"counted step {SMALLEST.steps - 1}: twin and TRL saw different completions"):
        step_report.overhead_records("replayed", trl, "twin", twin)


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
        assert all(value is None or isinstance(value, str | int | float) for value in row.values())
        assert row["lowest"] <= row["quartile_low"] <= row["median"] <= row["quartile_high"] <= row["highest"]
    phases = {(row["backend"], row["contestant"], row["phase"]) for row in rows if row["figure"] == "phase"}
    assert len(phases) == len(step.BACKENDS) * 3 * len(turns.PHASES)
    barred = [row for row in rows if row["bar"] is not None]
    assert {row["figure"] for row in barred} == {"ratio", "ratio_cpu", "overhead_phases", "overhead_net"}
    assert printed.count(" met\n") + printed.count(" MISSED\n") == len(barred) == 2 * len(step.BACKENDS) + 2
    assert all(row["same_completions"] for row in barred)


def steps_of(*figures):
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
        for total, prune, model in figures
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
