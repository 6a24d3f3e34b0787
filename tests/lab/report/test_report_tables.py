import math
from pathlib import Path

import pytest
import report_folders as made

from dppo_lab.report.bibtex import bibtex
from dppo_lab.report.browser import choose
from dppo_lab.report.figures_curves import coverage
from dppo_lab.report.sources import Contents, Group, read_sources
from dppo_lab.report.tables import ceiling_lines, findings, method_line, points, run_lines, target_lines
from dppo_lab.report.text import amount, duration, shortened, visible
from dppo_lab.runs.folder import CompletionLine, PromptLine, record_of
from dppo_lab.runs.reader import RunRecord

INTERVAL = {"low": 2.0, "high": 4.0, "per_seed": {"0": 2.0, "1": 3.0, "2": 4.0}}
MISSED = {"median": None, "low": 0.0, "high": 1.0, "at_most": 0.8, "reached": "2 of 5", "per_seed": {"0": [0, 0.8]}}
FEW = {"low": None, "high": None, "per_seed": {"0": 2.0, "1": 3.0}}


def run_of(method="dppo", status="finished", seed=0, **fields):
    return RunRecord(folder=Path("r"), method=method, status=status, seed=seed, **fields)


def compared(name="dppo", **fields):
    runs = (run_of(name, describe="d"),)
    return Group(label=name, runs=runs, name=name, baseline="trl", source="c", **fields)


def contents_of(*groups):
    return Contents(title="t", groups=groups, task={}, environment={}, notes=())


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
    assert (row.speedup.text, row.speedup.detail) == ("3.00×", "2.00 to 4.00")
    assert (row.differences[0].text, row.differences[0].detail) == ("−1.1 pp", "−3.0 pp to +1.0 pp")
    assert row.differences[1].text == "—"
    assert (row.differences[2].text, row.differences[2].detail) == ("+5.0 pp", "1 seed: no interval")
    assert (row.biased.text, row.biased.detail) == ("yes", "first; second")
    assert (row.accuracy.text, row.accuracy.detail) == ("70.0%", "60.0% to 80.0%")
    assert row.seeds.text == "1 of 1"


def test_a_biased_method_is_marked_where_its_speedup_is_said():
    speedup = {"median": 3.0, **INTERVAL}
    (said,) = findings(contents_of(compared("cppo", speedup=speedup, readout={"biased": ["no weights"]})))
    assert said.startswith("cppo (biased) reached the final accuracy of trl in 33% of the time")
    (said,) = findings(contents_of(compared("dppo", speedup=speedup)))
    assert said.startswith("dppo reached")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"completion_prune_rate": 0.5, "prompt_prune_rate": 0.3}, "50%, 30%"),
        ({"completion_prune_rate": "auto", "prompt_prune_rate": 0.0}, "auto, 0%"),
        ({"learning_rate": 1e-5}, "—"),
    ],
)
def test_rates_stand_in_the_table(config, says):
    assert method_line(Group(label="dppo", runs=(run_of(config=config),))).rates.text == says


@pytest.mark.parametrize(
    ("seeds", "says"), [(3, "3 seeds can cover 75% at most"), (5, "5 seeds can cover 94% at most")]
)
def test_a_report_says_how_far_its_seeds_can_cover(seeds, says):
    runs = tuple(run_of(seed=seed, logs=({"step": 1, "loss": 0.1},)) for seed in range(seeds))
    assert says in coverage(contents_of(Group(label="m", runs=runs)))
    assert coverage(contents_of(Group(label="m", runs=runs[:2]))) == "", "no interval is shown"


def test_the_baseline_is_compared_with_nobody():
    row = method_line(compared("trl", speedup={"median": 1.0, **INTERVAL}))
    assert (row.speedup.text, row.speedup.detail) == ("1×", "the baseline")
    assert {cell.text for cell in row.differences} == {"—"}


def test_failed_and_awaited_seeds_are_counted():
    states = ["finished", "failed", "running", "stopped", "unknown"]
    runs = tuple(run_of(status=status, seed=seed) for seed, status in enumerate(states))
    row = method_line(Group(label="m", runs=runs, awaited=(7, 8)))
    assert row.seeds.text == "1 of 7" and row.biased.text == "not recorded"
    assert row.seeds.detail == "1 failed, 1 stopped, 1 running, 1 unknown, 2 not started"


@pytest.mark.parametrize(
    ("speedup", "says"),
    [
        ({"median": 4.0, **INTERVAL}, "in 25% of the time of trl: 4.00× (95% interval 2.00 to 4.00)."),
        ({"median": 1.2, "low": 0.9, "high": 1.4}, "includes no gain at all"),
        ({"median": 2.0, **FEW}, "too few seeds for an interval"),
        ({"median": 3.0, **INTERVAL, "at_most": 3.0}, "in 33% of the time of trl: 3.00× (95%"),
        ({"median": 3.0, **INTERVAL, "at_most": 3.5}, "in 33% of the time of trl or less: at least 3.00× (95%"),
        (
            {"median": 2.5, "low": 2.0, "high": None, "at_most": None},
            "(95% interval from 2.00, without an end: trl missed",
        ),
        (MISSED, "did not reach the accuracy 0.8 in most seeds (2 of 5 did)."),
    ],
)
def test_findings_say_what_the_interval_allows(speedup, says):
    found = findings(contents_of(compared(speedup=speedup, target="accuracy 0.8")))
    assert len(found) == 1
    assert says in found[0]
    assert findings(contents_of(compared("trl", speedup=speedup))) == ()


def test_a_speedup_that_is_only_bounded_says_so():
    assert method_line(compared(speedup=MISSED)).speedup.text == "not reached"
    assert method_line(compared(speedup=MISSED)).speedup.detail == "2 of 5 seeds"
    assert method_line(compared(speedup={"median": 3.0, **INTERVAL, "at_most": None})).speedup.text == "≥ 3.00×"
    assert method_line(compared(speedup={})).speedup.text == "—"


def test_a_baseline_that_did_not_improve_has_no_speedups():
    """The sentence of the wrong twin, "in 92% of the time of trl", is not there."""
    group = compared(speedup={"median": 1.08, **INTERVAL}, no_target="trl did not improve")
    assert findings(contents_of(compared("trl", no_target="trl did not improve"), group)) == (
        "No speedup: trl did not improve.",
    )
    assert method_line(group).speedup.text == "—" and method_line(group).speedup.detail == "trl did not improve"
    assert "in 93% of the time" in findings(contents_of(compared(speedup={"median": 1.08, **INTERVAL})))[0]


def test_what_the_target_took_is_read_with_its_median():
    read = {"to_target": {"seconds": {"median": 90.0, **INTERVAL}, "rollouts": {"median": None}, "reached": "2 of 3"}}
    ((label, cells),) = target_lines(contents_of(compared(readout=read)))
    assert label == "dppo"
    assert [cell.text for cell in cells] == ["1 min 30 s", "—", "—", "—", "2 of 3"]


def test_runs_are_listed_with_what_they_did(tmp_path):
    going = made.write_run(tmp_path / "run", updates=20, status="running", seconds=None)
    row = run_lines(read_sources([going]))[0]
    assert (row.updates, row.rollouts) == ("20 of 60", "2,560")
    assert row.seconds.endswith(" s")
    assert row.accuracy.endswith("%")


def test_bibtex_has_one_entry_per_number_with_the_presets_title_and_no_authors():
    found = bibtex(
        [
            "arXiv:2603.04135, Unbiased {Dynamic} Pruning, on top of arXiv:2402.03300, wrong title",
            "arXiv:2402.03300, again",
            "arXiv:2901.00001, Of {our} \\own",
            "no number",
        ]
    )
    assert found.count("@misc{") == 3
    assert "title = {{Unbiased Dynamic Pruning for Efficient Group-Based Policy Optimization}}" in found
    assert "DeepSeekMath" in found
    assert "title = {{Of our own}},\n  year = {2029},\n  eprint = {2901.00001},\n  archivePrefix = {arXiv}" in found
    assert "author" not in found
    assert bibtex(["trl"]) == ""


def test_codes_of_a_paper_are_cited_with_the_papers_title():
    assert "CPPO: Accelerating" in bibtex(["arXiv:2503.22342, CPPO, as in its code for TRL"])


def test_a_bounded_choice_of_completions_is_in_whole_groups_from_first_to_last(tmp_path):
    contents = read_sources([made.write_comparison(tmp_path / "cmp", ["trl", "cppo", "dppo"], seeds=2)])
    shown = choose(contents, most=80)
    assert shown.recorded == 2 * 2 * 96
    assert shown.shown == 80
    assert {len(group.completions) for group in shown.groups} == {8}
    assert {group.method for group in shown.groups} == {"cppo", "dppo"}
    steps = [group.step for group in shown.groups if group.method == "dppo"]
    assert (min(steps), max(steps)) == (10, 60)
    assert shown.reasons[0] == "kept"
    first = shown.groups[0]
    assert first.kept == sum(one.why == "kept" for one in first.completions)
    assert [name for name, _ in first.completions[0].figures] == [
        *("reward", "advantage", "probability", "weight", "tokens"),
    ]


def test_a_group_of_dppo_with_pruned_completions_is_open_at_first():
    def run(method, kept):
        records = [
            {"step": 1, "row": k, "group": k, "prompt": f"p{k}", "kept": kept[k][n]} for k in (0, 1) for n in (0, 1)
        ]
        lines = tuple(record_of(CompletionLine, record) for record in records)
        return Group(label=method, runs=(run_of(method, completions=lines),))

    whole, part = [True, True], [True, False]
    cppo, dppo = run("cppo", [part, part]), run("dppo", [whole, part])
    assert choose(contents_of(cppo, dppo)).opened == 3
    assert choose(contents_of(cppo)).opened == 0 and choose(contents_of(run("dppo", [whole, whole]))).opened == 0


def test_many_reasons_share_the_last_filter():
    records = tuple({"step": 1, "row": k, "group": k, "prompt": "p", "why": f"reason {k}"} for k in range(20))
    run = run_of(completions=tuple(record_of(CompletionLine, record) for record in records))
    shown = choose(contents_of(Group(label="m", runs=(run,))))
    assert len(shown.reasons) == 8
    assert shown.reasons[-1] == "other"
    assert {one.filter for group in shown.groups for one in group.completions} == set(range(8))


def test_text_that_cannot_be_seen_is_made_visible():
    assert visible("a\x00b\x1b[31m\r\nc\td") == "a\\x00b\\x1b[31m\nc\td"
    assert visible("\u202eabc\u2066 \ud800 \ufeff") == "\\u202eabc\\u2066 \\ud800 \\ufeff"
    assert visible("é ü 数学 😀 שלום") == "é ü 数学 😀 שלום"


def test_numbers_in_words():
    assert [amount(v) for v in (0, 1234567, 0.12345, 12.345, 1234.5, 1e-9, math.nan)] == [
        *("0", "1,234,567", "0.123", "12.3", "1,234", "1.00e-09", "—"),
    ]
    assert [duration(v) for v in (1.5, 61, 3660, math.nan)] == ["1.50 s", "1 min 01 s", "1 h 01 min", "—"]
    assert [points(v) for v in (-0.0104, 0.0104, -0.0001)] == ["−1.0 pp", "+1.0 pp", "0.0 pp"]
    assert shortened("abcdef", 3) == "abc… (3 more characters)"


def line(**columns):
    """A line of prompts.jsonl of two prompts, one of which always gives nothing and is known to."""
    whole = {"expected_signal": [1.0, 0.1], "signal": [3.0, 0.0], "expected_tokens": [5.0, 5.0], "tokens": [4.0, 4.0]}
    return record_of(PromptLine, {"step": 1, "probability": [1.0, 0.5], **whole, **columns})


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
    (found,) = ceiling_lines(contents_of(Group(label="dppo", runs=runs)))
    label, (prompts, completions, free) = found
    # By weight a third of the prompts has all of the gradient: 1 / (1 / 3).
    assert label == "dppo" and (prompts.text, completions.text, free.text) == ("3×", "1.20×", "75.0%")
    low, high = map(float, prompts.detail.split(" to "))
    assert 1 < low < 3 < high < 9


def test_what_is_damaged_or_not_recorded_is_left_out():
    lines = tuple(line(**columns) for columns in HOSTILE) + (line(),) * 20
    run = run_of(logs=({"step": 1},), prompts=lines)
    (found,) = ceiling_lines(contents_of(Group(label="dppo", runs=(run,))))
    assert [cell.text for cell in found[1]] == ["3×", "—", "—"]
    old = run_of(logs=({"step": 1},), prompts=(line(signal=None),))
    assert ceiling_lines(contents_of(Group(label="dppo", runs=(old,)))) == ()
