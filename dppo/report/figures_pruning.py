"""What pruning did over time: shares, effective rows, variance, weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dppo.report.curves import mean_over_seeds
from dppo.report.figures_accuracy import THOUSANDS, short_label
from dppo.report.records import Contents
from dppo.report.style import Chart, Look, new_figure
from dppo.report.text import counted


def in_percent(axes: Axes) -> None:
    """A share of a whole: the whole scale, in percent.

    Args:
        axes: to scale.
    """
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(-0.02, 1.02)


def from_zero(axes: Axes) -> None:
    """From zero, so that noise looks as large as it is; thousands as k.

    Args:
        axes: to scale.
    """
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
        scale=in_percent,
        reading="Completions trained on, over all that were rolled out for the update, those with advantage zero "
        "included.",
    ),
    Figure(
        name="prune/prompts_kept_share",
        title="Prompts rolled out",
        axis="rolled out (% of candidates)",
        scale=in_percent,
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
        "row.",
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
    """One of ``FIGURES`` over updates: a thin line per seed, the mean in bold.

    Args:
        contents: of the report.
        look: of every method.
        figure_of: which.
    """
    key = figure_of.name.replace("/", "-")
    found = {group: [run.series(figure_of.name) for run in group.logged] for group in contents.groups}
    drawn = [group for group, series in found.items() if any(len(s.step_K) for s in series)]
    if not drawn:
        caption = RECORD.format(name=figure_of.name)
        return Chart(key=key, title=figure_of.title, caption=caption, figure=None)
    figure = new_figure(height=2.7 + 0.17 * ((len(drawn) + 2) // 3))
    axes = figure.subplots()
    for group in drawn:
        style = look[group.label]
        for series in found[group]:
            axes.plot(series.step_K, series.value_K, color=style.colour, linewidth=0.6, alpha=0.25)
        step_K, mean_K = mean_over_seeds(group, figure_of.name)
        axes.plot(
            step_K,
            mean_K,
            color=style.colour,
            linestyle=style.dash,
            marker=style.marker,
            markersize=3.2,
            markevery=max(1, len(step_K) // 8),
            label=short_label(group.label),
        )
    over_updates(axes, figure_of.axis)
    figure_of.scale(axes)
    figure.legend(loc="outside lower center", ncols=min(3, len(drawn)))
    left_out = sum(series.left_out for of_group in found.values() for series in of_group)
    lacking = [group.label for group in contents.groups if group not in drawn]
    caption = figure_of.reading
    caption += f" Not in the logs of {', '.join(lacking)}." if lacking else ""
    caption += f" {counted(left_out, 'record')} without a finite figure left out." if left_out else ""
    return Chart(key=key, title=figure_of.title, caption=caption, figure=figure)


def over_updates(axes: Axes, label: str) -> None:
    """Axes of a figure over updates.

    Args:
        axes: to label.
        label: of the vertical axis, with its unit.
    """
    axes.set_xlabel("updates (optimizer steps)")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
