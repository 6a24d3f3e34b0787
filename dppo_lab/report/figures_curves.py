"""Figures of lines: held-out accuracy over what it cost, and what pruning did over updates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from dppo_lab.report.curves import averaged, band, mean_over_seeds, seeds_in_words
from dppo_lab.report.drawing import (
    DASHED,
    THOUSANDS,
    lacking,
    lines_figure,
    mean_line,
    name_methods,
    not_finite,
    over_updates,
    short_label,
)
from dppo_lab.report.sources import Contents, Group
from dppo_lab.report.style import MUTED, WIDE, WIDTH, Chart, Look
from dppo_lab.runs.folder import ACCURACY, TOTALS
from dppo_lab.runs.reader import Series, mapping, number
from dppo_lab.statistics import FEWEST, most_covered

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


def accuracy_charts(contents: Contents, look: Mapping[str, Look]) -> tuple[Chart, ...]:
    """Accuracy over each of ``OVERS``, the first over the whole width of a screen, and narrow for a phone."""
    first, *others = OVERS
    narrow = accuracy_chart(contents, look, first)
    rest = tuple(accuracy_chart(contents, look, over) for over in others)
    if narrow.figure is None:
        return (narrow, *rest)
    wide = accuracy_chart(contents, look, first, width=WIDE)
    return (replace(wide, key=f"{wide.key}-wide", screen="wide"), replace(narrow, screen="narrow"), *rest)


def accuracy_chart(contents: Contents, look: Mapping[str, Look], over: str, width: float = WIDTH) -> Chart:
    """Accuracy over one of ``OVERS``: a thin line per seed, the mean in bold, and its interval."""
    name, axis, unit = OVERS[over]
    key, title = f"accuracy-{over}", f"Accuracy against {over}"
    curves = {group: [run.series(ACCURACY, name) for run in group.logged] for group in contents.groups}
    drawn = [group for group, found in curves.items() if any(len(curve.x_I) for curve in found)]
    if not drawn:
        evaluated = any(ACCURACY in log for run in contents.runs for log in run.logs)
        text = RECORD_TOTAL.format(name=name) if evaluated else RECORD_ACCURACY.format(name=ACCURACY)
        return Chart(key=key, title=title, caption=text)
    figure, axes = lines_figure(drawn, 3.1 if width == WIDTH else 3.9, width)
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


def _draw(axes: Axes, group: Group, curves: list[Series], look: Look, over: str) -> None:
    for curve in curves:
        axes.plot(curve.x_I, curve.value_I, color=look.colour, linewidth=0.7, alpha=0.3)
    mean = band([run.series(ACCURACY, over) for run in averaged(group)])
    if mean is None:
        axes.plot([], [], color=look.colour, linestyle=look.dash, label=short_label(group.label))
        return
    if mean.low_I is not None and mean.high_I is not None:
        axes.fill_between(mean.x_I, mean.low_I, mean.high_I, color=look.colour, alpha=0.16, linewidth=0)
    mean_line(axes, mean.x_I, mean.mean_I, look, group, size=3.6)


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
    return f"Bold: {shown}; thin: each seed. Seeds in the mean: {lines}. {coverage(contents)}".rstrip()


def coverage(contents: Contents) -> str:
    """How often an interval over the fewest seeds of a mean can hold the truth; empty where no mean has an interval."""
    seeds = min((n for group in contents.groups if (n := len(averaged(group))) >= FEWEST), default=None)
    if seeds is None:
        return ""
    return f"95% is meant: an interval over {seeds} seeds can cover {most_covered(seeds):.0%} at most."


def as_percent(axes: Axes) -> None:
    """A share of a whole: the whole scale, in percent."""
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(-0.02, 1.02)


def from_zero(axes: Axes) -> None:
    """From zero, so that noise looks as large as it is; thousands as k."""
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of ``metrics.jsonl`` and how to read it."""

    name: str
    title: str
    axis: str
    reading: str
    scale: Callable[[Axes], None] = from_zero


FIGURES = (
    Figure(
        name="prune/kept_share",
        title="Completions kept",
        axis="kept (% of rolled out)",
        scale=as_percent,
        reading="Completions trained on, over all that were rolled out for the update, those with advantage zero "
        "included.",
    ),
    Figure(
        name="prune/prompts_kept_share",
        title="Prompts rolled out",
        axis="rolled out (% of candidates)",
        scale=as_percent,
        reading="Prompts rolled out, over the candidates of the generation.",
    ),
    Figure(
        name="prune/effective_rows",
        title="Effective rows",
        axis="effective rows per update",
        reading="How many equally weighted completions the kept ones are worth: (sum of weights)² over the sum of "
        "squared weights, per update.",
    ),
    Figure(
        name="prune/added_variance",
        title="Added variance",
        axis="added variance (× full)",
        reading="The second moment that the draw adds, over that of the full batch, by the score's own reckoning; 0.5 "
        "means half as much again.",
    ),
    Figure(
        name="prune/largest_weight",
        title="Largest weight",
        axis="weight (1 = not pruned)",
        reading="One over the smallest probability that was kept, prompt and completion together; 1 is an unpruned "
        "completion.",
    ),
    Figure(
        name="candidates/reward",
        title="Reward of all candidates",
        axis="mean reward",
        reading="Mean reward over all candidate prompts, estimated from those rolled out with one over their "
        "probability as weight.",
    ),
)
RECORD = "No log has {name}. DPPOTrainer records it at every log (logging_steps: 5); stock TRL has no such figure."


def pruning_chart(contents: Contents, look: Mapping[str, Look], figure_of: Figure) -> Chart:
    """One of ``FIGURES`` over updates: a thin line per seed, the mean in bold."""
    key = figure_of.name.replace("/", "-")
    found = {group: [run.series(figure_of.name) for run in group.logged] for group in contents.groups}
    drawn = [group for group, series in found.items() if any(len(s.x_I) for s in series)]
    if not drawn:
        return Chart(key=key, title=figure_of.title, caption=RECORD.format(name=figure_of.name))
    figure, axes = lines_figure(drawn, 2.7)
    for group in drawn:
        style = look[group.label]
        for series in found[group]:
            axes.plot(series.x_I, series.value_I, color=style.colour, linewidth=0.6, alpha=0.25)
        mean_line(axes, *mean_over_seeds(group, figure_of.name), style, group)
    over_updates(axes, figure_of.axis)
    figure_of.scale(axes)
    name_methods(figure, drawn)
    left_out = not_finite([series.left_out for of_group in found.values() for series in of_group], "record")
    caption = figure_of.reading + lacking(contents, drawn, "Not in") + left_out
    return Chart(key=key, title=figure_of.title, caption=caption, figure=figure)
