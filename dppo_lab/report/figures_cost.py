"""Figures of what updates cost: seconds by phase, and how full forward passes were."""

from collections.abc import Collection, Mapping, Sequence
from typing import cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.ticker import PercentFormatter

from dppo_lab.comparison.words import duration
from dppo_lab.report.curves import averaged, common_steps, mean_over_seeds
from dppo_lab.report.drawing import DASHED, THOUSANDS, bars, lacking, lines_chart, mean_line, over_updates, short_label
from dppo_lab.report.sources import Contents, Group
from dppo_lab.report.style import INK, MUTED, PAPER, PHASE_LOOKS, Chart, Look, new_figure
from dppo_lab.runs.folder import PHASES, TOTALS
from dppo_lab.runs.reader import RunRecord, number, phases_of

SPARE = ("#44bb99", "#aaaa00", "#d4b9da", "#a6bddb")
"""Colours of phases that are not in ``PHASE_LOOKS``, in the order of their names."""
TINY = 0.005
"""Share of a bar below which a phase is named in the caption and not in the legend."""
RECORD_PHASES = (
    "No log has time/<phase>. DPPOTrainer records it at every log (logging_steps: 5); dppo compare records the phases "
    "of stock TRL too."
)


def phase_seconds(run: RunRecord, group: Group) -> dict[str, float]:
    """Seconds of a run by phase: as its comparison read them, or from its logs.

    What is in no phase is "other", where the total is known.
    """
    found = next(
        (r for r in group.compared.readout.get("runs", []) if r.get("seed") == run.seed and r.get("phases")), None
    )
    phases = phases_of(run.logs) if found is None else found["phases"]
    seconds = {str(name).removeprefix(PHASES): number(value) for name, value in phases.items()}
    seconds = {name: value for name, value in seconds.items() if np.isfinite(value)}
    total = run.series(TOTALS["seconds"]).value_I
    rest = float(total[-1]) - sum(seconds.values()) if seconds and len(total) else 0.0
    return seconds | ({"other": rest} if rest > 0 and "other" not in seconds else {})


def phases_chart(contents: Contents) -> Chart:
    """One bar per method, stacked by phase: seconds of a whole run, mean over seeds."""
    title, key = "Seconds of a run by phase", "seconds-by-phase"
    drawn = {}
    for group in contents.groups:
        if found := [phases for run in averaged(group) if (phases := phase_seconds(run, group))]:
            named = {name for phases in found for name in phases}
            drawn[group] = {name: sum(phases.get(name, 0.0) for phases in found) / len(found) for name in named}
    if not drawn:
        return Chart(key=key, title=title, caption=RECORD_PHASES)
    names = _phase_looks({name for phases in drawn.values() for name in phases})
    tiny = [name for name in names if all(p.get(name, 0.0) < TINY * sum(p.values()) for p in drawn.values())]
    figure = new_figure(height=1.15 + 0.36 * len(drawn) + 0.18 * ((len(names) - len(tiny) + 1) // 2))
    axes = figure.subplots()
    left = np.zeros(len(drawn))
    for name, (colour, word) in names.items():
        width = np.array([phases.get(name, 0.0) for phases in drawn.values()])
        label = f"_{name}" if name in tiny else word
        axes.barh(range(len(drawn)), width, left=left, height=0.66, color=colour, label=label, edgecolor=PAPER,
                  linewidth=0.5)  # fmt: skip
        left += width
    axes.bar_label(
        cast(BarContainer, axes.containers[-1]), [duration(total) for total in left.tolist()], padding=4, fontsize=8.5
    )
    axes.set_xlim(0, max(left) * 1.25 or 1.0)
    bars(figure, axes, drawn, "seconds of a run")
    caption = "Seconds of one run, mean over seeds."
    caption += f" Below {TINY:.1%} of every bar: {', '.join(names[name][1] for name in tiny)}." if tiny else ""
    caption += " Methods need not have done as many updates." if len(drawn) > 1 else ""
    caption += lacking(contents, drawn, "No phases in")
    return Chart(key=key, title=title, caption=caption, figure=figure)


def phases_over_updates(run: RunRecord) -> Chart:
    """Seconds per update of one run, stacked by phase."""
    title, key = "Seconds per update", "seconds-per-update"
    found = {name: series for name in phases_of(run.logs) if len((series := run.series(PHASES + name)).x_I) > 1}
    if not found:
        caption = "At least two logs with time/<phase> are needed. More logs: logging_steps: 1."
        return Chart(key=key, title=title, caption=caption)
    names = _phase_looks(found)
    step_I, stacked = common_steps([found[name] for name in names])
    figure = new_figure(height=3.1 + 0.18 * ((len(names) + 1) // 2))
    axes = figure.subplots()
    colours, words = zip(*names.values(), strict=True)
    axes.stackplot(step_I, stacked, labels=words, colors=colours, edgecolor=PAPER, linewidth=0.4)
    axes.set_xlabel("updates (optimizer steps)")
    axes.set_ylabel("seconds per update")
    axes.margins(x=0)
    figure.legend(loc="outside lower center", ncols=2)
    caption = "Each point is the mean over the updates since the log before it. Evaluation and saving are not in it."
    return Chart(key=key, title=title, caption=caption, figure=figure)


def _phase_looks(names: Collection[str]) -> dict[str, tuple[str, str]]:
    """Colour and word of each phase: known ones in their order, then others by name, then what is in none."""
    others = sorted(set(names) - set(PHASE_LOOKS))
    found = {name: look for name, look in PHASE_LOOKS.items() if name in names and name != "other"}
    found |= {name: (SPARE[place % len(SPARE)], short_label(name)) for place, name in enumerate(others)}
    return found | ({"other": PHASE_LOOKS["other"]} if "other" in names else {})


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


def fill(run: RunRecord) -> tuple[float, float]:
    """Sequence tokens over tokens computed, >= 0, padded and in rows; NaN where not recorded, or not packed."""
    _, values = common_steps([run.series(name) for name in (SEQUENCES, PADDED, FORWARDED)])
    sequences, padded, forwarded = (float(value_I.sum()) for value_I in values)
    if padded <= 0 or forwarded <= 0:
        return np.nan, np.nan
    return sequences / padded, sequences / forwarded if forwarded != padded else np.nan


def fill_chart(contents: Contents) -> Chart:
    """Two bars per method: sequence tokens over computed tokens, padded and in rows."""
    key, title = "row-fill", "Row fill before and after packing"
    fills = {group: [fill(run) for run in averaged(group)] for group in contents.groups}
    means = {group: [_mean(half) for half in zip(*found, strict=True)] for group, found in fills.items() if found}
    drawn = {group: pair for group, pair in means.items() if np.isfinite(pair).any()}
    if not drawn:
        return Chart(key=key, title=title, caption=RECORD_ROWS.format(names=f"{PADDED} and {SEQUENCES}"))
    figure = new_figure(height=1.2 + 0.46 * len(drawn))
    axes = figure.subplots()
    for half, (name, colour) in enumerate(HALVES):
        values = np.array([pair[half] for pair in drawn.values()])
        places = np.arange(len(drawn)) + (half - 0.5) * 0.38
        shown = axes.barh(places, np.nan_to_num(values), height=0.34, color=colour, label=name)
        texts = [f"{value:.0%}" if np.isfinite(value) else f"not {name}" for value in values]
        for text, value in zip(axes.bar_label(shown, texts, padding=3, fontsize=9), values, strict=True):
            text.set_color(INK if np.isfinite(value) else MUTED)
    axes.set_xlim(0, 1.15 * max(1.0, np.nanmax(list(drawn.values()))))
    axes.axvline(1.0, color=MUTED, linewidth=0.9, linestyle=DASHED)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    bars(figure, axes, drawn, "sequence tokens (% of tokens computed)")
    caption = FILL_CAPTION
    room = _mean([float(v.mean()) for g in drawn for run in averaged(g) if len(v := run.series(ROOM).value_I)])
    caption += f" Rows were filled to {room:.0%} of max_tokens_per_row." if np.isfinite(room) else ""
    return Chart(key=key, title=title, caption=caption, figure=figure)


def tokens_chart(contents: Contents, look: Mapping[str, Look]) -> Chart:
    """Tokens computed per update, and what padding would have taken: means over seeds."""
    padded = {group: mean_over_seeds(group, PADDED) for group in contents.groups}

    def draw(axes: Axes, group: Group, style: Look) -> None:
        mean_line(axes, *mean_over_seeds(group, FORWARDED), style, group)
        axes.plot(*padded[group], color=style.colour, linewidth=1.1, linestyle=(0, (1, 1.6)))

    chart = lines_chart(
        contents,
        look,
        Chart(key="tokens-computed", title="Tokens computed per update", caption=RECORD_ROWS.format(names=FORWARDED)),
        {group: [run.series(FORWARDED) for run in averaged(group)] for group in contents.groups},
        draw,
        height=2.9,
        thin=None,
        caption="Tokens that the forward passes of one update compute, prompts and padding included, all ranks "
        "together."
        + (
            " Dotted: what the same sequences would take as one padded rectangle."
            if any(len(step_I) for step_I, _ in padded.values())
            else f" What they would take padded is not in these logs ({PADDED})."
        ),
        missing="Not in",
        record="record",
    )
    if chart.figure is not None:
        axes = chart.figure.axes[0]
        over_updates(axes, "tokens per update")
        axes.yaxis.set_major_formatter(THOUSANDS)
        axes.set_ylim(bottom=0)
    return chart


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else np.nan
