"""Held-out accuracy over seconds, rollouts and updates."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dppo.report.curves import Curve, accuracy, averaged, band, seeds_in_words
from dppo.report.records import Contents, Group
from dppo.report.style import MUTED, Chart, Look, new_figure
from dppo.report.text import counted, shortened, visible
from dppo.runs.folder import ACCURACY
from dppo.runs.reader import number
from dppo.statistics import FEWEST

OVERS = {
    "seconds": (
        "total/seconds",
        "seconds of training",
        "Seconds are wall-clock of training; evaluation and saving are not counted.",
    ),
    "rollouts": (
        "total/rollouts",
        "completions rolled out",
        "Rollouts are completions generated for training, kept or not.",
    ),
    "updates": ("step", "updates (optimizer steps)", "An update is one step of the optimizer."),
}
"""What accuracy is drawn over: the total's name in metrics.jsonl, the axis, and its unit in words."""
THOUSANDS = FuncFormatter(lambda value, place: f"{value / 1000:,.6g}k" if abs(value) >= 1000 else f"{value:g}")
RECORD_ACCURACY = (
    "No run has an evaluation with {name}. It is recorded with eval_benchmarks: [NAME or NAME=FILE] and "
    "eval_benchmark_every: 20 in the configuration; dppo compare sets both."
)
RECORD_TOTAL = "The evaluations do not say {name}. Runs of this version record it at every log: train again."


def accuracy_chart(contents: Contents, look: Mapping[str, Look], over: str) -> Chart:
    """Accuracy over one of ``OVERS``: a thin line per seed, the mean in bold, and its interval.

    Args:
        contents: of the report.
        look: of every method.
        over: one of ``OVERS``.
    """
    name, axis, unit = OVERS[over]
    title = f"Accuracy against {over}"
    curves = {group.label: [accuracy(run, name) for run in group.logged] for group in contents.groups}
    if not any(len(curve.x_K) for found in curves.values() for curve in found):
        lacking = any(ACCURACY in log for run in contents.runs for log in run.logs)
        text = RECORD_TOTAL.format(name=name) if lacking else RECORD_ACCURACY.format(name=ACCURACY)
        return Chart(key=f"accuracy-{over}", title=title, caption=text, figure=None)
    drawn = [group for group in contents.groups if any(len(curve.x_K) for curve in curves[group.label])]
    figure = new_figure(height=3.1 + 0.17 * ((len(drawn) + 2) // 3))
    axes = figure.subplots()
    for group in drawn:
        _draw(axes, group, curves[group.label], look[group.label], name)
    _target(axes, contents)
    axes.set_xlabel(axis)
    axes.set_ylabel("held-out accuracy (% of problems)")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{100 * value:.4g}%"))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=over != "seconds"))
    axes.xaxis.set_major_formatter(THOUSANDS)
    axes.margins(y=0.09)
    figure.legend(loc="outside lower center", ncols=min(3, len(drawn)))
    missing = [group.label for group in contents.groups if group not in drawn]
    left_out = sum(curve.left_out for found in curves.values() for curve in found)
    caption = unit
    caption += f" No accuracy in the logs of {', '.join(missing)}." if missing else ""
    caption += f" {counted(left_out, 'evaluation')} without a finite figure left out." if left_out else ""
    return Chart(key=f"accuracy-{over}", title=title, caption=caption, figure=figure)


def short_label(label: str) -> str:
    """A method's name as it fits a legend.

    Args:
        label: of the group.
    """
    text = shortened(visible(label).replace("\n", " "), 26)
    return f" {text}" if text.startswith("_") else text  # matplotlib leaves such names out of legends


def _draw(axes: Axes, group: Group, curves: list[Curve], look: Look, over: str) -> None:
    for curve in curves:
        axes.plot(curve.x_K, curve.y_K, color=look.colour, linewidth=0.7, alpha=0.3)
    label = short_label(group.label)
    mean = band([accuracy(run, over) for run in averaged(group)])
    if mean is None:
        axes.plot([], [], color=look.colour, linestyle=look.dash, label=label)
        return
    if mean.low_K is not None and mean.high_K is not None:
        axes.fill_between(mean.x_K, mean.low_K, mean.high_K, color=look.colour, alpha=0.16, linewidth=0)
    every = max(1, len(mean.x_K) // 8)
    axes.plot(
        mean.x_K,
        mean.mean_K,
        color=look.colour,
        linestyle=look.dash,
        marker=look.marker,
        markersize=3.6,
        markevery=every,
        label=label,
    )


def _target(axes: Axes, contents: Contents) -> None:
    """A line at the baseline's final accuracy, where the comparison has one."""
    for group in contents.groups:
        final = group.readout.get("final")
        known = group.source and group.name == group.baseline and isinstance(final, dict)
        value = number(final.get("mean")) if known and isinstance(final, dict) else float("nan")
        if value == value:
            axes.axhline(value, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
            axes.annotate(
                f"final accuracy of {short_label(group.label)}",
                (0, value),
                fontsize=8.5,
                color=MUTED,
                xycoords=("axes fraction", "data"),
                xytext=(3, 2),
                textcoords="offset points",
                va="bottom",
            )


def how_to_read(contents: Contents) -> str:
    """What lines and bands are, and how many seeds of each method are in its mean.

    Args:
        contents: of the report.
    """
    lines = "; ".join(map(seeds_in_words, contents.groups))
    enough = any(len(averaged(group)) >= FEWEST for group in contents.groups)
    shown = "mean over seeds, with its 95% bootstrap interval where accuracy is shown" if enough else "mean over seeds"
    return f"Bold: {shown}; thin: each seed. Seeds in the mean: {lines}."
