"""Draws docs/chat_model.png from benchmarks/results/smollm2.json: what three trainers learn without and with a KL term.

python -m docs.chat_model_figure
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.pages import read
from benchmarks.shared import Record
from dppo.lab.palette import colour_of
from dppo.lab.report.charts import PERCENT, drawing, saved
from dppo.lab.report.curves import band
from dppo.lab.runs.reader import Series

PICTURE = Path(__file__).with_name("chat_model.png")
REGIMES = {"no_kl": "without a KL term", "kl": "with a KL term"}
TRAINERS = {"trl": ("TRL", "trl"), "control": ("plain GRPO, packed", "grpo"), "default": ("dppo", "dppo")}
"""By method of the record: name, and the method whose colour it has."""


def curves(runs: Sequence[Record]) -> list[Series]:
    """Accuracy over CPU seconds of each run."""
    columns = [{name: np.array([point[name] for point in run["curve"]]) for name in run["curve"][0]} for run in runs]
    return [Series(x_I=each["seconds"], value_I=each["accuracy"], left_out=0) for each in columns]


def drawn(regimes: Record) -> Figure:
    """Means over seeds with their 95% intervals, a panel for each regime."""
    figure = Figure(figsize=(8.0, 3.0), layout="constrained")
    for axes, (regime, title) in zip(figure.subplots(1, len(REGIMES), sharey=True), REGIMES.items(), strict=True):
        for method, (label, colour) in TRAINERS.items():
            runs = regimes[regime]["methods"][method]["runs"]
            found = band(curves(runs))
            assert found is not None
            seconds_I, mean_I, low_I, high_I = found
            axes.fill_between(seconds_I, low_I, high_I, color=colour_of(colour), alpha=0.15, linewidth=0)
            axes.plot(seconds_I, mean_I, color=colour_of(colour), label=f"{label}, {len(runs)} seeds")
        axes.set_title(title)
        axes.set_xlabel("training seconds of one CPU core")
        axes.yaxis.set_major_formatter(PERCENT)
        axes.legend(loc="lower right")
    figure.axes[0].set_ylabel("right of 51 held-out questions")
    return figure


def main() -> None:
    """Draw both panels."""
    with drawing():
        PICTURE.write_bytes(saved(drawn(read("smollm2")["regimes"]), "png"))


if __name__ == "__main__":
    main()
