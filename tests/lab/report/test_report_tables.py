import pytest
from report_folders import contents_of, run_of

from dppo.lab.comparison.words import Cell, Compared, findings, interval
from dppo.lab.report.curves import coverage
from dppo.lab.report.sources import Group
from dppo.lab.report.tables import ceiling_lines, method_line, summaries

INTERVAL = {"low": 2.0, "high": 4.0, "per_seed": {"0": 2.0, "1": 3.0, "2": 4.0}}
MISSED = {"median": None, "low": 0.0, "high": 1.0, "at_most": 0.8, "reached": "2 of 5", "per_seed": {"0": [0, 0.8]}}
FEW = {"low": None, "high": None, "per_seed": {"0": 2.0, "1": 3.0}}


def compared(name="dppo", **fields):
    """A group of a comparison with these fields of ``Compared``."""
    runs = (run_of(name, describe="d"),)
    return Group(label=name, runs=runs, source="c", compared=Compared(name=name, baseline="trl", **fields))


def found(*groups):
    """The findings about groups."""
    return findings({group.label: group.compared for group in groups})


def test_the_table_has_the_papers_columns():
    group = compared(
        speedup={"median": 3.0, **INTERVAL},
        readout={
            "biased": ["first", "second"],
            "final": {"mean": 0.7, "low": 0.6, "high": 0.8, "per_seed": {}},
            "equal_updates": {"difference": {"mean": -0.011, "low": -0.03, "high": 0.01, "per_seed": {}}},
            "equal_seconds": {"difference": {"mean": 0.05, "low": None, "high": None, "per_seed": {"0": 0.05}}},
        },
    )
    row = method_line(group)
    assert [(cell.text, cell.detail) for cell in (*row.compared, row.biased, *row.results)] == [
        ("3.00×", "2.00 to 4.00"),
        ("−1.1 pp", "−3.0 pp to +1.0 pp"),
        ("—", ""),
        ("+5.0 pp", "1 seed: no interval"),
        ("yes", "first; second"),
        ("70.0%", "60.0% to 80.0%"),
        ("1 of 1", ""),
    ]


@pytest.mark.parametrize(
    ("seeds", "says"),
    [
        (3, "3 seeds an interval of 95% holds the truth in 75%"),
        (5, "5 seeds an interval of 95% holds the truth in 94%"),
    ],
)
def test_a_report_says_how_far_its_seeds_can_cover(seeds, says):
    runs = tuple(run_of(seed=seed, logs=({"step": 1, "loss": 0.1},)) for seed in range(seeds))
    assert says in coverage(contents_of(Group(label="m", runs=runs)))
    assert coverage(contents_of(Group(label="m", runs=runs[:2]))) == "", "no interval is shown"


@pytest.mark.parametrize(
    ("speedup", "says"),
    [
        ({"median": 4.0, **INTERVAL}, "in 25% of the time of trl: 4.00× (95% interval 2.00 to 4.00)."),
        ({"median": 1.2, "low": 0.9, "high": 1.4}, "includes no gain at all"),
        ({"median": 2.0, **FEW}, "too few seeds for an interval"),
        ({"median": 3.0, **INTERVAL, "at_most": 3.5}, "in 33% of the time of trl or less: at least 3.00× (95%"),
        (
            {"median": 2.5, "low": 2.0, "high": None, "at_most": None},
            "(95% interval from 2.00, without an end: trl missed",
        ),
        (MISSED, "did not reach the accuracy 0.8 in most seeds (2 of 5 did)."),
    ],
)
def test_findings_say_what_the_interval_allows(speedup, says):
    (sentence,) = found(compared(speedup=speedup, target="accuracy 0.8"))
    assert says in sentence
    assert found(compared("trl", speedup=speedup)) == ()


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        (((0.1, 30.0), (-0.05, -30.0)), "about 0 s of 7 min 30 s (0%)"),
        (((-0.05, -30.0), (0.05, 30.0)), "about 0 s of 10 min 00 s (0%)"),
        (((-0.05, -30.0), (-0.1, -60.0)), "about 45 s more than 10 min 00 s (-8%)"),
    ],
)
def test_what_seeds_saved_is_of_what_each_would_have_taken(saved, says):
    runs = [
        run_of(seed=seed, logs=({"step": 1, "prune/kept_share": 0.5, "saved/share": share, "saved/seconds": seconds},))
        for seed, (share, seconds) in enumerate(saved)
    ]
    ((_, lines),) = summaries(contents_of(Group(label="dppo", runs=tuple(runs))))
    assert dict(lines)["Saved"].startswith(says)


def test_a_median_without_an_end_is_told_from_too_few_seeds():
    """The wrong twin counts a seed that failed: three, one of which never got there."""
    few = {
        "median": 2.9,
        "low": None,
        "high": None,
        "per_seed": {"0": [2.9, 2.9], "1": [3.0, 3.0], "2": None},
        "reached": "2 of 2",
    }
    assert interval(few, "{:.1f}".format).detail == "2 seeds: no interval"
    open_ended = {"median": 2.9, "low": 1.0, "high": None, "per_seed": {"0": 2.9, "1": 3.0, "2": None}}
    assert interval(open_ended, "{:.1f}".format).detail == "no end: seeds that never got there"


def ended(*seconds):
    """Runs that ended after these seconds, the last of which failed."""
    runs = [{"status": "finished", "curve": [{"seconds": 0.0}, {"seconds": end}]} for end in seconds]
    return {"runs": [*runs, {"status": "failed", "curve": [{"seconds": 1e6}]}]}


def test_a_run_that_ended_before_the_baseline_got_there_is_too_short_to_tell():
    """It is 5.6 points ahead at equal seconds: "did not reach the final accuracy" would be a verdict against it."""
    readout = ended(3.0, 4.0) | {"equal_seconds": {"at": 3.5, "difference": {"mean": 0.056, "low": 0.02, "high": 0.09}}}
    speedup = {"median": None, "at_most": 2.5, "reached": "0 of 2", "per_seed": {"0": [0, 2.5]}}
    group = compared(speedup=speedup, readout=readout, baseline_seconds=9.9)
    (sentence,) = found(group)
    assert "3.5 s of trl's 9.9 s" in sentence and "too short to tell" in sentence and "did not reach" not in sentence
    assert "At equal seconds (3.5 s)" in sentence and "+5.6 pp (+2.0 pp to +9.0 pp)" in sentence
    assert method_line(group).compared[0].text == "too short to tell"
    longer = compared(speedup={**speedup, "at_most": 0.9}, readout=readout, baseline_seconds=9.9)
    assert "did not reach the final accuracy of trl" in found(longer)[0], "it had more seconds than the baseline needed"
    assert method_line(longer).compared[0].text == "not reached"


def test_a_baseline_that_did_not_improve_has_no_speedups():
    """The sentence of the wrong twin, "in 92% of the time of trl", is not there."""
    group = compared(speedup={"median": 1.08, **INTERVAL}, no_target="trl did not improve")
    assert found(compared("trl", no_target="trl did not improve"), group) == ("No speedup: trl did not improve.",)
    assert method_line(group).compared[0] == Cell(text="—", detail="trl did not improve")
    assert "in 93% of the time" in found(compared(speedup={"median": 1.08, **INTERVAL}))[0]


def line(**columns):
    """A line of prompts.jsonl of two prompts, one of which always gives nothing and is known to."""
    whole = {"expected_signal": [1.0, 0.1], "signal": [3.0, 0.0], "expected_tokens": [5.0, 5.0], "tokens": [4.0, 4.0]}
    return {"step": 1, "probability": [1.0, 0.5], **whole, **columns}


HOSTILE = [
    {"signal": ["x", None]},
    {"signal": None, "tokens": 5},
    {"probability": [0.0, 2.0]},
    {"expected_tokens": [float("inf"), float("nan")]},
    {"expected_signal": [True, -1.0]},
    {"tokens": [[1], {}]},
]
"""Lines that say nothing."""


def test_the_ceilings_of_a_method_are_over_all_its_runs():
    logs = tuple({"step": n, "prune/completion_ceiling": 1.2, "prune/live_share": 0.25} for n in range(3))
    runs = tuple(run_of(seed=seed, logs=logs, prompts=(line(),) * 20) for seed in (0, 1))
    ((label, (prompts, completions, free)),) = ceiling_lines(contents_of(Group(label="dppo", runs=runs)))
    # By weight a third of the prompts has all of the gradient: 1 / (1 / 3).
    assert label == "dppo" and (prompts.text, completions.text, free.text) == ("3×", "1.20×", "75.0%")
    low, high = map(float, prompts.detail.split(" to "))
    assert 1 < low < 3 < high < 9


def test_what_is_damaged_or_not_recorded_is_left_out():
    lines = [line(**columns) for columns in HOSTILE]
    run = run_of(logs=({"step": 1},), prompts=(*lines, *[line()] * 20))
    ((_, cells),) = ceiling_lines(contents_of(Group(label="dppo", runs=(run,))))
    assert [cell.text for cell in cells] == ["3×", "—", "—"]
    old = run_of(logs=({"step": 1},), prompts=(line(signal=None),))
    assert ceiling_lines(contents_of(Group(label="dppo", runs=(old,)))) == ()


def test_a_report_begins_with_what_was_pruned_what_it_saved_and_what_choosing_can_save_at_most():
    """By hand: 40 s of update for a quarter of the tokens, so 120 s saved, and 60 s of rollout for 3/4, so 20 s."""
    shares = {"prune/kept_share": 0.25, "prune/live_share": 0.6, "prune/prompts_kept_share": 0.75}
    tokens = {"prune/tokens_trained": 100.0, "prune/tokens_skipped": 300.0, "prune/completion_ceiling": 1.0}
    logs = (
        {"step": 1, **shares, **tokens, "time/forward_backward": 40.0, "time/rollout": 60.0, "total/seconds": 100.0},
    )
    run = run_of(logs=logs, prompts=(line(),) * 20, config={"prompt_prune_rate": 0.3})
    stock = run_of("trl", logs=({"step": 1, "loss": 0.1},))
    ((label, lines),) = summaries(contents_of(Group(label="trl", runs=(stock,)), Group(label="dppo", runs=(run,))))
    said = dict(lines)
    assert label == "dppo" and "75% of the completions" in said["Pruned"] and "25% of the candidate" in said["Pruned"]
    assert "40% had no gradient" in said["Pruned"] and "35% were not drawn" in said["Pruned"]
    assert "75% of the completion tokens; about 2 min 20 s of 4 min 00 s" in said["Saved"]
    bound = said["Upper bound of what choosing can save"]
    assert "prompts at most 3×" in bound and "prompt_prune_rate: 0.3 is in use" in bound
    assert "completions at most 1× (1 to 1), which is next to nothing" in bound
    measured = {"saved/seconds": 7800.0, "saved/share": 0.31}
    cut = {"prune/token_kept_share": 0.5, "prune/head_share": 0.1}
    runs = run_of(
        config={"prompt_prune_rate": 0.3},
        logs=({**logs[0], "saved/seconds": 1.0, "saved/share": 0.01}, {**logs[0], "step": 2, **cut, **measured}),
    )
    ((_, lines),) = summaries(contents_of(group := Group(label="dppo", runs=(runs,))))
    assert dict(lines)["Saved"].startswith("about 2 h 10 min of 6 h 59 min (31%)"), "as measured, and not as reckoned"
    assert "50% of the tokens of completions with a gradient were not forwarded, and 10%" in dict(lines)["Pruned"]
    assert (
        method_line(group).rates.detail
        == "50.0% of the tokens kept; 10.0% of them to the head; saved 31.0% of the seconds"
    )
    bare = run_of(logs=({"step": 1, "prune/kept_share": 1.0},))
    ((_, lines),) = summaries(contents_of(Group(label="m", runs=(bare,))))
    assert all("not known" in text for _, text in lines[1:]) and "0% of the completions" in lines[0][1]
