"""Tables of a report: methods side by side, cost to the target, every run."""

import math
from collections import Counter
from dataclasses import dataclass

from dppo.lab.comparison.curves import READOUTS
from dppo.lab.comparison.words import NO_CELL, Cell, amount, counted, duration, interval, percent
from dppo.lab.report.curves import averaged, last_of
from dppo.lab.report.sources import Contents, Group
from dppo.lab.runs.folder import ACCURACY, TOTALS
from dppo.lab.runs.reader import RunRecord, mapping, number

EQUAL = {name: name.replace("_", " ") for name in READOUTS}
SHARE = "saved/share"
PRUNED = {
    "{} of the tokens kept": "prune/token_kept_share",
    "{} of them to the head": "prune/head_share",
    "saved {} of the seconds": SHARE,
}
"""Metrics beside the rates of a method, by their words."""
Lines = tuple[tuple[str, tuple[Cell, ...]], ...]
"""Labels of methods, and the cells of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodLine:
    """One method, in the columns of the paper's table and ours."""

    label: str
    settings: str
    compared: tuple[Cell, ...]
    """Speedup, and accuracy minus the baseline's in the order of ``EQUAL``."""
    rates: Cell
    """Shares that are pruned: of completions with a gradient, of prompts with a history."""
    biased: Cell
    results: tuple[Cell, ...]
    """Final accuracy, and seeds finished."""


def target_lines(contents: Contents) -> Lines:
    """Cost to the target, and how many seeds reached it; none without a target."""
    return tuple((group.label, cells) for group in contents.groups if (cells := group.compared.target_cells()))


def run_lines(contents: Contents) -> tuple[tuple[str, RunRecord, tuple[str, ...]], ...]:
    """Label and record of every run; its updates, seconds, rollouts and accuracy."""
    return tuple(
        (
            group.label,
            run,
            (
                amount(run.done) + (f" of {amount(run.updates)}" if run.updates else ""),
                duration(last_of(run, TOTALS["seconds"]) if math.isnan(run.seconds) else run.seconds),
                amount(last_of(run, TOTALS["rollouts"])),
                percent(last_of(run, ACCURACY)),
            ),
        )
        for group in contents.groups
        for run in group.runs
    )


def method_line(group: Group) -> MethodLine:
    """The line of one method in the table."""
    states = Counter(run.status for run in group.runs)
    detail = [f"{states[state]} {state}" for state in ("failed", "stopped", "running", "unknown") if states[state]]
    detail += [f"{len(group.awaited)} not started"] if group.awaited else []
    known = group.biased or any(run.describe or run.paper for run in group.runs) or "biased" in group.compared.readout
    biased = ("yes" if group.biased else "no") if known else "not recorded"
    settings = ", ".join(f"{key}: {value}" for key, value in group.overrides.items()) or "as configured"
    finished = f"{states['finished']} of {states.total() + len(group.awaited)}"
    return MethodLine(
        label=group.label,
        settings=settings if group.source else next((run.describe for run in group.runs), ""),
        compared=(group.compared.speedup_cell(), *group.compared.difference_cells()),
        rates=_rates(group),
        biased=Cell(text=biased, detail="; ".join(group.biased)),
        results=(_accuracy(group), Cell(text=finished, detail=", ".join(detail))),
    )


def _rates(group: Group) -> Cell:
    """The rates of the first run that has settings, or what the comparison set; a dash for TRL's own trainer."""
    config = next((run.config for run in group.runs if run.config), group.overrides)
    rates = [config.get(f"{level}_prune_rate") for level in ("completion", "prompt")]
    if rates == [None, None]:
        return NO_CELL
    shown = ", ".join(rate if isinstance(rate, str) else f"{number(rate or 0.0):.0%}" for rate in rates)
    return Cell(text=shown, detail="; ".join(_tokens_and_seconds(group)))


def _tokens_and_seconds(group: Group) -> list[str]:
    """Of runs that leave tokens out the share kept, and of all what pruning saved; means over seeds."""
    said = []
    for text, name in PRUNED.items():
        series = [value_I for run in averaged(group) if len(value_I := run.series(name).value_I)]
        if series:  # what was saved is of the run so far: its last value is the run's
            each = [float(value_I[-1] if name == SHARE else value_I.mean()) for value_I in series]
            said.append(text.format(percent(sum(each) / len(each))))
    return said


def _accuracy(group: Group) -> Cell:
    read = mapping(group.compared.readout.get("final"))
    if read:
        return interval(read, percent)
    finals = [value for run in averaged(group) if math.isfinite(value := last_of(run, ACCURACY))]
    if not finals:
        return NO_CELL
    return Cell(text=percent(sum(finals) / len(finals)), detail=f"last, mean of {counted(len(finals), 'seed')}")
