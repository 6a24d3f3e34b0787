"""Where the seconds went: by phase, per method and over the updates of a run."""

import numpy as np

from dppo.report.curves import averaged
from dppo.report.figures_accuracy import short_label
from dppo.report.records import Contents, Group
from dppo.report.style import INK, PAPER, PHASES, Chart, new_figure
from dppo.report.text import duration, listed
from dppo.runs.reader import RunRecord, number

SPARE = ("#44bb99", "#aaaa00", "#d4b9da", "#a6bddb")
"""Colours of phases that are not in ``PHASES``, in the order of their names."""
TINY = 0.005
"""Share of a bar below which a phase is named in the caption and not in the legend."""
RECORD_PHASES = (
    "No log has time/<phase>. DPPOTrainer records it at every log (logging_steps: 5); dppo compare records the phases "
    "of stock TRL too."
)


def phase_seconds(run: RunRecord, group: Group) -> dict[str, float]:
    """Seconds of a run by phase: as its comparison read them, or from its logs.

    A log has the mean per update since the one before; what is in no phase is "other", where the total is known.

    Args:
        run: with its logs.
        group: the run's.
    """
    found = next((r for r in group.readout.get("runs", []) if r.get("seed") == run.seed and r.get("phases")), None)
    if found is not None:
        seconds = {str(name).removeprefix("time/"): number(value) for name, value in found["phases"].items()}
        seconds = {name: value for name, value in seconds.items() if np.isfinite(value)}
    else:
        seconds = _from_logs(run)
    total = run.series("total/seconds").value_K
    rest = float(total[-1]) - sum(seconds.values()) if seconds and len(total) else 0.0
    return seconds | ({"other": rest} if rest > 0 and "other" not in seconds else {})


def _from_logs(run: RunRecord) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for name in sorted({key for log in run.logs for key in log if key.startswith("time/")}):
        series = run.series(name)
        updates_K = np.diff(series.step_K, prepend=0)
        seconds[name.removeprefix("time/")] = float((series.value_K * updates_K).sum())
    return seconds


def phases_chart(contents: Contents) -> Chart:
    """One bar per method, stacked by phase: seconds of a whole run, mean over seeds.

    Args:
        contents: of the report.
    """
    title, key = "Seconds of a run by phase", "seconds-by-phase"
    means = {group: _mean([phase_seconds(run, group) for run in averaged(group)]) for group in contents.groups}
    bars = {group: phases for group, phases in means.items() if phases}
    if not bars:
        return Chart(key=key, title=title, caption=RECORD_PHASES, figure=None)
    names = _ordered({name for phases in bars.values() for name in phases})
    tiny = [name for name in names if all(p.get(name, 0.0) < TINY * sum(p.values()) for p in bars.values())]
    figure = new_figure(height=1.15 + 0.36 * len(bars) + 0.18 * ((len(names) - len(tiny) + 1) // 2))
    axes = figure.subplots()
    labels = [short_label(group.label) for group in bars]
    left = np.zeros(len(bars))
    for name in names:
        width = np.array([phases.get(name, 0.0) for phases in bars.values()])
        axes.barh(
            range(len(bars)),
            width,
            left=left,
            height=0.66,
            color=_colour(name, names),
            label=f"_{name}" if name in tiny else _word(name),
            edgecolor=PAPER,
            linewidth=0.5,
        )
        left += width
    for place, total in enumerate(left):
        axes.annotate(
            duration(float(total)),
            (total, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=INK,
            fontsize=8.5,
        )
    axes.set_yticks(range(len(bars)), labels)
    axes.set_xlim(0, max(left) * 1.25 or 1.0)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds of a run")
    figure.legend(loc="outside lower center", ncols=2)
    small = f" Below {TINY:.1%} of every bar: {listed([_word(name) for name in tiny])}." if tiny else ""
    lacking = [group.label for group in contents.groups if group not in bars]
    caption = f"Seconds of one run, mean over seeds.{small}"
    caption += " Methods need not have done as many updates." if len(bars) > 1 else ""
    caption += f" No phases in the logs of {', '.join(lacking)}." if lacking else ""
    return Chart(key=key, title=title, caption=caption, figure=figure)


def phases_over_updates(run: RunRecord) -> Chart:
    """Seconds per update of one run, stacked by phase.

    Args:
        run: with its logs.
    """
    title, key = "Seconds per update", "seconds-per-update"
    found = {name: run.series(f"time/{name}") for name in _from_logs(run)}
    names = [name for name in _ordered(set(found)) if len(found[name].step_K) > 1]
    if not names:
        caption = "At least two logs with time/<phase> are needed. More logs: logging_steps: 1."
        return Chart(key=key, title=title, caption=caption, figure=None)
    step_K = found[names[0]].step_K
    for name in names[1:]:
        step_K = np.intersect1d(step_K, found[name].step_K)
    figure = new_figure(height=3.1 + 0.18 * ((len(names) + 1) // 2))
    axes = figure.subplots()
    stacked = [found[name].value_K[np.isin(found[name].step_K, step_K)] for name in names]
    axes.stackplot(
        step_K,
        stacked,
        labels=[_word(name) for name in names],
        colors=[_colour(n, names) for n in names],
        edgecolor=PAPER,
        linewidth=0.4,
    )
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
    known = [name for name in PHASES if name in names]
    return (
        [name for name in known if name != "other"] + sorted(names - set(PHASES)) + [n for n in known if n == "other"]
    )


def _colour(name: str, names: list[str]) -> str:
    spare = [other for other in names if other not in PHASES]
    return PHASES[name][0] if name in PHASES else SPARE[spare.index(name) % len(SPARE)]


def _word(name: str) -> str:
    return PHASES[name][1] if name in PHASES else short_label(name)
