"""Parts of figures: methods as lines over what they cost, and as bars."""

from collections.abc import Collection, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dppo_lab.report.sources import Contents, Group
from dppo_lab.report.style import WIDTH, Look, new_figure
from dppo_lab.report.text import counted, shortened, visible

THOUSANDS = FuncFormatter(lambda value, place: f"{value / 1000:,.6g}k" if abs(value) >= 1000 else f"{value:g}")
DASHED = (0, (4, 3))


def short_label(label: str) -> str:
    """A method's name as it fits a legend."""
    text = shortened(visible(label).replace("\n", " "), 26)
    return f" {text}" if text.startswith("_") else text  # matplotlib leaves such names out of legends


def lines_figure(groups: Collection[Group], height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    """A figure of ``width`` inches with room for a legend of all groups below ``height`` inches."""
    figure = new_figure(height=height + 0.2 * -(-len(groups) // _columns(groups, width)), width=width)
    return figure, figure.subplots()


def name_methods(figure: Figure, groups: Collection[Group]) -> None:
    """The legend of a figure of lines."""
    figure.legend(loc="outside lower center", ncols=_columns(groups, figure.get_figwidth()))


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


def not_finite(counts: Sequence[int], what: str) -> str:
    """A sentence on how many records had no finite figure; empty where all had."""
    return f" {counted(sum(counts), what)} without a finite figure left out." if sum(counts) else ""
