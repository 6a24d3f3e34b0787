"""How full forward passes were: completions padded into a rectangle, and packed into rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np
from matplotlib.ticker import PercentFormatter

from dppo.report.curves import averaged, mean_over_seeds
from dppo.report.drawing import (
    DASHED,
    THOUSANDS,
    bars,
    beside,
    lines_figure,
    mean_line,
    name_methods,
    over_updates,
)
from dppo.report.records import Contents
from dppo.report.style import MUTED, Chart, Look, new_figure
from dppo.runs.reader import RunRecord

FORWARDED, PADDED, SEQUENCES = "rows/tokens", "rows/padded_tokens", "rows/sequence_tokens"
"""Tokens of an update: as they went through the model; the same sequences as one padded rectangle; without padding."""
ROOM = "rows/fill"
"""Tokens of an update over the most that its forward passes may have."""
RECORD_ROWS = (
    "No log has {names}. dppo train and dppo compare record them at every log (logging_steps: 5); runs of older "
    "versions have to be trained again."
)
FILL_CAPTION = (
    "Sequence tokens: prompt and completion of everything trained on, without padding. Padded: over what one "
    "rectangle of them would take, each as long as the longest. In rows: over what was computed; above 100% where "
    "the prompt of a group is computed once and not once per completion. Sums over the logged updates, mean over "
    "seeds."
)
HALVES = (("padded", "#b9bcc4"), ("in rows", "#44bb99"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """Sequence tokens over tokens computed, >= 0; NaN where not recorded, or not packed."""

    padded: float
    rows: float


def fill(run: RunRecord) -> Fill:
    """How full the forward passes of a run were, over all its logs."""
    found = [run.series(name) for name in (SEQUENCES, PADDED, FORWARDED)]
    step_K = reduce(np.intersect1d, [series.step_K for series in found])
    sequences, padded, forwarded = (float(s.value_K[np.isin(s.step_K, step_K)].sum()) for s in found)
    if padded <= 0 or forwarded <= 0:
        return Fill(padded=np.nan, rows=np.nan)
    return Fill(padded=sequences / padded, rows=sequences / forwarded if forwarded != padded else np.nan)


def fill_chart(contents: Contents) -> Chart:
    """Two bars per method: sequence tokens over computed tokens, padded and in rows."""
    key, title = "row-fill", "Row fill before and after packing"
    fills = {group: [fill(run) for run in averaged(group)] for group in contents.groups}
    means = {group: (_mean([f.padded for f in of]), _mean([f.rows for f in of])) for group, of in fills.items()}
    drawn = {group: pair for group, pair in means.items() if np.isfinite(pair).any()}
    if not drawn:
        caption = RECORD_ROWS.format(names=f"{PADDED} and {SEQUENCES}")
        return Chart(key=key, title=title, caption=caption, figure=None)
    figure = new_figure(height=1.2 + 0.46 * len(drawn))
    axes = figure.subplots()
    for half, (name, colour) in enumerate(HALVES):
        values = np.array([pair[half] for pair in drawn.values()])
        places = np.arange(len(drawn)) + (half - 0.5) * 0.38
        axes.barh(places, np.nan_to_num(values), height=0.34, color=colour, label=name)
        for place, value in zip(places, values, strict=True):
            there = bool(np.isfinite(value))
            text = f"{value:.0%}" if there else f"not {name}"
            beside(axes, text, np.nan_to_num(value), place, gap=3, size=9, muted=not there)
    axes.set_xlim(0, 1.15 * max(1.0, np.nanmax(list(drawn.values()))))
    axes.axvline(1.0, color=MUTED, linewidth=0.9, linestyle=DASHED)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    bars(figure, axes, drawn, "sequence tokens (% of tokens computed)")
    caption = FILL_CAPTION
    room = _mean([float(v.mean()) for g in drawn for run in averaged(g) if len(v := run.series(ROOM).value_K)])
    caption += f" Rows were filled to {room:.0%} of max_tokens_per_row." if np.isfinite(room) else ""
    return Chart(key=key, title=title, caption=caption, figure=figure)


def tokens_chart(contents: Contents, look: Mapping[str, Look]) -> Chart:
    """Tokens computed per update, and what padding would have taken: means over seeds."""
    key, title = "tokens-computed", "Tokens computed per update"
    found = {group: mean_over_seeds(group, FORWARDED) for group in contents.groups}
    drawn = {group: points for group, points in found.items() if len(points[0])}
    if not drawn:
        return Chart(key=key, title=title, caption=RECORD_ROWS.format(names=FORWARDED), figure=None)
    figure, axes = lines_figure(drawn, 2.9)
    padded = {group: mean_over_seeds(group, PADDED) for group in drawn}
    for group, points in drawn.items():
        style = look[group.label]
        mean_line(axes, *points, style, group)
        axes.plot(*padded[group], color=style.colour, linewidth=1.1, linestyle=(0, (1, 1.6)))
    over_updates(axes, "tokens per update")
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.set_ylim(bottom=0)
    name_methods(figure, drawn)
    caption = "Tokens that the forward passes of one update compute, prompts and padding included, all ranks together."
    caption += (
        " Dotted: what the same sequences would take as one padded rectangle."
        if any(len(step_K) for step_K, _ in padded.values())
        else f" What they would take padded is not in these logs ({PADDED})."
    )
    return Chart(key=key, title=title, caption=caption, figure=figure)


def _mean(values: list[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else np.nan
