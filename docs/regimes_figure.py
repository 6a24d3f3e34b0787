"""Draws docs/regimes.png from benchmarks/results/regimes.json: what three trainers learn without and with a KL term.

python docs/regimes_figure.py
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.shared import Record
from dppo.lab.palette import colour_of

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "regimes.json"
PANELS = {"two_passes": "without a KL term", "kl_two_passes": "with a KL term"}
LINES = {"trl_g8": ("trl", "TRL"), "control": ("grpo", "plain GRPO, packed"), "default": ("dppo", "dppo")}
"""By contestant, whose colour it has and what it is called."""


def panel(axes: Axes, point: Record, title: str) -> None:
    """Mean held-out accuracy over training seconds, with its 95% interval over seeds."""
    for name, (colour, label) in LINES.items():
        second_S, mean_S, low_S, high_S = zip(*point["curves"][name], strict=True)
        line, *_ = axes.plot(second_S, mean_S, color=colour_of(colour), label=label, linewidth=2)
        axes.fill_between(second_S, low_S, high_S, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_title(f"{title}, {point['seeds']} seeds")
    axes.set_xlabel("training seconds of one CPU core")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Draw both panels."""
    points = json.loads(RESULTS.read_text(encoding="utf-8"))["regimes"]
    figure, places = plt.subplots(1, len(PANELS), figsize=(10, 4), sharey=True, layout="constrained")
    for axes, (name, title) in zip(places, PANELS.items(), strict=True):
        panel(axes, points[name], title)
    places[0].set_ylabel("held-out accuracy")
    places[0].legend(frameon=False, loc="lower right")
    figure.savefig(RESULTS.parents[2] / "docs" / "regimes.png", dpi=110)


if __name__ == "__main__":
    main()
