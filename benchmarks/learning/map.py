"""Where pruning pays: what the plan expects by two shares of a step, and what was found in each measured regime.

python -m benchmarks.learning.map [--output docs/map.png]

Reads ``benchmarks/results/regimes.json``, prints a table and draws a panel without and one with a KL term.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, Colormap
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.transforms import Bbox, BboxBase

from benchmarks.learning.points import CONTROL, STOCK
from benchmarks.learning.regimes import REGIMES, RESULTS, SIZES
from benchmarks.learning.tables import cell, from_below, speedup, table
from benchmarks.shared import Record, options
from dppo.pruning.ceiling import rates_to
from dppo_lab.planning.costs import gain
from dppo_lab.planning.from_log import PACKED, figures_of, pass_rates
from dppo_lab.planning.model import COMPLETIONS
from dppo_lab.planning.records import Step

USUAL, TOKENS = {"completions": 64, "groups": 4}, (12.0, 60.0)
"""Completions of a step and of a prompt where ``SIZES`` has no other, and mean tokens of a prompt and a completion."""
PAPERS = ("cppo", "greso")
"""Biased methods that ran beside the default."""
WORSE = 0.03
"""Accuracy that the default may lose to the control and still count as no worse."""
PASS_RATE = 0.6
"""Of all completions of a run, about: the surface hardly depends on it."""
AXIS = np.linspace(0.05, 0.98, 10)
EDGES = (0.97, 1.03, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.5, 6.0)


def expected(reach: float, silent: float, *, every: bool, sizes: Mapping[str, int] = USUAL) -> float:
    """The plan's gain over the control at the best rate for completions, at equal noise; 1 where no rate gains.

    Args:
        reach: share of the control's step that pruning completions can reach, in (0, 1).
        silent: share of groups of equal rewards, in [0, 1).
        every: whether completions without an advantage have a gradient, as under a KL term. The control then
            forwards them, and elsewhere it skips them.
        sizes: completions of a step and of a prompt.
    """
    completions, group = sizes["completions"], sizes["groups"]
    figures = figures_of(
        pass_rates(PASS_RATE, silent, group),
        (1 - reach, reach, 0.0),
        TOKENS,
        completions=completions,
        forwarded=1.0 if every else 1 - silent,
    )
    step = Step(prompts=completions // group, generations=group, every=every, scaled="group")  # TRL's scale_rewards
    control = replace(PACKED, forwarded="all") if every else PACKED
    level = replace(COMPLETIONS, base=PACKED)
    return max(1.0, *(gain(figures, step, level.at(rate), 1, control) for rate in rates_to(level.auto.largest)))


def has_kl(regime: str) -> bool:
    """Whether a regime has a KL term."""
    return bool(REGIMES[regime].get("beta"))


def described(regime: str) -> str:
    """The task of a regime, and what its fields change, in words."""
    fields = REGIMES[regime]
    task = fields.get("dataset_name", "embedded")
    parts = [f"`{task}`"]
    if has_kl(regime):
        parts.append("KL term")
    if fields.get("num_iterations") == 2:
        parts.append("two passes")
    if regime in SIZES:
        words = {"completions": "{} completions a step", "groups": "{} of a prompt"}
        parts += [words[name].format(value) for name, value in SIZES[regime].items()]
    return ", ".join(parts)


def planned(regime: str, point: Record) -> float:
    """The plan's gain at a measured point."""
    sizes = {**USUAL, **SIZES.get(regime, {})}
    return expected(point["step_share"], point["silent_share"], every=has_kl(regime), sizes=sizes)


def from_logs(regime: str, point: Record) -> float | None:
    """The gain that ``dppo plan --log`` finds in the control's logs; None where these were not planned from."""
    return point["plan_of_logs"]["completions"]["mean"] if "plan_of_logs" in point else None


Plan = Callable[[str, Record], float | None]
"""From a regime and its point to a gain."""


def errors(points: Mapping[str, Record], plan: Plan = planned) -> dict[str, float]:
    """By regime, a plan's gain for the default over what was found, less one; not where only a bound was found."""
    return {
        name: expects / found["median"] - 1
        for name, each in points.items()
        if (found := each["against_control"])["median"] and not from_below(found)
        if (expects := plan(name, each)) is not None
    }


def sooner(point: Record, opponent: str = CONTROL) -> str:
    """How many times sooner the default was at an opponent's final accuracy, as tables have it."""
    found = point.get(f"against_{opponent}")
    return speedup(found, found["missing"]) if found else ""


def in_order(points: Mapping[str, Record]) -> list[tuple[str, Record]]:
    """The points as ``REGIMES`` has them."""
    return [(name, points[name]) for name in REGIMES if name in points]


def shares(point: Record) -> tuple[str, str]:
    """What pruning can reach, and silent groups, as tables have them."""
    return f"{point['step_share']:.0%}", f"{point['silent_share']:.0%}"


def show(points: Mapping[str, Record]) -> str:
    """A row for each regime, in Markdown: shares, the plan's gain and what was found."""
    rows = []
    for name, each in in_order(points):
        step, ahead = each["step_ratio"]["default"], each["equal_seconds"]["default"]["difference"]
        seconds = cell(ahead, "mean", "{:+.1f}", 100), "yes" if ahead["low"] > -WORSE else "not shown"
        plans = ["" if gain is None else f"{gain:.2f}" for gain in (planned(name, each), from_logs(name, each))]
        ends = [cell(step, "mean", "{:.2f}"), sooner(each), *seconds, *plans, *shares(each), sooner(each, STOCK)]
        rows.append([f"`{name}`: {described(name)}", *ends])
    headings = (
        "regime",
        "step",
        "to the same accuracy",
        "after equal seconds, pp",
        "within 3 pp",
        "planned",
        "from logs",
    )
    of_map, of_logs = errors(points), errors(points, from_logs)
    said = f"{_median(of_map.values())} over {len(of_map)} points"
    if of_logs:
        same = _median(of_map[name] for name in of_logs)
        said += f"; from logs {_median(of_logs.values())} over {len(of_logs)}, where the map is {same} off"
    rest = ("pruning can reach", "zero-variance", "than TRL")
    return f"{table((*headings, *rest), rows)}\n\nMedian error of the plan: {said}"


def biased(points: Mapping[str, Record]) -> str:
    """A row for each regime where CPPO and GRESO ran for the control's seconds, in Markdown: accuracy against it."""
    rows = []
    for name, each in in_order(points):
        ends = each["equal_seconds"]
        if not set(PAPERS) <= ends.keys():
            continue
        cells = [cell(ends[method]["difference"], "mean", "{:+.1f}", 100) for method in PAPERS]
        default = ends["default"]["difference"]["per_seed"]
        same = [default[seed] for seed in ends[PAPERS[-1]]["difference"]["per_seed"]]
        rows.append([f"`{name}`", *cells, f"{100 * np.mean(same):+.1f}"])
    return table(("regime", "CPPO, pp", "GRESO, pp", "the default, same seeds"), rows)


def _median(error: Iterable[float]) -> str:
    return f"{np.median(np.abs(list(error))):.1%}"


def draw(points: Mapping[str, Record], path: Path) -> None:
    """The plan's surface, and the measured regimes as dots in the colour of what was found; hollow without a median."""
    colours = plt.get_cmap("viridis")
    norm = BoundaryNorm(EDGES, colours.N)
    figure, places = plt.subplots(1, 2, figsize=(11, 4.8), sharey=True, layout="constrained")
    for axes, every in zip(places, (False, True), strict=True):
        gains = [[expected(reach, silent, every=every) for reach in AXIS] for silent in AXIS]
        axes.contourf(100 * AXIS, 100 * AXIS, gains, EDGES, cmap=colours, norm=norm, extend="both")
        lines = axes.contour(100 * AXIS, 100 * AXIS, gains, EDGES[1:], colors="white", linewidths=0.6)
        for label in axes.clabel(lines, fmt="%gx", fontsize=8, colors="white"):
            label.set_path_effects([withStroke(linewidth=2, foreground="black")])
        axes.set_title("with a KL term" if every else "without a KL term")
        axes.set_xlabel("all seconds but the rollout's, % of the step of plain GRPO")
    places[0].set_ylabel("zero-variance groups, %")
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=places, extend="both", format="%g")
    bar.set_label("times as fast as plain GRPO on packed rows")
    figure.canvas.draw()
    figure.set_layout_engine("none")  # labels find their places where the axes stay
    for axes, every in zip(places, (False, True), strict=True):
        _dots(axes, {name: each for name, each in points.items() if has_kl(name) is every}, colours, norm)
    figure.savefig(path, dpi=120)


def _dots(axes: Axes, points: Mapping[str, Record], colours: Colormap, norm: BoundaryNorm) -> None:
    labels, taken = list[tuple[str, tuple[float, float]]](), list[BboxBase]()
    for name, each in sorted(points.items(), key=lambda point: -point[1]["silent_share"]):
        x, y, found = 100 * each["step_share"], 100 * each["silent_share"], each["against_control"]["median"]
        colour = {"c": [np.nan if found is None else found], "cmap": colours, "norm": norm}
        axes.scatter(x, y, **colour, plotnonfinite=True, s=90, edgecolors="white", linewidths=1.5, zorder=3)
        dot_x, dot_y = axes.transData.transform((x, y))
        taken.append(Bbox.from_bounds(dot_x, dot_y, 0, 0).padded(9))
        labels.append(
            (f"{name.replace('_', ' ')}: {sooner(each).partition(' [')[0]}{'' if found is None else 'x'}", (x, y))
        )
    for words, at in labels:
        taken.append(_label(axes, words, at, taken))


PLACES = ((0, 12), (0, -20), *((side, row) for row in (0, -20, -40, 16, -60) for side in (-90, 90, -120, 60, -60, 30)))
"""Where a label may be, in points from its dot: the first of them that hides nothing."""


def _label(axes: Axes, words: str, at: tuple[float, float], taken: Sequence[BboxBase]) -> BboxBase:
    box = {"boxstyle": "round,pad=0.2", "facecolor": "black", "alpha": 0.65, "linewidth": 0}
    how = {"color": "white", "fontsize": 8, "bbox": box, "zorder": 4, "ha": "center", "textcoords": "offset points"}
    line = {"arrowstyle": "-", "color": "white", "linewidth": 0.8}
    for place in PLACES:
        label = axes.annotate(words, at, xytext=place, arrowprops=line, **how)
        label.get_window_extent()  # which moves the label to its place
        extent = Text.get_window_extent(label).padded(3)  # without the line to the dot
        inside = axes.bbox.containsx(extent.x0) and axes.bbox.containsx(extent.x1) and axes.bbox.y1 > extent.y1
        if inside and not any(extent.overlaps(other) for other in taken):
            return extent
        label.remove()
    raise ValueError(f"there is no place for {words!r}: add one to PLACES")


def main() -> None:
    """Print the table, and draw."""
    given = options(__doc__).parse_args()
    points = json.loads(RESULTS.read_text(encoding="utf-8"))["regimes"]
    print(show(points), biased(points), sep="\n\n")
    if given.output is not None:
        draw(points, given.output)


if __name__ == "__main__":
    main()
