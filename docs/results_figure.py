"""Draws docs/results.png from benchmarks/results/embedded_compare.json.

Of several tasks: accuracy over seconds, and the share of seeds at the first target over seconds (Kaplan-Meier), a row
for each task. Of the file of the first comparison, which has one task: accuracy, and rates against it.

python docs/results_figure.py
"""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from dppo.comparison.curves import Point, reach
from dppo.comparison.survival import survival
from dppo.palette import FIXED, SERIES, colour_of

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "embedded_compare.json"
SHOWN = {name: colour_of(name) for name in FIXED} | {
    name: SERIES[colour][0] for name, colour in (("trl_g8", "sky"), ("grpo_rows", "indigo"), ("fewer_prompts", "wine"))
}
BEST = "#1d1f24"
"""Of the best of ours where it is none of those."""
POINTS = 60


def curves(axes: Axes, results: dict[str, Any]) -> None:
    """Mean held-out accuracy over the seeds, against training seconds, as far as every seed goes."""
    for name, colour in colours(results).items():
        runs = [run["curve"] for run in results["methods"][name]["runs"] if run["status"] == "finished"]
        second_S = np.linspace(0, min(curve[-1]["seconds"] for curve in runs), POINTS)
        accuracy_RS = [
            np.interp(second_S, [p["seconds"] for p in curve], [p["accuracy"] for p in curve]) for curve in runs
        ]
        axes.plot(second_S, np.mean(accuracy_RS, axis=0), color=colour, label=f"{name} ({len(runs)} seeds)")
    axes.set_xlabel("training seconds")
    axes.set_ylabel("held-out accuracy")
    axes.legend(frameon=False, fontsize=9)


def colours(results: dict[str, Any]) -> dict[str, str]:
    """Of the methods that are shown."""
    shown = {name: colour for name, colour in SHOWN.items() if name in results["methods"]}
    return shown | ({results["best"]: BEST} if results.get("best", "dppo") not in shown else {})


def arrivals(axes: Axes, task: dict[str, Any]) -> None:
    """Share of seeds that have reached the first target, over seconds; a dot where a run ended before."""
    name, target = next(iter(task["targets"].items()))
    for method, colour in colours(task).items():
        runs = [run for run in task["methods"][method]["runs"] if run["status"] == "finished"]
        places = [target["per_seed"][str(run["seed"])] for run in runs]
        found = [
            reach([Point(**point) for point in run["curve"]], place, "seconds")
            for run, place in zip(runs, places, strict=True)
            if place is not None
        ]
        known = [one for one in found if one is not None]
        if known:
            second, share = survival(known)
            axes.step([0.0, *second], [0.0, *(1 - share[0])], where="post", color=colour, label=method)
            ended = [
                place
                for place, one in enumerate(sorted(known, key=lambda one: (one.amount, not one.reached)))
                if not one.reached
            ]
            axes.plot(second[ended], (1 - share[0])[ended], ".", color=colour)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("training seconds")
    axes.set_ylabel(f"share of seeds at the final accuracy of {name}")
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
    tasks = results.get("tasks", {"": results})
    figure, places = plt.subplots(len(tasks), 2, figsize=(12, 4.6 * len(tasks)), squeeze=False)
    for (task, record), (left, right) in zip(tasks.items(), places, strict=True):
        curves(left, record)
        (arrivals if task else trade_off)(right, record)
        left.set_title(task)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
            axes.xaxis.label.set_fontsize(9)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_name("results.png"), dpi=120)


if __name__ == "__main__":
    main()
