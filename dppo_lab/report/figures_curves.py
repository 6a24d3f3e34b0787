"""Figures of lines: held-out accuracy over what it cost, and what pruning did over updates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from dppo_lab.report.curves import averaged, band, mean_over_seeds, seeds_in_words
from dppo_lab.report.drawing import DASHED, THOUSANDS, lines_chart, mean_line, over_updates, short_label
from dppo_lab.report.sources import Contents, Group
from dppo_lab.report.style import MUTED, WIDE, WIDTH, Chart, Look
from dppo_lab.runs.folder import ACCURACY, TOTALS
from dppo_lab.runs.reader import mapping, number
from dppo_lab.statistics import FEWEST, most_covered

OVERS = {
    "seconds": (
        TOTALS["seconds"],
        "seconds of training",
        "Seconds are of training; evaluation and saving are not counted.",
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
    evaluated = any(ACCURACY in log for run in contents.runs for log in run.logs)
    without = RECORD_TOTAL.format(name=name) if evaluated else RECORD_ACCURACY.format(name=ACCURACY)

    def mean(axes: Axes, group: Group, style: Look) -> None:
        found = band([run.series(ACCURACY, name) for run in averaged(group)])
        if found is None:
            axes.plot([], [], color=style.colour, linestyle=style.dash, label=short_label(group.label))
            return
        if found.low_I is not None and found.high_I is not None:
            axes.fill_between(found.x_I, found.low_I, found.high_I, color=style.colour, alpha=0.16, linewidth=0)
        mean_line(axes, found.x_I, found.mean_I, style, group, size=3.6)

    chart = lines_chart(
        contents,
        look,
        Chart(key=f"accuracy-{over}", title=f"Accuracy against {over}", caption=without),
        {group: [run.series(ACCURACY, name) for run in group.logged] for group in contents.groups},
        mean,
        height=3.1 if width == WIDTH else 3.9,
        width=width,
        thin=(0.7, 0.3),
        caption=unit,
        missing="No accuracy in",
        record="evaluation",
    )
    if chart.figure is not None:
        axes = chart.figure.axes[0]
        _target(axes, contents)
        axes.set_xlabel(axis)
        axes.set_ylabel("held-out accuracy (% of problems)")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{100 * value:.4g}%"))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=7))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=over != "seconds"))
        axes.xaxis.set_major_formatter(THOUSANDS)
        axes.margins(y=0.09)
    return chart


def _target(axes: Axes, contents: Contents) -> None:
    """A line at the baseline's final accuracy, where the comparison has one."""
    for group in contents.groups:
        value = number(mapping(group.compared.readout.get("final")).get("mean"))
        if group.compared.is_baseline and value == value:
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
    return f"With {seeds} seeds an interval of 95% holds the truth in {most_covered(seeds):.0%} of cases at most."


def as_percent(axes: Axes) -> None:
    """A share of a whole: the whole scale, in percent."""
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(-0.02, 1.02)


def from_zero(axes: Axes) -> None:
    """From zero, so that noise looks as large as it is; thousands as k."""
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of ``metrics.jsonl``, its axis, and how to read it."""

    name: str
    title: str
    axis: str
    reading: str
    scale: Callable[[Axes], None] = from_zero


FIGURES = (
    Figure(
        "prune/kept_share", "Completions kept", "kept (% of rolled out)",
        "Completions trained on, over all that were rolled out for the update, those with advantage zero included.",
        as_percent,
    ),
    Figure(
        "prune/prompts_kept_share", "Prompts rolled out", "rolled out (% of candidates)",
        "Prompts rolled out, over the candidates of the generation.",
        as_percent,
    ),
    Figure(
        "prune/effective_rows", "Effective rows", "effective rows per update",
        "How many equally weighted completions the kept ones are worth: (sum of weights)² over the sum of squared "
        "weights, per update.",
    ),
    Figure(
        "prune/added_variance", "Added variance", "added variance (× full)",
        "The second moment that the draw adds, over that of the full batch, by the score's own reckoning; 0.5 means "
        "half as much again.",
    ),
    Figure(
        "prune/largest_weight", "Largest weight", "weight (1 = not pruned)",
        "One over the smallest probability that was kept, prompt and completion together; 1 is an unpruned completion.",
    ),
    Figure(
        "candidates/reward", "Reward of all candidates", "mean reward",
        "Mean reward over all candidate prompts, estimated from those rolled out with one over their probability as "
        "weight.",
    ),
)  # fmt: skip
RECORD = "No log has {name}. DPPOTrainer records it at every log (logging_steps: 5); stock TRL has no such figure."


def pruning_chart(contents: Contents, look: Mapping[str, Look], shown: Figure) -> Chart:
    """One of ``FIGURES`` over updates: a thin line per seed, the mean in bold."""
    chart = lines_chart(
        contents,
        look,
        Chart(key=shown.name.replace("/", "-"), title=shown.title, caption=RECORD.format(name=shown.name)),
        {group: [run.series(shown.name) for run in group.logged] for group in contents.groups},
        lambda axes, group, style: mean_line(axes, *mean_over_seeds(group, shown.name), style, group),
        height=2.7,
        caption=shown.reading,
        missing="Not in",
        record="record",
    )
    if chart.figure is not None:
        over_updates(chart.figure.axes[0], shown.axis)
        shown.scale(chart.figure.axes[0])
    return chart
