"""What pruning did over time: shares, effective rows, variance, weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from dppo.report.curves import mean_over_seeds
from dppo.report.drawing import THOUSANDS, lacking, lines_figure, mean_line, name_methods, not_finite, over_updates
from dppo.report.records import Contents
from dppo.report.style import Chart, Look


def in_percent(axes: Axes) -> None:
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
    """One of ``FIGURES`` over updates: a thin line per seed, the mean in bold."""
    key = figure_of.name.replace("/", "-")
    found = {group: [run.series(figure_of.name) for run in group.logged] for group in contents.groups}
    drawn = [group for group, series in found.items() if any(len(s.step_K) for s in series)]
    if not drawn:
        caption = RECORD.format(name=figure_of.name)
        return Chart(key=key, title=figure_of.title, caption=caption, figure=None)
    figure, axes = lines_figure(drawn, 2.7)
    for group in drawn:
        style = look[group.label]
        for series in found[group]:
            axes.plot(series.step_K, series.value_K, color=style.colour, linewidth=0.6, alpha=0.25)
        mean_line(axes, *mean_over_seeds(group, figure_of.name), style, group)
    over_updates(axes, figure_of.axis)
    figure_of.scale(axes)
    name_methods(figure, drawn)
    left_out = not_finite([series.left_out for of_group in found.values() for series in of_group], "record")
    caption = figure_of.reading + lacking(contents, drawn, "Not in") + left_out
    return Chart(key=key, title=figure_of.title, caption=caption, figure=figure)
