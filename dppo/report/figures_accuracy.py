"""Held-out accuracy over seconds, rollouts and updates."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dppo.report.curves import Curve, accuracy, averaged, band, seeds_in_words
from dppo.report.drawing import (
    DASHED,
    THOUSANDS,
    lacking,
    lines_figure,
    mean_line,
    name_methods,
    not_finite,
    short_label,
)
from dppo.report.records import Contents, Group
from dppo.report.style import MUTED, Chart, Look
from dppo.runs.folder import ACCURACY, TOTALS
from dppo.runs.reader import mapping, number
from dppo.statistics import FEWEST

OVERS = {
    "seconds": (
        TOTALS["seconds"],
        "seconds of training",
        "Seconds are wall-clock of training; evaluation and saving are not counted.",
    ),
    "rollouts": (
        TOTALS["rollouts"],
        "completions rolled out",
        "Rollouts are completions generated for training, kept or not.",
    ),
    "updates": ("step", "updates (optimizer steps)", "An update is one step of the optimizer."),
}
"""What accuracy is drawn over: the total's name in metrics.jsonl, the axis, and its unit in words."""
RECORD_ACCURACY = (
    "No run has an evaluation with {name}. It is recorded with eval_benchmarks: [NAME or NAME=FILE] and "
    "eval_benchmark_every: 20 in the configuration; dppo compare sets both."
)
RECORD_TOTAL = "The evaluations do not say {name}. Runs of this version record it at every log: train again."


def accuracy_chart(contents: Contents, look: Mapping[str, Look], over: str) -> Chart:
    """Accuracy over one of ``OVERS``: a thin line per seed, the mean in bold, and its interval."""
    name, axis, unit = OVERS[over]
    key, title = f"accuracy-{over}", f"Accuracy against {over}"
    curves = {group: [accuracy(run, name) for run in group.logged] for group in contents.groups}
    drawn = [group for group, found in curves.items() if any(len(curve.x_K) for curve in found)]
    if not drawn:
        evaluated = any(ACCURACY in log for run in contents.runs for log in run.logs)
        text = RECORD_TOTAL.format(name=name) if evaluated else RECORD_ACCURACY.format(name=ACCURACY)
        return Chart(key=key, title=title, caption=text, figure=None)
    figure, axes = lines_figure(drawn, 3.1)
    for group in drawn:
        _draw(axes, group, curves[group], look[group.label], name)
    _target(axes, contents)
    axes.set_xlabel(axis)
    axes.set_ylabel("held-out accuracy (% of problems)")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{100 * value:.4g}%"))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=over != "seconds"))
    axes.xaxis.set_major_formatter(THOUSANDS)
    axes.margins(y=0.09)
    name_methods(figure, drawn)
    left_out = not_finite([curve.left_out for found in curves.values() for curve in found], "evaluation")
    caption = unit + lacking(contents, drawn, "No accuracy in") + left_out
    return Chart(key=key, title=title, caption=caption, figure=figure)


def _draw(axes: Axes, group: Group, curves: list[Curve], look: Look, over: str) -> None:
    for curve in curves:
        axes.plot(curve.x_K, curve.y_K, color=look.colour, linewidth=0.7, alpha=0.3)
    mean = band([accuracy(run, over) for run in averaged(group)])
    if mean is None:
        axes.plot([], [], color=look.colour, linestyle=look.dash, label=short_label(group.label))
        return
    if mean.low_K is not None and mean.high_K is not None:
        axes.fill_between(mean.x_K, mean.low_K, mean.high_K, color=look.colour, alpha=0.16, linewidth=0)
    mean_line(axes, mean.x_K, mean.mean_K, look, group, size=3.6)


def _target(axes: Axes, contents: Contents) -> None:
    """A line at the baseline's final accuracy, where the comparison has one."""
    for group in contents.groups:
        value = number(mapping(group.readout.get("final")).get("mean"))
        if group.is_baseline and value == value:
            axes.axhline(value, color=MUTED, linewidth=0.9, linestyle=DASHED)
            axes.annotate(
                f"final accuracy of {short_label(group.label)}", (0, value), fontsize=8.5, color=MUTED,
                xycoords=("axes fraction", "data"), xytext=(3, 2), textcoords="offset points", va="bottom",
            )  # fmt: skip


def how_to_read(contents: Contents) -> str:
    """What lines and bands are, and how many seeds of each method are in its mean."""
    lines = "; ".join(map(seeds_in_words, contents.groups))
    enough = any(len(averaged(group)) >= FEWEST for group in contents.groups)
    shown = "mean over seeds, with its 95% bootstrap interval where accuracy is shown" if enough else "mean over seeds"
    return f"Bold: {shown}; thin: each seed. Seeds in the mean: {lines}."
