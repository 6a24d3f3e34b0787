"""Where the seconds went: by phase, per method and over the updates of a run."""

from functools import reduce

import numpy as np

from dppo.report.curves import averaged
from dppo.report.drawing import bars, beside, lacking, short_label
from dppo.report.records import Contents, Group
from dppo.report.style import PAPER, PHASE_LOOKS, Chart, new_figure
from dppo.report.text import duration, listed
from dppo.runs.folder import PHASES, TOTALS
from dppo.runs.reader import RunRecord, number, phases_of

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
    found = next((r for r in group.readout.get("runs", []) if r.get("seed") == run.seed and r.get("phases")), None)
    phases = phases_of(run.logs) if found is None else found["phases"]
    seconds = {str(name).removeprefix(PHASES): number(value) for name, value in phases.items()}
    seconds = {name: value for name, value in seconds.items() if np.isfinite(value)}
    total = run.series(TOTALS["seconds"]).value_K
    rest = float(total[-1]) - sum(seconds.values()) if seconds and len(total) else 0.0
    return seconds | ({"other": rest} if rest > 0 and "other" not in seconds else {})


def phases_chart(contents: Contents) -> Chart:
    """One bar per method, stacked by phase: seconds of a whole run, mean over seeds."""
    title, key = "Seconds of a run by phase", "seconds-by-phase"
    means = {group: _mean([phase_seconds(run, group) for run in averaged(group)]) for group in contents.groups}
    drawn = {group: phases for group, phases in means.items() if phases}
    if not drawn:
        return Chart(key=key, title=title, caption=RECORD_PHASES, figure=None)
    names = _ordered({name for phases in drawn.values() for name in phases})
    tiny = [name for name in names if all(p.get(name, 0.0) < TINY * sum(p.values()) for p in drawn.values())]
    figure = new_figure(height=1.15 + 0.36 * len(drawn) + 0.18 * ((len(names) - len(tiny) + 1) // 2))
    axes = figure.subplots()
    left = np.zeros(len(drawn))
    for name in names:
        width = np.array([phases.get(name, 0.0) for phases in drawn.values()])
        label = f"_{name}" if name in tiny else _word(name)
        axes.barh(range(len(drawn)), width, left=left, height=0.66, color=_colour(name, names), label=label,
                  edgecolor=PAPER, linewidth=0.5)  # fmt: skip
        left += width
    for place, total in enumerate(left):
        beside(axes, duration(float(total)), total, place, gap=4, size=8.5)
    axes.set_xlim(0, max(left) * 1.25 or 1.0)
    bars(figure, axes, drawn, "seconds of a run")
    caption = "Seconds of one run, mean over seeds."
    caption += f" Below {TINY:.1%} of every bar: {listed([_word(name) for name in tiny])}." if tiny else ""
    caption += " Methods need not have done as many updates." if len(drawn) > 1 else ""
    caption += lacking(contents, drawn, "No phases in")
    return Chart(key=key, title=title, caption=caption, figure=figure)


def phases_over_updates(run: RunRecord) -> Chart:
    """Seconds per update of one run, stacked by phase."""
    title, key = "Seconds per update", "seconds-per-update"
    found = {name: series for name in phases_of(run.logs) if len((series := run.series(PHASES + name)).step_K) > 1}
    if not found:
        caption = "At least two logs with time/<phase> are needed. More logs: logging_steps: 1."
        return Chart(key=key, title=title, caption=caption, figure=None)
    names = _ordered(set(found))
    step_K = reduce(np.intersect1d, [found[name].step_K for name in names])
    figure = new_figure(height=3.1 + 0.18 * ((len(names) + 1) // 2))
    axes = figure.subplots()
    stacked = [found[name].value_K[np.isin(found[name].step_K, step_K)] for name in names]
    colours = [_colour(name, names) for name in names]
    axes.stackplot(step_K, stacked, labels=map(_word, names), colors=colours, edgecolor=PAPER, linewidth=0.4)
    axes.set_xlabel("updates (optimizer steps)")
    axes.set_ylabel("seconds per update")
    axes.margins(x=0)
    figure.legend(loc="outside lower center", ncols=2)
    caption = "Each point is the mean over the updates since the log before it. Evaluation and saving are not in it."
    return Chart(key=key, title=title, caption=caption, figure=figure)


def _mean(phases: list[dict[str, float]]) -> dict[str, float]:
    phases = [found for found in phases if found]
    names = {name for found in phases for name in found}
    return {name: sum(found.get(name, 0.0) for found in phases) / len(phases) for name in names}


def _ordered(names: set[str]) -> list[str]:
    """Known phases in their order, then others by name, then what is in none."""
    known = [name for name in PHASE_LOOKS if name in names and name != "other"]
    return known + sorted(names - set(PHASE_LOOKS)) + ["other"] * ("other" in names)


def _colour(name: str, names: list[str]) -> str:
    spare = [other for other in names if other not in PHASE_LOOKS]
    return PHASE_LOOKS[name][0] if name in PHASE_LOOKS else SPARE[spare.index(name) % len(SPARE)]


def _word(name: str) -> str:
    return PHASE_LOOKS[name][1] if name in PHASE_LOOKS else short_label(name)
