import json
import re
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import report_folders as made
from report_folders import contents_of, run_of

from dppo_lab.comparison.words import Compared
from dppo_lab.palette import SERIES
from dppo_lab.report.curves import band
from dppo_lab.report.figures_cost import fill, fill_chart, phase_seconds
from dppo_lab.report.figures_curves import OVERS, accuracy_chart
from dppo_lab.report.figures_prompts import prompt_map, prompts_chart
from dppo_lab.report.page import draw_panels
from dppo_lab.report.sources import Group, read_sources
from dppo_lab.report.style import CHROME, DASHES, Chart, as_inline_svg, as_svg, drawing, looks, new_figure
from dppo_lab.runs.reader import Series
from dppo_lab.statistics import expanded_tail

METHODS = ["trl", "grpo", "cppo", "dppo"]


@pytest.fixture(scope="module")
def contents():
    return read_sources([made.SAMPLE])


@pytest.fixture(scope="module")
def panels(contents):
    with drawing():
        return draw_panels(contents, looks(METHODS))


def test_every_figure_of_a_whole_comparison_is_drawn_with_units_on_its_axes(panels):
    charts = [chart for drawn in panels.values() for chart in drawn]
    assert [chart.key for chart in charts if chart.figure is None] == []
    assert len({chart.key for chart in charts}) == len(charts) == 4 + 1 + 6 + 2 + 2
    for chart in charts:
        assert chart.caption
        first = chart.figure.axes[0]
        assert first.get_xlabel(), chart.key
        assert first.get_ylabel() or first.get_yticklabels(), chart.key


def test_seconds_by_phase_are_means_times_updates():
    """A log has the mean over the updates since the one before: 5 * 2 + 10 * 1 and 5 * 1 + 10 * 3."""
    logs = (
        {"step": 5, "time/rollout": 2.0, "time/optimizer": 1.0, "total/seconds": 20.0},
        {"step": 15, "time/rollout": 1.0, "time/optimizer": 3.0, "total/seconds": 60.0},
    )
    run = run_of(logs=logs)
    found = phase_seconds(run, Group(label="m", runs=(run,)))
    assert found == {"rollout": 20.0, "optimizer": 35.0, "other": 5.0}
    compared = Compared(readout={"runs": [{"seed": 0, "phases": {"rollout": 7.0}}]})
    assert phase_seconds(run, Group(label="m", runs=(run,), compared=compared)) == {"rollout": 7.0, "other": 53.0}


def test_fill_is_sequence_tokens_over_computed_tokens():
    logs = (
        {"step": 1, "rows/sequence_tokens": 60.0, "rows/padded_tokens": 100.0, "rows/tokens": 50.0},
        {"step": 2, "rows/sequence_tokens": 40.0, "rows/padded_tokens": 100.0, "rows/tokens": 50.0},
        {"step": 3, "rows/tokens": 1e9},
    )
    assert fill(run_of(logs=logs)) == (0.5, 1.0)
    logs = tuple({**log, "rows/fill": share} for log, share in zip(logs, (0.2, 0.4, 0.6), strict=True))
    assert (
        "filled to 40% of max_tokens_per_row"
        in fill_chart(contents_of(Group(label="m", runs=(run_of(logs=logs),)))).caption
    )


def test_prompts_are_sorted_by_reward_and_skips_are_marked():
    """Row 7 is solved, row 3 never, row 5 sometimes and then skipped, row 9 never rolled out."""
    prompts = (
        {"step": 0, "rows": [7, 3], "rolled_out": [True, True], "mean_reward": [1.0, 0.0]},
        {"step": 0, "rows": [5, 9], "rolled_out": [True, False], "mean_reward": [0.5, None]},
        {"step": 1, "rows": [7, 3], "rolled_out": [False, True], "mean_reward": [None, 0.25]},
        {"step": 1, "rows": [None, 5], "rolled_out": [True, False], "mean_reward": [1.0, None]},
    )
    found = prompt_map(run_of(prompts=prompts))
    nan = float("nan")
    np.testing.assert_array_equal(found.reward_PE, [[0.0, 0.25], [0.5, nan], [1.0, nan], [nan, nan]])
    np.testing.assert_array_equal(found.skipped_PE, [[0, 0], [0, 1], [0, 1], [1, 0]])
    assert found.unseen == 1
    chart = prompts_chart(Group(label="m", runs=(run_of(prompts=prompts),)), "prompts-0")
    said = ("4 prompts", "Skipped 3 of 7 visits", "1 prompt never rolled out")
    assert [words for words in said if words not in chart.caption] == []


def test_a_method_has_one_colour_everywhere_and_no_two_look_alike():
    labels = ["trl", "dppo", "cppo", "mine", "yours", *(f"m{k}" for k in range(20))]
    found = looks(labels)
    assert found["dppo"].colour == looks(["other", "dppo"])["dppo"].colour
    assert len({(look.colour, look.dash) for look in found.values()}) == len(labels)
    assert found["trl"].colour == SERIES["grey"][0]
    assert len(labels) <= len(SERIES) * len(DASHES)


def test_inline_figures_take_colours_from_the_page_and_share_no_ids(panels):
    with drawing():
        svgs = [as_inline_svg(chart, as_svg(chart.figure)) for drawn in panels.values() for chart in drawn]
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


def curve(x, y):
    return Series(x_I=np.array(x, dtype=float), value_I=np.array(y, dtype=float), left_out=0)


def test_the_mean_is_drawn_where_all_seeds_are():
    found = band([curve([0, 10], [0, 1]), curve([2, 6], [0.5, 0.5])])
    assert found.x_I.tolist() == [2, 6]
    np.testing.assert_allclose(found.mean_I, [(0.2 + 0.5) / 2, (0.6 + 0.5) / 2])
    assert band([curve([0, 1], [0, 1]), curve([2, 3], [0, 1])]) is None
    assert band([]) is None


def test_the_interval_holds_what_resampling_every_way_holds():
    """Enumerates all 27 resamples of three seeds, apart from the code under test."""
    values = [0.2, 0.5, 0.9]
    found = band([curve([0, 1], [value, 0.4]) for value in values])
    means = np.sort([np.mean(draw) for draw in product(values, repeat=3)])
    tail = expanded_tail(3)
    below = np.arange(1, 28) / 27
    low = means[np.searchsorted(below, tail)]
    high = means[::-1][np.searchsorted(below, tail)]
    np.testing.assert_allclose([found.low_I[0], found.high_I[0]], [low, high])
    np.testing.assert_allclose([found.low_I[1], found.high_I[1]], [0.4, 0.4])
