"""The table of a report: methods side by side."""

import math
from collections import Counter
from dataclasses import dataclass

from dppo.lab.comparison.words import NO_CELL, Cell, duration, interval, percent
from dppo.lab.report.curves import averaged, last_of
from dppo.lab.report.sources import Group
from dppo.lab.runs.folder import ACCURACY, TOTALS
from dppo.lab.runs.reader import mapping, number

SHARE = "saved/share"
PRUNED = {
    "{} of the tokens kept": "prune/token_kept_share",
    "{} of them to the head": "prune/head_share",
    "saved {} of the seconds": SHARE,
}
"""Metrics beside the rates of a method, by their words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodLine:
    """One method in the table."""

    label: str
    compared: tuple[Cell, ...]
    """Speedup, and accuracy minus the baseline's in the order of ``READOUTS``."""
    rates: Cell
    """Shares that are pruned: of completions with a gradient, of prompts with a history."""
    biased: Cell
    results: tuple[Cell, ...]
    """Final accuracy, seconds of training, and seeds finished."""


def method_line(group: Group) -> MethodLine:
    """The line of one method in the table."""
    states = Counter(run.status for run in group.runs)
    detail = [f"{states[state]} {state}" for state in ("failed", "stopped", "running", "unknown") if states[state]]
    detail += [f"{len(group.awaited)} not started"] if group.awaited else []
    known = group.biased or any(run.describe or run.paper for run in group.runs) or "biased" in group.compared.readout
    biased = ("yes" if group.biased else "no") if known else "not recorded"
    finished = f"{states['finished']} of {states.total() + len(group.awaited)}"
    final = mapping(group.compared.readout.get("final"))
    accuracy = interval(final, percent) if final else Cell(text=percent(_mean_of_last(group, ACCURACY)))
    seconds = Cell(text=duration(_mean_of_last(group, TOTALS["seconds"])))
    return MethodLine(
        label=group.label,
        compared=(group.compared.speedup_cell(), *group.compared.difference_cells()),
        rates=_rates(group),
        biased=Cell(text=biased, detail="; ".join(group.biased)),
        results=(accuracy, seconds, Cell(text=finished, detail=", ".join(detail))),
    )


def _mean_of_last(group: Group, name: str) -> float:
    """Mean over seeds of the last value of a metric; NaN if no log has it."""
    ends = [value for run in averaged(group) if math.isfinite(value := last_of(run, name))]
    return sum(ends) / len(ends) if ends else math.nan


def _rates(group: Group) -> Cell:
    """The rates of the first run that has settings, or what the comparison set; a dash for TRL's own trainer."""
    config = next((run.config for run in group.runs if run.config), group.overrides)
    rates = [config.get(f"{level}_prune_rate") for level in ("completion", "prompt")]
    if rates == [None, None]:
        return NO_CELL
    shown = ", ".join(rate if isinstance(rate, str) else f"{number(rate or 0.0):.0%}" for rate in rates)
    said = []
    for text, name in PRUNED.items():
        series = [value_I for run in averaged(group) if len(value_I := run.series(name).value_I)]
        if series:  # what was saved is of the run so far: its last value is the run's
            each = [float(value_I[-1] if name == SHARE else value_I.mean()) for value_I in series]
            said.append(text.format(percent(sum(each) / len(each))))
    return Cell(text=shown, detail="; ".join(said))
