"""Parts of figures: methods as lines over what they cost, and as bars."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dppo_lab.comparison.words import counted
from dppo_lab.report.sources import Contents, Group
from dppo_lab.report.style import WIDTH, Chart, Look, new_figure
from dppo_lab.report.text import shortened, visible
from dppo_lab.runs.reader import Series

THOUSANDS = FuncFormatter(lambda value, place: f"{value / 1000:,.6g}k" if abs(value) >= 1000 else f"{value:g}")
DASHED = (0, (4, 3))


def short_label(label: str) -> str:
    """A method's name as it fits a legend."""
    text = shortened(visible(label).replace("\n", " "), 26)
    return f" {text}" if text.startswith("_") else text  # matplotlib leaves such names out of legends


def lines_chart(
    contents: Contents,
    look: Mapping[str, Look],
    chart: Chart,
    curves: Mapping[Group, Sequence[Series]],
    draw: Callable[[Axes, Group, Look], None],
    *,
    height: float,
    width: float = WIDTH,
    thin: tuple[float, float] | None = (0.6, 0.25),
    caption: str,
    missing: str,
    record: str,
) -> Chart:
    """A chart with a line for each method that has ``curves``; ``chart`` as it is where none has.

    Curves of seeds are ``thin``, a width in points and an opacity, or not shown; ``draw`` adds the mean. Behind
    ``caption`` stand ``missing`` and the methods without curves, and how many of a ``record`` had no finite figure.
    """
    drawn = [group for group, found in curves.items() if any(len(curve.x_I) for curve in found)]
    if not drawn:
        return chart
    columns = _columns(drawn, width)
    figure = new_figure(height=height + 0.2 * -(-len(drawn) // columns), width=width)  # with room for the legend
    axes = figure.subplots()
    for group in drawn:
        style = look[group.label]
        for curve in curves[group]:
            if thin is not None:
                axes.plot(curve.x_I, curve.value_I, color=style.colour, linewidth=thin[0], alpha=thin[1])
        draw(axes, group, style)
    figure.legend(loc="outside lower center", ncols=columns)
    left_out = sum(curve.left_out for found in curves.values() for curve in found)
    said = f" {counted(left_out, record)} without a finite figure left out." if left_out else ""
    return replace(chart, caption=caption + lacking(contents, drawn, missing) + said, figure=figure)


def _columns(groups: Collection[Group], width: float) -> int:
    """How many names of a legend fit side by side into ``width`` inches."""
    longest = max((len(short_label(group.label)) for group in groups), default=1)
    return max(1, min(len(groups), int(width / (0.55 + 0.085 * longest))))


def mean_line(axes: Axes, x_I: np.ndarray, y_I: np.ndarray, look: Look, group: Group, size: float = 3.2) -> None:
    """The mean over a method's seeds, in bold, with about eight markers of ``size`` points."""
    axes.plot(x_I, y_I, color=look.colour, linestyle=look.dash, marker=look.marker, markersize=size,
              markevery=max(1, len(x_I) // 8), label=short_label(group.label))  # fmt: skip


def over_updates(axes: Axes, label: str) -> None:
    """Axes of a figure over updates; ``label`` is that of the vertical one, with its unit."""
    axes.set_xlabel("updates (optimizer steps)")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6))


def bars(figure: Figure, axes: Axes, groups: Collection[Group], label: str) -> None:
    """Axes and legend of a figure with one line of bars per method, the first on top."""
    axes.set_yticks(range(len(groups)), [short_label(group.label) for group in groups])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label)
    figure.legend(loc="outside lower center", ncols=2)


def lacking(contents: Contents, drawn: Collection[Group], what: str) -> str:
    """A sentence that names the methods that are not drawn; empty where all are."""
    missing = [group.label for group in contents.groups if group not in drawn]
    return f" {what} the logs of {', '.join(missing)}." if missing else ""
