"""Figures of a report: metrics over totals, with means and intervals, and seconds by phase, as SVG or PNG."""

import io
import textwrap
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dppo.lab.comparison.words import duration
from dppo.lab.palette import FIXED, SERIES
from dppo.lab.report.curves import averaged, band, last_of
from dppo.lab.report.sources import Contents, Group
from dppo.lab.runs.folder import ACCURACY, TOTALS
from dppo.lab.runs.reader import RunRecord, mapping, number, phases_of

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
DASHES = ("-", "--", ":", "-.")
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
    """Colour and line of one method, everywhere."""

    colour: str
    dash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure, or the reason why it cannot be drawn."""

    title: str
    caption: str
    figure: Figure | None = None
    """None if figures are missing; ``caption`` then names the setting that records them."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of ``metrics.jsonl``, its title and axis, how to read it, and what it is drawn over."""

    name: str
    title: str
    axis: str
    reading: str
    over: str = "step"
    over_axis: str = "updates (optimizer steps)"


ACCURACY_OVER_SECONDS = Metric(
    ACCURACY, "Accuracy against seconds", "held-out accuracy (% of problems)",
    "Seconds of training, without evaluation and saving.", TOTALS["seconds"], "seconds of training",
)  # fmt: skip
REWARD = Metric(
    "candidates/reward", "Reward of all candidates", "mean reward",
    "Mean reward over all candidate prompts; those rolled out have one over their probability as weight.",
)  # fmt: skip
PRUNED = (
    Metric(
        "prune/kept_share", "Completions kept", "kept (% of rolled out)",
        "Completions trained on, over all that were rolled out, those with advantage zero included.",
    ),
    Metric(
        "prune/prompts_kept_share", "Prompts rolled out", "rolled out (% of candidates)",
        "Prompts rolled out, over the candidates of the generation.",
    ),
    Metric(
        "prune/added_variance", "Added variance", "added variance (× full)",
        "The second moment that the draw adds, over that of the full batch, estimated by the score.",
    ),
)  # fmt: skip


@contextmanager
def drawing() -> Iterator[None]:
    """A context in which figures are made and saved in the report's style."""
    with warnings.catch_warnings(), matplotlib.rc_context(RC):
        # Names may be in any script: a browser has the fonts, and PNG files a box instead.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def looks(labels: Sequence[str]) -> dict[str, Look]:
    """How each method of a report is drawn: in its own colour, or in one that is left."""
    fixed = {label: (FIXED[label], DASHES[0]) for label in labels if label in FIXED}
    free = (pair[::-1] for pair in product(DASHES, SERIES) if pair[::-1] not in fixed.values())
    chosen = {label: fixed[label] if label in fixed else next(free) for label in labels}
    return {label: Look(colour=SERIES[name][0], dash=dash) for label, (name, dash) in chosen.items()}


def saved(figure: Figure, kind: str) -> bytes:
    """The figure, made within ``drawing``, as ``svg`` or ``png``; equal figures have equal bytes."""
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    return buffer.getvalue()


def short_label(label: str) -> str:
    """A method's name as it fits a legend."""
    text = textwrap.shorten(label, 30, placeholder="…")
    return f" {text}" if text.startswith("_") else text  # matplotlib leaves such names out of legends


def metric_chart(contents: Contents, look: Mapping[str, Look], metric: Metric, width: float = WIDTH) -> Chart:
    """A thin line per seed, and their mean in bold with its interval."""
    runs = {group: [run.series(metric.name, metric.over) for run in group.logged] for group in contents.groups}
    drawn = [group for group, curves in runs.items() if any(len(curve.x_I) for curve in curves)]
    if not drawn:
        how = "eval_benchmarks: [NAME or NAME=FILE]" if metric.name == ACCURACY else "DPPOTrainer at every log"
        return Chart(title=metric.title, caption=f"No log has {metric.name}. It is recorded with {how}.")
    longest = max(len(short_label(group.label)) for group in drawn)
    columns = max(1, min(len(drawn), int(width / (0.55 + 0.085 * longest))))
    figure = Figure(figsize=(width, HEIGHT + 0.2 * -(-len(drawn) // columns)), layout="constrained")
    axes = figure.subplots()
    for group in drawn:
        style, mean = look[group.label], band([run.series(metric.name, metric.over) for run in averaged(group)])
        for curve in runs[group]:
            axes.plot(curve.x_I, curve.value_I, color=style.colour, linewidth=0.7, alpha=0.3)
        x_I, mean_I, low_I, high_I = np.empty((4, 0)) if mean is None else mean
        axes.fill_between(x_I, low_I, high_I, color=style.colour, alpha=0.16, linewidth=0)
        axes.plot(x_I, mean_I, color=style.colour, linestyle=style.dash, label=short_label(group.label))
    _finish(axes, metric, contents)
    figure.legend(loc="outside lower center", ncols=columns)
    return Chart(title=metric.title, caption=f"{metric.reading}{lacking(contents, drawn)}", figure=figure)


def _finish(axes: Axes, metric: Metric, contents: Contents) -> None:
    """Axes of a chart; over accuracies a line at the baseline's final one."""
    axes.set_xlabel(metric.over_axis)
    axes.set_ylabel(metric.axis)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter(THOUSANDS)
    share = "%" in metric.axis
    axes.yaxis.set_major_formatter(PERCENT if share else THOUSANDS)
    if metric.name != ACCURACY:  # from zero, so that noise looks as large as it is
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]), top=1.02 if share else None)
        return
    for group in contents.groups:
        value = number(mapping(group.compared.readout.get("final")).get("mean"))
        if group.compared.is_baseline and value == value:
            axes.axhline(value, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
            axes.annotate(
                f"final accuracy of {short_label(group.label)}", (0, value), fontsize=8.5, color=MUTED,
                xycoords=("axes fraction", "data"), xytext=(3, 2), textcoords="offset points", va="bottom",
            )  # fmt: skip


def lacking(contents: Contents, drawn: Collection[Group]) -> str:
    """A sentence that names the methods that are not drawn; empty if all are."""
    missing = [group.label for group in contents.groups if group not in drawn]
    return f" Not in the logs of {', '.join(missing)}." if missing else ""


def phase_seconds(run: RunRecord) -> dict[str, float]:
    """Seconds of a run by phase, from its logs. Seconds in no known phase are "other", if the total is known."""
    found = phases_of(run.logs)
    seconds = {name: found[name] for name in PHASES if name in found and name != "other"}
    rest = last_of(run, TOTALS["seconds"], 0.0) - sum(seconds.values()) if seconds else 0.0
    return seconds | ({"other": rest} if rest > 0 else {})


def phases_chart(contents: Contents) -> Chart:
    """One bar per method, stacked by phase: seconds of a whole run, mean over seeds."""
    title, drawn = "Seconds of a run by phase", dict[Group, dict[str, float]]()
    for group in contents.groups:
        if found := [phases for run in averaged(group) if (phases := phase_seconds(run))]:
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
    caption = f"Seconds of one run, mean over seeds.{lacking(contents, drawn)}"
    return Chart(title=title, caption=caption, figure=figure)
