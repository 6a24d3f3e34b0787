"""Figures of a report: drawn with units, means and intervals by hand, one look for each method."""

import numpy as np
import report_folders as made

from dppo.lab.palette import SERIES
from dppo.lab.report.charts import drawing, looks, phase_seconds
from dppo.lab.report.curves import band
from dppo.lab.report.page import draw_panels
from dppo.lab.report.sources import read_sources
from dppo.lab.runs.reader import Series


def test_every_figure_of_a_whole_comparison_is_drawn_with_units_on_its_axes():
    contents = read_sources(made.SAMPLE)
    with drawing():
        panels = draw_panels(contents, looks(["trl", "grpo", "cppo", "dppo"]))
    charts = [chart for drawn in panels.values() for chart in drawn]
    assert [chart.title for chart in charts if chart.figure is None] == [] and len(charts) == 2 + 1 + 3
    for chart in charts:
        first = chart.figure.axes[0]
        assert chart.caption and first.get_xlabel() and (first.get_ylabel() or first.get_yticklabels()), chart.title
    target = charts[0].figure.axes[0]
    assert [text.get_text() for text in target.texts] == ["final accuracy of trl"]
    final = contents.groups[0].compared.readout["final"]["mean"]
    assert any(list(line.get_ydata()) == [final] * 2 for line in target.lines)


def test_seconds_by_phase_are_means_times_updates():
    """By hand: 5 * 2 + 10 * 1 and 5 * 1 + 10 * 3. The rest of the total is other, whatever a log calls so."""
    logs = (
        {"step": 5, "time/rollout": 2.0, "time/optimizer": 1.0, "time/other": 0.2, "total/seconds": 20.0},
        {"step": 15, "time/rollout": 1.0, "time/optimizer": 3.0, "total/seconds": 60.0},
    )
    assert phase_seconds(made.run_of(logs=logs)) == {"rollout": 20.0, "optimizer": 35.0, "other": 5.0}


def test_a_method_has_one_colour_everywhere_and_no_two_look_alike():
    labels = ["trl", "dppo", "cppo", "mine", *(f"m{k}" for k in range(20))]
    found = looks(labels)
    assert found["dppo"].colour == looks(["other", "dppo"])["dppo"].colour and found["trl"].colour == SERIES["grey"][0]
    assert len({(look.colour, look.dash) for look in found.values()}) == len(labels)


def curve(x, y):
    return Series(x_I=np.array(x, dtype=float), value_I=np.array(y, dtype=float), left_out=0)


def test_the_mean_is_drawn_where_all_seeds_are():
    found = band([curve([0, 10], [0, 1]), curve([2, 6], [0.5, 0.5])])
    np.testing.assert_allclose(found[:2], [[2, 6], [(0.2 + 0.5) / 2, (0.6 + 0.5) / 2]])
    assert np.isnan(found[2:]).all(), "no interval of two seeds"
    assert band([curve([0, 1], [0, 1]), curve([2, 3], [0, 1])]) is band([]) is None
