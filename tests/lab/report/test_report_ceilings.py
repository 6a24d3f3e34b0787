"""The most that pruning can save, from the records of runs."""

from report_folders import run_of

from dppo.lab.runs.ceilings import run_ceilings


def line(**columns):
    """A line of prompts.jsonl of two prompts, one of which always gives nothing and is known to."""
    whole = {"expected_signal": [1.0, 0.1], "signal": [3.0, 0.0], "expected_tokens": [5.0, 5.0], "tokens": [4.0, 4.0]}
    return {"step": 1, "probability": [1.0, 0.5], **whole, **columns}


DAMAGED = [
    {"signal": ["x", None]},
    {"signal": None, "tokens": 5},
    {"probability": [0.0, 2.0]},
    {"expected_tokens": [float("inf"), float("nan")]},
    {"expected_signal": [True, -1.0]},
    {"tokens": [[1], {}]},
]


def test_ceilings_are_over_all_runs_and_what_is_damaged_is_left_out():
    """By weight a third of the prompts has all of the gradient: 1 / (1 / 3)."""
    logs = tuple({"step": n, "prune/completion_ceiling": 1.2, "prune/live_share": 0.25} for n in range(3))
    lines = [line(**columns) for columns in DAMAGED]
    runs = [run_of(seed=seed, logs=logs, prompts=(*lines, *[line()] * 20)) for seed in (0, 1)]
    prompts, completions = run_ceilings(runs)
    assert (prompts.value, completions.value, completions.free) == (3.0, 1.2, 0.75)
    assert 1 < prompts.low < 3 < prompts.high < 9
    old = run_of(logs=({"step": 1},), prompts=(line(signal=None),))
    assert run_ceilings([old]) == ()
