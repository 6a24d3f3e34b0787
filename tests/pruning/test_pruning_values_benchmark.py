"""What the page says of values as a prior is what the benchmark's file holds."""

import json
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "a_star_po.md").read_text()
ROWS = json.loads((ROOT / "benchmarks" / "results" / "values.json").read_text())["rows"]
PRIORS = ("mean over all", "reference, 2 samples", "reference, 8 samples")


def figure(figure, **wanted):
    """The value of the one record with these entries."""
    (row,) = [row for row in ROWS if row["figure"] == figure and wanted.items() <= row.items()]
    return row["value"]


def line(*cells):
    return "| " + " | ".join(cells) + " |"


def test_the_tables_on_the_page_are_those_of_the_file():
    for prior in PRIORS:
        found = [figure("auc", prior=prior, own_history=True, epoch=epoch) for epoch in range(3)]
        assert line(f"{prior}, with own history", *(f"{value:.2f}" for value in found)) in PAGE
    for epoch in (0, 1):
        for size in (1, 2, 4):
            found = [figure("advantage_square", prior=p, completions=size, epoch=epoch) for p in PRIORS]
            assert line(str(size), str(epoch + 1), *(f"{value:.3f}" for value in found)) in PAGE
    for size in (1, 2):
        by_start = {0: {}, 8: {}}
        for row in ROWS:
            if row["figure"] == "held_out_accuracy" and row["completions"] == size:
                by_start[row["reference_samples"]].setdefault(row["seed"], []).append(row["value"])
        plain, known = (np.array([np.mean(values) for values in by_start[n].values()]) for n in (0, 8))
        gain = known - plain
        each, error = ", ".join(f"{value:+.3f}" for value in gain), gain.std(ddof=1) / np.sqrt(len(gain))
        cells = line(str(size), f"{plain.mean():.3f}", f"{known.mean():.3f}", each, f"{gain.mean():+.3f} ± {error:.3f}")
        assert cells in PAGE and cells.replace("+", "-") not in PAGE
