"""Draws docs/results.png from benchmarks/results/embedded_compare.json: held-out accuracy over seconds, by task.

python docs/results_figure.py
"""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.learning.points import mean_curve
from benchmarks.learning.tables import LABELS
from dppo_lab.palette import FIXED, SERIES, colour_of

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "embedded_compare.json"
SHOWN = {name: colour_of(name) for name in FIXED} | {
    name: SERIES[colour][0] for name, colour in (("trl_g8", "wine"), ("grpo_rows", "indigo"), ("fewer_prompts", "sky"))
}
OURS = "#1d1f24"
"""Of the best of ours, where it is none of those; what the default does is blue."""


def curves(axes: Axes, results: dict[str, Any]) -> None:
    """Mean held-out accuracy against training seconds as far as every run goes, over the seeds that all lines have."""
    runs_of = {name: finished(results["methods"][name]) for name in colours(results)}
    seeds = set.intersection(*(set(runs) for runs in runs_of.values()))
    for name, colour in colours(results).items():
        runs = [runs_of[name][seed]["curve"] for seed in sorted(seeds)]
        second_S, accuracy_S, *_ = zip(*mean_curve(runs), strict=True)
        axes.plot(second_S, accuracy_S, color=colour, label=called(name), linewidth=2)
    axes.set_xlabel("training seconds")
    axes.set_ylabel(f"held-out accuracy, mean of {len(seeds)} seeds")
    axes.legend(frameon=False, fontsize=9)


def called(name: str) -> str:
    """A contestant as docs/results.md calls it."""
    return LABELS[name].replace("*", "").replace("`", "")


def finished(method: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Runs by seed."""
    return {run["seed"]: run for run in method["runs"] if run["status"] == "finished"}


def colours(results: dict[str, Any]) -> dict[str, str]:
    """Of the methods that are shown."""
    ours = results["default"] if results["default"] in results["methods"] else results["best"]
    others = ("dppo",) if ours != "dppo" else ()
    shown = {name: colour for name, colour in SHOWN.items() if name in results["methods"] and name not in others}
    return shown | ({} if ours in shown else {ours: SHOWN["dppo"] if ours == results["default"] else OURS})


def main() -> None:
    """Draw and save."""
    tasks = json.loads(RESULTS.read_text())["tasks"]
    figure, places = plt.subplots(1, len(tasks), figsize=(12, 4.4), squeeze=False)
    for axes, (task, record) in zip(places[0], tasks.items(), strict=True):
        curves(axes, record)
        axes.set_title(task)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_name("results.png"), dpi=120)


if __name__ == "__main__":
    main()
