"""Figures of a report: accuracy over its cost, pruning over updates, and seconds by phase, as SVG or PNG."""

import io
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, product
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from dppo.lab.comparison.words import counted, duration
from dppo.lab.palette import FIXED, SERIES
from dppo.lab.report.curves import averaged, band, phase_seconds
from dppo.lab.report.sources import Contents, Group, shortened, visible
from dppo.lab.runs.folder import ACCURACY, TOTALS
from dppo.lab.runs.reader import mapping, number

MUTED, GRID = "#5c6068", "#dcdfe4"
PHASES = {
    "rollout": ("#77aadd", "rollout"),
    "reward": ("#eedd88", "reward"),
    "prune": ("#ee8866", "pruning"),
    "log_probs": ("#bbcc33", "log-probabilities"),
    "forward_backward": ("#99ddff", "forward and backward"),
    "optimizer": ("#ffaabb", "optimizer"),
    "other": ("#c6c8cc", "not in a phase"),
}
"""Colour and name of each phase."""
DASHES, MARKERS = ("-", "--", ":", "-."), "osD^vP*Xh"
RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dppo",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}
WIDTH, HEIGHT = 4.6, 3.1
"""Inches of a figure: narrow, so that on a phone its text is as large as the page's small print."""
THOUSANDS = FuncFormatter(lambda value, place: f"{value / 1000:,.6g}k" if abs(value) >= 1000 else f"{value:g}")
PERCENT = FuncFormatter(lambda value, place: f"{100 * value:.4g}%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Colour, line and marker of one method, everywhere."""

    colour: str
    dash: str
    marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure, or the reason why it cannot be drawn."""

    title: str
    caption: str
    figure: Figure | None = None
    """None if figures are missing; ``caption`` then names the setting that records them."""


@contextmanager
def drawing() -> Iterator[None]:
    """A context in which figures are made and saved in the report's style."""
    with warnings.catch_warnings(), matplotlib.rc_context(RC):
        # Names may be in any script: a browser has the fonts, and PNG files a box instead.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def looks(labels: Sequence[str]) -> dict[str, Look]:
    """How each method of a report is drawn."""
    fixed = {label: FIXED[label] for label in labels if label in FIXED}
    free = [name for name in SERIES if name not in fixed.values()] or list(SERIES)
    others = cycle(
        [*((name, DASHES[0]) for name in free), *((name, dash) for dash, name in product(DASHES[1:], SERIES))]
    )
    found = {}
    for place, label in enumerate(labels):
        name, dash = (fixed[label], DASHES[0]) if label in fixed else next(others)
        found[label] = Look(colour=SERIES[name][0], dash=dash, marker=MARKERS[place % len(MARKERS)])
    return found


def saved(figure: Figure, kind: str) -> bytes:
    """The figure, made within ``drawing``, as ``svg`` or ``png``; equal figures have equal bytes."""
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    return buffer.getvalue()


def short_label(label: str) -> str:
    """A method's name as it fits a legend."""
    text = shortened(visible(label).replace("\n", " "), 26)
    return f" {text}" if text.startswith("_") else text  # matplotlib leaves such names out of legends


OVERS = {
    "seconds": (TOTALS["seconds"], "seconds of training", "Seconds of training, without evaluation and saving."),
    "rollouts": (TOTALS["rollouts"], "completions rolled out", "Completions generated for training, kept or not."),
    "updates": ("step", "updates (optimizer steps)", "An update is one step of the optimizer."),
}
"""Totals that accuracy is drawn over: the name in metrics.jsonl, the axis, and the caption."""
RECORD_ACCURACY = (
    f"No run has an evaluation with {ACCURACY}. It is recorded with eval_benchmarks: [NAME or NAME=FILE] and "
    "eval_benchmark_every: 20 in the configuration; dppo compare sets both."
)


def accuracy_chart(contents: Contents, look: Mapping[str, Look], over: str, width: float = WIDTH) -> Chart:
    """Accuracy over one of ``OVERS``."""
    name, axis, caption = OVERS[over]

    def finish(axes: Axes) -> None:
        _target(axes, contents)
        axes.set_xlabel(axis)
        axes.set_ylabel("held-out accuracy (% of problems)")
        axes.yaxis.set_major_formatter(PERCENT)
        axes.xaxis.set_major_formatter(THOUSANDS)
        axes.margins(y=0.09)

    chart = Chart(title=f"Accuracy against {over}", caption=RECORD_ACCURACY)
    return _lines(contents, look, chart, (ACCURACY, name), finish, caption, width)


def _target(axes: Axes, contents: Contents) -> None:
    """A line at the baseline's final accuracy, if the comparison has one."""
    for group in contents.groups:
        value = number(mapping(group.compared.readout.get("final")).get("mean"))
        if group.compared.is_baseline and value == value:
            axes.axhline(value, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
            axes.annotate(
                f"final accuracy of {short_label(group.label)}", (0, value), fontsize=8.5, color=MUTED,
                xycoords=("axes fraction", "data"), xytext=(3, 2), textcoords="offset points", va="bottom",
            )  # fmt: skip


def _lines(
    contents: Contents,
    look: Mapping[str, Look],
    chart: Chart,
    series: tuple[str, str],
    finish: Callable[[Axes], None],
    caption: str,
    width: float = WIDTH,
) -> Chart:
    """A thin line per seed, and their mean in bold with its interval; ``chart`` as it is without any curve.

    ``series`` is a figure and what it is drawn over, and ``caption`` that of a chart with curves.
    """
    curves = {group: [run.series(*series) for run in group.logged] for group in contents.groups}
    drawn = [group for group, found in curves.items() if any(len(curve.x_I) for curve in found)]
    if not drawn:
        return chart
    longest = max(len(short_label(group.label)) for group in drawn)
    columns = max(1, min(len(drawn), int(width / (0.55 + 0.085 * longest))))
    figure = Figure(figsize=(width, HEIGHT + 0.2 * -(-len(drawn) // columns)), layout="constrained")
    axes = figure.subplots()
    for group in drawn:
        style, mean = look[group.label], band([run.series(*series) for run in averaged(group)])
        for curve in curves[group]:
            axes.plot(curve.x_I, curve.value_I, color=style.colour, linewidth=0.7, alpha=0.3)
        x_I, mean_I = ([], []) if mean is None else (mean.x_I, mean.mean_I)
        if mean is not None and mean.low_I is not None and mean.high_I is not None:
            axes.fill_between(mean.x_I, mean.low_I, mean.high_I, color=style.colour, alpha=0.16, linewidth=0)
        axes.plot(x_I, mean_I, color=style.colour, linestyle=style.dash, marker=style.marker, markersize=3.4,
                  markevery=max(1, len(x_I) // 8), label=short_label(group.label))  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    finish(axes)
    figure.legend(loc="outside lower center", ncols=columns)
    left_out = sum(curve.left_out for found in curves.values() for curve in found)
    caption += lacking(contents, drawn, "Not in")
    caption += f" {counted(left_out, 'record')} without a finite figure left out." if left_out else ""
    return replace(chart, caption=caption, figure=figure)


def lacking(contents: Contents, drawn: Collection[Group], what: str) -> str:
    """A sentence that names the methods that are not drawn; empty if all are."""
    missing = [group.label for group in contents.groups if group not in drawn]
    return f" {what} the logs of {', '.join(missing)}." if missing else ""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of ``metrics.jsonl``, its axis, and how to read it."""

    name: str
    title: str
    axis: str
    reading: str
    share: bool = False
    """True for a share of a whole."""


METRICS = (
    Metric(
        "prune/kept_share", "Completions kept", "kept (% of rolled out)",
        "Completions trained on, over all that were rolled out for the update, those with advantage zero included.",
        True,
    ),
    Metric(
        "prune/prompts_kept_share", "Prompts rolled out", "rolled out (% of candidates)",
        "Prompts rolled out, over the candidates of the generation.",
        True,
    ),
    Metric(
        "prune/effective_rows", "Effective rows", "effective rows per update",
        "How many equally weighted completions the kept ones are worth: (sum of weights)² over the sum of squared "
        "weights, per update.",
    ),
    Metric(
        "prune/added_variance", "Added variance", "added variance (× full)",
        "The second moment that the draw adds, over that of the full batch, by the score's own reckoning; 0.5 means "
        "half as much again.",
    ),
    Metric(
        "prune/largest_weight", "Largest weight", "weight (1 = not pruned)",
        "One over the smallest probability that was kept, prompt and completion together; 1 is an unpruned completion.",
    ),
    Metric(
        "candidates/reward", "Reward of all candidates", "mean reward",
        "Mean reward over all candidate prompts, estimated from those rolled out with one over their probability as "
        "weight.",
    ),
)  # fmt: skip


def metric_chart(contents: Contents, look: Mapping[str, Look], metric: Metric) -> Chart:
    """One of ``METRICS`` over updates."""

    def finish(axes: Axes) -> None:
        axes.set_xlabel("updates (optimizer steps)")
        axes.set_ylabel(metric.axis)
        if metric.share:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            axes.set_ylim(-0.02, 1.02)
        else:  # from zero, so that noise looks as large as it is
            axes.yaxis.set_major_formatter(THOUSANDS)
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))

    why = f"No log has {metric.name}. DPPOTrainer records it at every log (logging_steps: 5); stock TRL has it not."
    chart = Chart(title=metric.title, caption=why)
    return _lines(contents, look, chart, (metric.name, "step"), finish, metric.reading)


def phases_chart(contents: Contents) -> Chart:
    """One bar per method, stacked by phase: seconds of a whole run, mean over seeds."""
    title, drawn = "Seconds of a run by phase", dict[Group, dict[str, float]]()
    for group in contents.groups:
        if found := [phases for run in averaged(group) if (phases := phase_seconds(run, group))]:
            drawn[group] = {name: sum(each.get(name, 0.0) for each in found) / len(found) for name in PHASES}
    if not drawn:
        why = "No log has time/<phase>. DPPOTrainer records it at every log, dppo compare the phases of stock TRL too."
        return Chart(title=title, caption=why)
    figure = Figure(figsize=(WIDTH, 2.0 + 0.36 * len(drawn)), layout="constrained")
    axes, left = figure.subplots(), np.zeros(len(drawn))
    for name, (colour, word) in PHASES.items():
        width = np.array([phases[name] for phases in drawn.values()])
        if width.any():
            axes.barh(range(len(drawn)), width, left=left, height=0.66, color=colour, label=word)
            left += width
    totals = [duration(total) for total in left.tolist()]
    axes.bar_label(cast(BarContainer, axes.containers[-1]), totals, padding=4, fontsize=8.5)
    axes.set_xlim(0, max(left) * 1.25 or 1.0)
    axes.set_yticks(range(len(drawn)), [short_label(group.label) for group in drawn])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds of a run")
    figure.legend(loc="outside lower center", ncols=2)
    caption = f"Seconds of one run, mean over seeds.{lacking(contents, drawn, 'No phases in')}"
    return Chart(title=title, caption=caption, figure=figure)
