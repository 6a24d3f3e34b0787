"""Curves of a demonstration as PNG."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")  # needs no display
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from dppo_lab.palette import colour_of

PANELS = (("seconds", "training seconds"), ("step", "optimizer steps"))


def draw_curves(results: dict[str, Any], path: Path) -> None:
    """Write a PNG of held-out accuracy over training seconds and over steps: a thin line per seed, the mean in bold."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, constrained_layout=True)
    for axis, (quantity, label) in zip(axes, PANELS, strict=True):
        for name, method in results["methods"].items():
            _draw_method(axis, name, method["curve"], quantity)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("held-out accuracy, sampled at temperature 1")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_method(axis: Axes, name: str, curves: list[list[dict[str, float]]], quantity: str) -> None:
    colour = colour_of(name)
    for curve in curves:
        axis.plot([p[quantity] for p in curve], [p["accuracy"] for p in curve], color=colour, alpha=0.35, linewidth=0.8)
    mean_x = np.mean([[p[quantity] for p in curve] for curve in curves], axis=0)
    mean_y = np.mean([[p["accuracy"] for p in curve] for curve in curves], axis=0)
    axis.plot(mean_x, mean_y, color=colour, linewidth=2.2, marker="o", markersize=3, label=name)
