"""Cells and tables of a report, from figures by hand."""

import pytest
from report_folders import run_of

from dppo.lab.comparison.words import Cell, Compared
from dppo.lab.report.sources import Group
from dppo.lab.report.tables import method_line

INTERVAL = {"low": 2.0, "high": 4.0, "per_seed": {"0": 2.0, "1": 3.0, "2": 4.0}}
MISSED = {"median": None, "low": 0.0, "high": 1.0, "at_most": 0.8, "reached": "2 of 5", "per_seed": {"0": [0, 0.8]}}


def line_of(**fields):
    """The line of a method with these fields of ``Compared``."""
    return method_line(Group(label="dppo", runs=(run_of(describe="d"),), compared=Compared(**fields)))


def test_the_table_has_the_papers_columns():
    row = line_of(
        speedup={"median": 3.0, **INTERVAL},
        readout={
            "biased": ["first", "second"],
            "final": {"mean": 0.7, "low": 0.6, "high": 0.8},
            "equal_updates": {"difference": {"mean": -0.011, "low": -0.03, "high": 0.01}},
            "equal_seconds": {"difference": {"mean": 0.05, "low": None, "high": None}},
        },
    )
    assert [(cell.text, cell.detail) for cell in (*row.compared, row.biased, *row.results)] == [
        ("3.00×", "2.00 to 4.00"),
        ("−1.1 pp", "−3.0 pp to +1.0 pp"),
        ("—", ""),
        ("+5.0 pp", "no interval"),
        ("yes", "first; second"),
        ("70.0%", "60.0% to 80.0%"),
        ("—", ""),
        ("1 of 1", ""),
    ]


@pytest.mark.parametrize(
    ("speedup", "text", "detail"),
    [
        ({"median": 3.0, **INTERVAL, "at_most": 3.5}, "≥ 3.00×", "2.00 to 4.00"),
        ({"median": 2.5, "low": 2.0, "high": None, "at_most": None}, "≥ 2.50×", "no upper end"),
        (MISSED, "not reached", "2 of 5 seeds"),
        # A verdict against it would be wrong: its runs ended before the baseline got there.
        (MISSED | {"at_most": 2.5}, "≤ 2.50×", "2 of 5 seeds"),
        ({"median": None, "per_seed": {"0": None}}, "—", ""),
    ],
)
def test_a_speedup_is_only_what_is_known(speedup, text, detail):
    assert line_of(speedup=speedup).compared[0] == Cell(text=text, detail=detail)
    unimproved = line_of(speedup=speedup, no_target="trl did not improve")
    assert unimproved.compared[0] == Cell(text="—", detail="trl did not improve")


def test_rates_stand_beside_what_they_saved():
    """Shares of tokens are means over steps; what was saved is of the run so far, so its last value counts."""
    steps = ({"saved/share": 0.01}, {"prune/token_kept_share": 0.5, "prune/head_share": 0.1, "saved/share": 0.31})
    logs = tuple({"step": step, "prune/kept_share": 0.25, **found} for step, found in enumerate(steps, 1))
    found = method_line(Group(label="dppo", runs=(run_of(config={"prompt_prune_rate": 0.3}, logs=logs),))).rates
    assert found.text == "0%, 30%"
    assert found.detail == "50.0% of the tokens kept; 10.0% of them to the head; saved 31.0% of the seconds"
