import json
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import report_folders as made
from matplotlib.figure import Figure

from dppo_lab.demo.figures import _draw_method
from dppo_lab.palette import FIXED, SERIES
from dppo_lab.report.figures_cost import (
    fill,
    fill_chart,
    phase_seconds,
    phases_chart,
    phases_over_updates,
    tokens_chart,
)
from dppo_lab.report.figures_curves import FIGURES, OVERS, accuracy_chart, pruning_chart
from dppo_lab.report.figures_prompts import prompt_map, prompts_chart
from dppo_lab.report.page import draw_panels
from dppo_lab.report.sources import Contents, Group, read_sources
from dppo_lab.report.style import CHROME, DASHES, Chart, as_inline_svg, as_svg, drawing, looks, new_figure
from dppo_lab.runs.folder import PromptLine, record_of
from dppo_lab.runs.reader import RunRecord

METHODS = ["trl", "cppo", "dppo"]


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    return read_sources([made.write_comparison(tmp_path_factory.mktemp("figures") / "cmp", METHODS, seeds=3)])


@pytest.fixture(scope="module")
def panels(contents):
    with drawing():
        return draw_panels(contents, looks(METHODS))


def run_of(logs=(), prompts=(), **fields):
    lines = tuple(record_of(PromptLine, prompt) for prompt in prompts)
    return RunRecord(folder=Path("r"), method="dppo", status="finished", seed=0, logs=logs, prompts=lines, **fields)


def contents_of(*runs):
    groups = tuple(Group(label=f"m{place}", runs=(run,)) for place, run in enumerate(runs))
    return Contents(title="t", groups=groups, task={}, environment={}, notes=())


def test_every_figure_of_a_whole_comparison_is_drawn_with_units_on_its_axes(panels):
    charts = [chart for panel in panels for chart in panel.charts]
    assert [chart.key for chart in charts if chart.figure is None] == []
    assert len({chart.key for chart in charts}) == len(charts) == 4 + 1 + 6 + 2 + 2
    for chart in charts:
        assert chart.caption
        first = chart.figure.axes[0]
        assert first.get_xlabel(), chart.key
        assert first.get_ylabel() or first.get_yticklabels(), chart.key


def test_without_records_every_figure_says_which_setting_records_it():
    found = draw_panels(contents_of(run_of(logs=({"step": 1, "loss": 0.5},))), looks(["m0"]))
    captions = {chart.key: chart.caption for panel in found for chart in panel.charts}
    assert all(chart.figure is None for panel in found for chart in panel.charts)
    assert "eval_benchmarks: [NAME or NAME=FILE] and eval_benchmark_every: 20" in captions["accuracy-seconds"]
    for key in ("prune-kept_share", "seconds-by-phase", "row-fill", "tokens-computed"):
        assert "logging_steps: 5" in captions[key], key
    assert "RunRecorder(output_dir).attach(trainer)" in captions["prompts-0"]


def test_evaluations_without_totals_lack_the_total_and_not_the_accuracy():
    logs = ({"step": 1, "eval/average/pass@1": 0.5},)
    missing = accuracy_chart(contents_of(run_of(logs=logs)), looks(["m0"]), "seconds")
    assert missing.figure is None
    assert "do not say total/seconds" in missing.caption
    assert accuracy_chart(contents_of(run_of(logs=logs)), looks(["m0"]), "updates").figure is not None


def test_a_method_without_the_figure_is_named_in_the_caption(contents):
    chart = pruning_chart(contents, looks(METHODS), FIGURES[0])
    assert chart.caption.endswith("Not in the logs of trl.")
    labels = [line.get_label() for line in chart.figure.axes[0].lines]
    assert [label for label in labels if not label.startswith("_")] == ["cppo", "dppo"]


def test_values_that_are_not_finite_are_counted_in_the_caption():
    logs = tuple({"step": s, "prune/kept_share": v} for s, v in enumerate([0.5, float("nan"), 0.4]))
    chart = pruning_chart(contents_of(run_of(logs=logs)), looks(["m0"]), FIGURES[0])
    assert "1 record without a finite figure left out." in chart.caption


def test_no_band_is_drawn_for_two_seeds(tmp_path):
    two = read_sources([made.write_comparison(tmp_path / "two", ["dppo"], seeds=2)])
    three = read_sources([made.write_comparison(tmp_path / "three", ["dppo"], seeds=3)])
    for found, bands in ((two, 0), (three, 1)):
        chart = accuracy_chart(found, looks(["dppo"]), "updates")
        assert len(chart.figure.axes[0].collections) == bands


def test_seconds_by_phase_are_means_times_updates():
    """A log has the mean over the updates since the one before: 5 * 2 + 10 * 1 and 5 * 1 + 10 * 3."""
    logs = (
        {"step": 5, "time/rollout": 2.0, "time/optimizer": 1.0, "total/seconds": 20.0},
        {"step": 15, "time/rollout": 1.0, "time/optimizer": 3.0, "total/seconds": 60.0},
    )
    run = run_of(logs=logs)
    found = phase_seconds(run, Group(label="m", runs=(run,)))
    assert found == {"rollout": 20.0, "optimizer": 35.0, "other": 5.0}
    readout = {"runs": [{"seed": 0, "phases": {"rollout": 7.0}}]}
    assert phase_seconds(run, Group(label="m", runs=(run,), readout=readout)) == {"rollout": 7.0, "other": 53.0}


def test_bars_are_stacked_to_the_whole_run(contents):
    axes = phases_chart(contents).figure.axes[0]
    ends = {}
    for patch in axes.patches:
        middle = round(patch.get_y() + patch.get_height() / 2)
        ends[middle] = max(ends.get(middle, 0), patch.get_x() + patch.get_width())
    for place, group in enumerate(contents.groups):
        totals = [run.series("total/seconds").value_I[-1] for run in group.runs]
        np.testing.assert_allclose(ends[place], np.mean(totals), rtol=1e-9)


def test_phases_too_small_to_see_are_named_in_the_caption(contents):
    chart = phases_chart(contents)
    assert "optimizer" not in chart.caption
    logs = ({"step": 1, "time/rollout": 1.0, "time/optimizer": 0.004},)
    chart = phases_chart(contents_of(run_of(logs=logs)))
    assert "Below 0.5% of every bar: optimizer." in chart.caption
    assert [text.get_text() for text in chart.figure.legends[0].get_texts()] == ["rollout"]


def test_a_name_that_begins_with_an_underscore_is_in_the_legend():
    run = run_of(logs=({"step": 1, "prune/kept_share": 0.5},))
    group = Group(label="_mine", runs=(run,))
    found = Contents(title="t", groups=(group,), task={}, environment={}, notes=())
    chart = pruning_chart(found, looks(["_mine"]), FIGURES[0])
    assert [text.get_text().strip() for text in chart.figure.legends[0].get_texts()] == ["_mine"]


def test_unknown_phases_are_drawn_too():
    logs = tuple({"step": s, "time/rollout": 1.0, "time/tools": 2.0} for s in (1, 2))
    chart = phases_over_updates(run_of(logs=logs))
    assert [text.get_text() for text in chart.figure.legends[0].get_texts()] == ["rollout", "tools"]


def test_fill_is_sequence_tokens_over_computed_tokens():
    logs = (
        {"step": 1, "rows/sequence_tokens": 60.0, "rows/padded_tokens": 100.0, "rows/tokens": 50.0},
        {"step": 2, "rows/sequence_tokens": 40.0, "rows/padded_tokens": 100.0, "rows/tokens": 50.0},
        {"step": 3, "rows/tokens": 1e9},
    )
    assert fill(run_of(logs=logs)) == (0.5, 1.0)
    logs = tuple({**log, "rows/fill": share} for log, share in zip(logs, (0.2, 0.4, 0.6), strict=True))
    assert "filled to 40% of max_tokens_per_row" in fill_chart(contents_of(run_of(logs=logs))).caption
    padded, rows = fill(run_of(logs=({**logs[0], "rows/tokens": 100.0},)))
    assert padded == 0.6 and np.isnan(rows)


def test_what_is_not_packed_is_said_in_the_fill_chart(contents):
    texts = [text.get_text() for text in fill_chart(contents).figure.axes[0].texts]
    assert texts.count("not in rows") == 1
    assert "padded" in tokens_chart(contents, looks(METHODS)).caption


def test_prompts_are_sorted_by_reward_and_skips_are_marked():
    """Row 7 is solved, row 3 never, row 5 sometimes and then skipped, row 9 never rolled out."""
    prompts = (
        {"step": 0, "rows": [7, 3], "rolled_out": [True, True], "mean_reward": [1.0, 0.0]},
        {"step": 0, "rows": [5, 9], "rolled_out": [True, False], "mean_reward": [0.5, None]},
        {"step": 1, "rows": [7, 3], "rolled_out": [False, True], "mean_reward": [None, 0.25]},
        {"step": 1, "rows": [None, 5], "rolled_out": [True, False], "mean_reward": [1.0, None]},
        {"step": 2, "rows": "no list", "rolled_out": None, "mean_reward": []},
    )
    found = prompt_map(run_of(prompts=prompts))
    nan = float("nan")
    np.testing.assert_array_equal(found.reward_PE, [[0.0, 0.25], [0.5, nan], [1.0, nan], [nan, nan]])
    np.testing.assert_array_equal(found.skipped_PE, [[0, 0], [0, 1], [0, 1], [1, 0]])
    assert found.unseen == 1
    chart = prompts_chart(Group(label="m", runs=(run_of(prompts=prompts),)), "prompts-0")
    said = ("4 prompts", "Skipped 3 of 7 visits", "1 prompt never rolled out")
    assert [words for words in said if words not in chart.caption] == []


def test_a_large_map_is_thinned_and_says_so():
    rows = list(range(1000))
    prompts = ({"step": 0, "rows": rows, "rolled_out": [True] * 1000, "mean_reward": [0.5] * 1000},)
    chart = prompts_chart(Group(label="m", runs=(run_of(prompts=prompts),)), "prompts-0")
    assert chart.figure.axes[0].images[0].get_array().shape == (200, 1)
    assert "every 5th prompt" in chart.caption


def test_a_method_has_one_colour_everywhere_and_no_two_look_alike():
    labels = ["trl", "dppo", "cppo", "mine", "yours", *(f"m{k}" for k in range(20))]
    found = looks(labels)
    assert found["dppo"].colour == looks(["other", "dppo"])["dppo"].colour
    assert len({(look.colour, look.dash) for look in found.values()}) == len(labels)
    assert found["trl"].colour == SERIES["grey"][0]
    assert len(labels) <= len(SERIES) * len(DASHES)


def test_the_demonstration_and_the_pictures_of_the_docs_have_the_colours_of_the_report():
    axes = Figure().subplots()
    _draw_method(axes, "dppo", [[{"seconds": 1.0, "accuracy": 0.5}]], "seconds")
    assert {line.get_color() for line in axes.lines} == {looks(["dppo"])["dppo"].colour}
    shown = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "results_figure.py"))["SHOWN"]
    assert {name: shown[name] for name in FIXED} == {name: looks([name])[name].colour for name in FIXED}
    assert len(set(shown.values())) == len(shown)


def luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("paper", [0, 1], ids=["light", "dark"])
def test_text_and_lines_stand_out_from_the_paper(paper):
    """WCAG 2.1: 4.5 for text, 3 for graphics."""
    back = CHROME["paper"][paper]
    assert contrast(CHROME["ink"][paper], back) > 7
    assert contrast(CHROME["muted"][paper], back) > 4.5
    assert [name for name, pair in SERIES.items() if contrast(pair[paper], back) < 3] == []


def test_figures_are_the_same_bytes_every_time(contents):
    def draw():
        with drawing():
            return as_svg(accuracy_chart(contents, looks(METHODS), "updates").figure)

    assert draw() == draw()


def test_inline_figures_take_colours_from_the_page_and_share_no_ids(panels):
    with drawing():
        svgs = [as_inline_svg(chart, as_svg(chart.figure)) for panel in panels for chart in panel.charts]
    ids = [found for svg in svgs for found in re.findall(r'\bid="([^"]*)"', svg)]
    assert len(ids) == len(set(ids))
    for svg in svgs:
        root = ElementTree.fromstring(svg)
        assert root.get("viewBox") and root.get("aria-label") and "var(--ink)" in svg
        assert not any(light in svg for light, _ in CHROME.values())
        names = set(re.findall(r'(?:href="#|url\(#)([^")]*)', svg))
        assert names <= set(re.findall(r'\bid="([^"]*)"', svg))
        assert "<style" not in svg
        assert "<metadata" not in svg


def test_text_in_a_figure_is_text_and_never_mathematics():
    with drawing():
        figure = new_figure()
        figure.subplots().set_title("a $x^2$ <b> & \\frac")
        svg = as_inline_svg(Chart(key="k", title="t", caption="c", figure=figure), as_svg(figure))
    assert "a $x^2$ &lt;b&gt; &amp; \\frac" in svg


def test_the_target_line_carries_the_baselines_name(contents):
    texts = [t.get_text() for t in accuracy_chart(contents, looks(METHODS), "seconds").figure.axes[0].texts]
    assert texts == ["final accuracy of trl"]
    final = json.loads((Path(contents.groups[0].source) / "results.json").read_text())["methods"]["trl"]["final"]
    lines = accuracy_chart(contents, looks(METHODS), "seconds").figure.axes[0].lines
    assert any(list(line.get_ydata()) == [final["mean"]] * 2 for line in lines)
    assert set(OVERS) == {"seconds", "rollouts", "updates"}
