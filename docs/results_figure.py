"""Draws docs/results.png from benchmarks/results/embedded_compare.json: accuracy over seconds, and rates against it.

python docs/results_figure.py
"""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "embedded_compare.json"
SHOWN = {
    "trl": "#444444",
    "grpo": "#7fb2e5",
    "cppo": "#c28e0e",
    "greso": "#86c98c",
    "dapo": "#b07cc6",
    "dppo": "#c0392b",
}
POINTS = 60


def curves(axes: Axes, results: dict[str, Any]) -> None:
    """Mean held-out accuracy over the seeds, against training seconds, as far as every seed goes."""
    for name, colour in SHOWN.items():
        runs = [run["curve"] for run in results["methods"][name]["runs"] if run["status"] == "finished"]
        second_S = np.linspace(0, min(curve[-1]["seconds"] for curve in runs), POINTS)
        accuracy_RS = [
            np.interp(second_S, [p["seconds"] for p in curve], [p["accuracy"] for p in curve]) for curve in runs
        ]
        axes.plot(second_S, np.mean(accuracy_RS, axis=0), color=colour, label=f"{name} ({len(runs)} seeds)")
    axes.set_xlabel("training seconds")
    axes.set_ylabel("held-out accuracy")
    axes.legend(frameon=False, fontsize=9)


def trade_off(axes: Axes, results: dict[str, Any]) -> None:
    """Final accuracy minus that of TRL's short run, against seconds per step, for every pair of rates."""
    rates = sorted({float(name.split("_rq")[1].split("_ro")[0]) for name in results["stages"]["rates"]})
    short = results["methods"]["trl_short"]["final"]["per_seed"]
    whole = mean_step(results["methods"]["trl_short"])
    for prompt, marker in zip(rates, "osD^", strict=True):
        methods = [results["methods"][f"dppo_rq{prompt}_ro{completion}"] for completion in rates]
        gain = [
            np.mean([value - short[seed] for seed, value in m["final"]["per_seed"].items() if value is not None])
            for m in methods
        ]
        axes.plot([whole / mean_step(m) for m in methods], gain, marker=marker, label=f"prompts pruned: {prompt}")
    axes.set_xlabel("candidate prompts per second over TRL's; along a line completions pruned 0.3 to 0.9")
    axes.set_ylabel("final accuracy minus TRL's, equal seconds")
    axes.axhline(0, color="#999999", linewidth=0.8)
    axes.legend(frameon=False, fontsize=9)


def mean_step(method: dict[str, Any]) -> float:
    """Training seconds per completion of a step's block, in the fastest run: others shared the machine."""
    block = method["overrides"]["per_device_train_batch_size"]
    ends = [run["curve"][-1] for run in method["runs"] if run["status"] == "finished"]
    return min(end["seconds"] / end["step"] for end in ends) / block


def main() -> None:
    """Draw and save."""
    results = json.loads(RESULTS.read_text())
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6))
    curves(left, results)
    trade_off(right, results)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.label.set_fontsize(9)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_name("results.png"), dpi=120)


if __name__ == "__main__":
    main()
