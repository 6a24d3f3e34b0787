"""Summaries and tables of a report: methods side by side, cost to the target, every run."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dppo.lab.comparison.curves import READOUTS
from dppo.lab.comparison.words import NO_CELL, Cell, amount, counted, duration, interval, percent
from dppo.lab.report.curves import averaged, last_of, phase_seconds
from dppo.lab.report.sources import Contents, Group
from dppo.lab.runs.ceilings import run_ceilings
from dppo.lab.runs.folder import ACCURACY, TOTALS
from dppo.lab.runs.reader import RunRecord, mapping, number
from dppo.pruning.ceiling import WORTH

OURS = "dppo"
EQUAL = {name: name.replace("_", " ") for name in READOUTS}
SAVED, SHARE, TOKENS_KEPT, HEAD = "saved/seconds", "saved/share", "prune/token_kept_share", "prune/head_share"
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


def ceiling_lines(contents: Contents) -> Lines:
    """Ceilings of prompts and of completions, and the share without a gradient, which is free; of runs that say."""
    lines = []
    for group in contents.groups:
        cells: dict[str, Cell] = dict.fromkeys(("prompts", "completions", "free"), NO_CELL)
        rows = run_ceilings(group.sound)
        for row in rows:
            cells[row.level] = Cell(text=f"{amount(row.value)}×", detail=f"{amount(row.low)} to {amount(row.high)}")
            cells |= {} if row.free is None else {"free": Cell(text=percent(row.free))}
        lines += [(group.label, tuple(cells.values()))] if rows else []
    return tuple(lines)


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
    for text, name in (
        ("{} of the tokens kept", TOKENS_KEPT),
        ("{} of them to the head", HEAD),
        ("saved {} of the seconds", SHARE),
    ):
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


UPPER_BOUND = "Upper bound of what choosing can save"


def summaries(contents: Contents) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """By label of each method that prunes: headings, and a text for each; means over seeds."""
    return tuple(
        (group.label, (("Pruned", _pruned(runs)), ("Saved", _saved(runs, group)), (UPPER_BOUND, _more(runs))))
        for group in contents.groups
        if _logged(runs := averaged(group), "prune/kept_share")
    )


def _logged(runs: Sequence[RunRecord], name: str) -> list[float]:
    """Every value of a metric."""
    return [value for run in runs for value in run.series(name).value_I.tolist()]


def _mean(runs: Sequence[RunRecord], name: str) -> float:
    """The mean of a share; 1 where it was not logged."""
    return float(np.mean(_logged(runs, name) or [1.0]))


def _pruned(runs: Sequence[RunRecord]) -> str:
    kept, live, prompts = (_mean(runs, f"prune/{of}") for of in ("kept_share", "live_share", "prompts_kept_share"))
    parts = [f"{1 - live:.0%} had no gradient, which is exact"] if live < 1 else []
    parts += [f"{live - kept:.0%} were not drawn"] if kept < live else []
    of_prompts = f"{1 - prompts:.0%} of the candidate prompts were not rolled out" if prompts < 1 else "no prompts"
    said = [f"{1 - kept:.0%} of the completions rolled out ({', '.join(parts) or 'none'})", of_prompts]
    if _logged(runs, TOKENS_KEPT):
        forwarded, scored = (_mean(runs, name) for name in (TOKENS_KEPT, HEAD))
        behind, head = f"{1 - forwarded:.0%} of the tokens of completions with a gradient", f"{scored:.0%}"
        said.append(f"{behind} were not forwarded, and {head} of them reached the head")
    return f"{'; '.join(said)}."


def _saved(runs: Sequence[RunRecord], group: Group) -> str:
    """In seconds as the run measured it; of records without, in tokens, and in seconds by what was computed."""
    measured = [(last_of(run, SAVED, 0.0), last_of(run, SHARE, 0.0)) for run in runs]
    known = [(seconds, seconds / share) for seconds, share in measured if share]
    if known:
        seconds, whole = np.mean(known, axis=0).tolist()
        less = f"{duration(seconds)} of" if seconds >= 0 else f"{duration(-seconds)} more than"
        return (
            f"about {less} {duration(whole)} ({seconds / whole:.0%}) beside steps that prune nothing, by what tokens "
            "cost in the run's first generations."
        )
    trained, skipped = (sum(_logged(runs, f"prune/tokens_{what}")) for what in ("trained", "skipped"))
    prompts = _mean(runs, "prune/prompts_kept_share")
    if not trained or not prompts:
        return "not known: no log has prune/tokens_trained, or nothing was trained on."
    phases = [phase_seconds(run, group) for run in runs]
    update, rollout = (float(np.mean([p.get(name, 0.0) for p in phases])) for name in ("forward_backward", "rollout"))
    saved = update * skipped / trained + rollout * (1 - prompts) / prompts
    spent = [last for run in runs if (last := last_of(run, TOTALS["seconds"], 0.0))]
    tokens = f"forward and backward of {skipped / (skipped + trained):.0%} of the completion tokens"
    if not spent or not saved:
        return f"{tokens}."
    whole = duration(saved + float(np.mean(spent)))
    return f"{tokens}; about {duration(saved)} of {whole}, if what was left out had cost as much per token."


def _more(runs: Sequence[RunRecord]) -> str:
    """By level, what choosing can save at most."""
    config, said = next((run.config for run in runs if run.config), {}), []
    other = "" if all(run.method == OURS for run in runs) else f"method: {OURS} with "
    for row in run_ceilings(runs):
        field = f"{row.level.removesuffix('s')}_prune_rate"
        asked = f"{field}: {config[field]} is in use" if config.get(field) else f"try {other}{field}: auto"
        advice = "which is next to nothing" if row.low < WORTH else asked
        said.append(f"{row.level} at most {amount(row.value)}× ({amount(row.low)} to {amount(row.high)}), {advice}")
    return f"{'; '.join(said)}." if said else "not known: too few prompts have come back."
