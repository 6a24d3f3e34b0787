"""Finds the runs of the folders that a report is about, and puts those together that are of one method."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dppo.comparison.folder import COMPARISON_FILE, RESULTS_FILE, RUNS, TO_FINAL, TO_TARGET
from dppo.errors import ConfigError
from dppo.report.records import Contents, Group, differing, one_task
from dppo.runs.folder import METRICS_FILE, STOCK
from dppo.runs.reader import EITHER, RunRecord, is_run, mapping, read_record, read_run, sequence

PLACES = {"seed", "data_seed", "output_dir", "run_name", "logging_dir"}
"""Settings in which the seeds of one method may differ."""
SOFTWARE = ("versions", "commit", "python")
MACHINE = ("processor", "cores", "gpu", "threads")


def read_sources(folders: Iterable[str | Path]) -> Contents:
    """All runs of the given folders as one report's contents.

    Args:
        folders: of runs or comparisons, at least one.

    Raises:
        ConfigError: a folder is neither, none has logs, or runs are of different tasks.
    """
    paths = [Path(folder) for folder in folders]
    if not paths:
        raise ConfigError("nothing to report: no folder is named. Try: dppo report runs/embedded")
    parts = [
        _read_comparison(path) if (path / COMPARISON_FILE).is_file() else _read_alone(path)
        for path in dict.fromkeys(paths)
    ]
    groups = _named_apart(_seeds_together([group for found, _ in parts for group in found]))
    runs = tuple(run for group in groups for run in group.runs)
    if not any(run.logs for run in runs):
        names = ", ".join(str(run.folder) for run in runs)
        raise ConfigError(
            f"nothing to report: no record in {METRICS_FILE} of {names}. It is written while training, every "
            "logging_steps updates: dppo train CONFIG.yaml --logging_steps 5"
        )
    notes = [note for _, found in parts for note in found]
    notes += [f"{run.folder}: {note}" for run in runs for note in run.notes]
    if apart := differing(runs, MACHINE):
        notes.append(f"The runs were not measured on one machine ({', '.join(apart)} differ): seconds do not compare.")
    sets = {", ".join(sorted(run.benchmarks)) for run in runs} - {""}
    if len(sets) > 1:
        notes.append(
            f"Accuracy was not measured on one set of problems ({'; '.join(sorted(sets))}): do not compare it."
        )
    if apart := differing(runs, SOFTWARE):
        notes.append(f"The runs were not made with one version of everything: {', '.join(apart)} differ.")
    return Contents(
        title=" and ".join(path.resolve().name for path in paths),
        groups=groups,
        task=one_task(runs),
        environment=next((run.environment for run in runs if run.environment), {}),
        notes=tuple(notes),
    )


def _read_alone(folder: Path) -> tuple[list[Group], list[str]]:
    if not is_run(folder):
        raise ConfigError(_not_there(folder))
    run = read_run(folder)
    return [Group(label=run.method, runs=(run,))], []


def _read_comparison(folder: Path) -> tuple[list[Group], list[str]]:
    notes: list[str] = []
    about = read_record(folder / COMPARISON_FILE, notes)
    results = read_record(folder / RESULTS_FILE, notes)
    if not results:
        notes.append(
            f"{RESULTS_FILE} is missing: the comparison has not ended, and there are no paired differences yet. "
            "The same dppo compare command goes on where it stopped."
        )
    asked = mapping(about.get("methods"))
    seeds = [seed for seed in sequence(about.get("seeds")) if isinstance(seed, int)]
    groups = []
    for name in asked or mapping(results.get("methods")):
        runs = tuple(read_run(path) for path in _run_folders(folder / RUNS / str(name)))
        found = {run.seed for run in runs}
        groups.append(
            Group(
                label=str(name),
                name=str(name),
                baseline=str(results.get("baseline") or STOCK),
                runs=tuple(sorted(runs, key=lambda run: (run.seed is None, run.seed))),
                overrides=mapping(asked.get(name)),
                readout=mapping(mapping(results.get("methods")).get(name)),
                speedup=_speedup(mapping(mapping(results.get("speedup")).get(name))),
                target=str(mapping(results.get("target")).get("what") or ""),
                source=str(folder),
                awaited=tuple(seed for seed in seeds if seed not in found),
            )
        )
    there = {path.name for path in (folder / RUNS).glob("*") if path.is_dir()}
    if left_out := sorted(there - {group.label for group in groups}):
        notes.append(
            f"Runs of {', '.join(left_out)} are in the folder, and the last dppo compare did not name them: they are "
            "not shown. Name all methods to have all."
        )
    if not any(group.runs for group in groups):
        raise ConfigError(
            f"{folder} is a comparison without a run: nothing under {folder / RUNS}. Let it go on: dppo compare"
        )
    return groups, [f"{folder}: {note}" for note in notes]


def _speedup(read: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((mapping(read[key]) for key in (TO_FINAL, TO_TARGET) if key in read), {})


def _run_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if is_run(path))


def _seeds_together(groups: list[Group]) -> list[Group]:
    """Runs on their own whose settings differ in the seed alone become one group, in the order they came."""
    joined: list[Group] = []
    for group in groups:
        place = next((i for i, other in enumerate(joined) if _same_but_seed(group, other)), None)
        if place is None:
            joined.append(group)
        else:
            joined[place] = replace(joined[place], runs=joined[place].runs + group.runs)
    return joined


def _same_but_seed(group: Group, other: Group) -> bool:
    if group.source or other.source or group.runs[0].method != other.runs[0].method:
        return False
    seeds = {run.seed for run in other.runs}
    known = group.runs[0].seed is not None and None not in seeds
    return known and group.runs[0].seed not in seeds and _settings(group.runs[0]) == _settings(other.runs[0])


def _settings(run: RunRecord) -> dict[str, Any]:
    return {key: value for key, value in run.config.items() if key not in PLACES}


def _named_apart(groups: list[Group]) -> tuple[Group, ...]:
    """Groups of one name get the name of their folder after it, and a number where that is not enough."""
    labels = [group.label for group in groups]
    named: list[Group] = []
    for group in groups:
        label = group.label
        if labels.count(label) > 1:
            label = f"{label} ({Path(group.source or group.runs[0].folder).resolve().name})"
        taken = {other.label for other in named}
        names = [label, *(f"{label} {k}" for k in range(2, len(groups) + 2))]
        named.append(replace(group, label=next(name for name in names if name not in taken)))
    return tuple(named)


def _not_there(folder: Path) -> str:
    looked = f"a run has {' or '.join(EITHER)}, a comparison {COMPARISON_FILE}"
    if not folder.is_dir():
        return f"{folder} is not a folder ({looked}). Give the output_dir of a run: dppo report runs/embedded"
    inside = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    near = [path for path in inside if any((path / name).is_file() for name in (*EITHER, COMPARISON_FILE))]
    line = f"dppo report {' '.join(map(str, near[:3]))}" if near else "dppo report runs/embedded"
    return f"{folder} is neither a run nor a comparison: {looked}, and none of them is there. Try: {line}"
