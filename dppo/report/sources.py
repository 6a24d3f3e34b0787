"""Reads the folders of runs and comparisons. Nothing is written, and nothing that was logged is trusted to be whole."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dppo.errors import ConfigError
from dppo.report.records import STATUSES, Contents, Group, Run, differing, number, one_task

RUN_FILES = ("run.json", "metrics.jsonl")
COMPARISON_FILE = "comparison.json"
PLACES = {"seed", "data_seed", "output_dir", "run_name", "logging_dir"}
"""Settings in which the seeds of one method may differ."""
STOPPED = "KeyboardInterrupt"
"""How the error of a run begins that was interrupted."""
FORMAT = 1
SPEEDUPS = ("time_to_trl_final", "time_to_target")
SOFTWARE = ("versions", "commit", "python")
MACHINE = ("processor", "cores", "gpu", "threads")


def read_sources(folders: Sequence[Path]) -> Contents:
    """All runs of the given folders as one report's contents.

    Args:
        folders: of runs or comparisons, at least one.

    Raises:
        ConfigError: a folder is neither, none has logs, or runs are of different tasks.
    """
    parts = [
        _read_comparison(folder) if (folder / COMPARISON_FILE).is_file() else _read_alone(folder)
        for folder in dict.fromkeys(folders)
    ]
    groups = _named_apart(_seeds_together([group for found, _ in parts for group in found]))
    runs = tuple(run for group in groups for run in group.runs)
    if not any(run.logs for run in runs):
        names = ", ".join(str(run.folder) for run in runs)
        raise ConfigError(
            f"nothing to report: no record in metrics.jsonl of {names}. It is written while training, every "
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
        title=" and ".join(folder.resolve().name for folder in folders),
        groups=groups,
        task=one_task(runs),
        environment=next((run.environment for run in runs if run.environment), {}),
        notes=tuple(notes),
    )


def read_run(folder: Path) -> Run:
    """One run, with whatever of its files there is.

    Args:
        folder: its ``output_dir``.

    Raises:
        ConfigError: there is neither ``run.json`` nor ``metrics.jsonl``.
    """
    if not any((folder / name).is_file() for name in RUN_FILES):
        raise ConfigError(_not_there(folder))
    notes: list[str] = []
    about = read_json(folder / "run.json", notes)
    if not about:
        notes.append("run.json is missing, so method, seed, configuration and task are not known.")
    logs = _without_repeats(_stepped(read_jsonl(folder / "metrics.jsonl", notes)))
    if not logs:
        notes.append("There are no logs: metrics.jsonl is missing or has no whole record.")
    status, error = str(about.get("status", "unknown")), about.get("error")
    if status == "failed" and str(error).startswith(STOPPED):
        status = "stopped"
    metrics = folder / "metrics.jsonl"
    return Run(
        folder=folder,
        method=str(about.get("method") or folder.resolve().name),
        status=status if status in STATUSES else "unknown",
        seed=about["seed"] if isinstance(about.get("seed"), int) else None,
        error=None if error is None else str(error),
        describe=str(about.get("describe") or ""),
        paper=str(about.get("paper") or ""),
        biased=tuple(map(str, _sequence(about.get("biased")))),
        task=_mapping(about.get("task")),
        config=_mapping(about.get("config")),
        environment=_mapping(about.get("environment")),
        started=str(about.get("started") or ""),
        last=_written(metrics) if metrics.is_file() else "",
        updates=about["updates"] if isinstance(about.get("updates"), int) else None,
        seconds=number(about.get("seconds")),
        logs=logs,
        completions=_stepped(read_jsonl(folder / "completions.jsonl", notes)),
        prompts=_stepped(read_jsonl(folder / "prompts.jsonl", notes)),
        notes=tuple(notes),
    )


def read_json(path: Path, notes: list[str]) -> Mapping[str, Any]:
    """The object in a JSON file; empty where the file is missing, or damaged, which is added to ``notes``.

    Args:
        path: of the file.
        notes: what was wrong, appended to.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except ValueError as error:
        notes.append(f"{path.name} is damaged and was not read ({error}).")
        return {}
    if number(_mapping(value).get("format", FORMAT)) != FORMAT:
        notes.append(f"{path.name} has format {value['format']}; this version reads {FORMAT}: figures may be missing.")
    return _mapping(value)


def read_jsonl(path: Path, notes: list[str]) -> list[Mapping[str, Any]]:
    """The objects in a JSON Lines file, damaged lines left out and named in ``notes``.

    Args:
        path: of the file; none is no record.
        notes: what was wrong, appended to.
    """
    if not path.is_file():
        return []
    records, damaged = [], []
    lines = path.read_bytes().split(b"\n")
    whole = [(place, line) for place, line in enumerate(lines, 1) if line.strip()]
    for place, line in whole:
        try:
            record = json.loads(line.decode("utf-8", errors="replace"))
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            damaged.append(place)
    if damaged and damaged[-1] == whole[-1][0]:
        notes.append(f"The last line of {path.name} is damaged, as when a run is stopped while writing: left out.")
        damaged.pop()
    if damaged:
        notes.append(f"{path.name}: {_counted(len(damaged), 'damaged line')} left out, the first is line {damaged[0]}.")
    return records


def _read_alone(folder: Path) -> tuple[list[Group], list[str]]:
    run = read_run(folder)
    return [Group(label=run.method, runs=(run,))], []


def _read_comparison(folder: Path) -> tuple[list[Group], list[str]]:
    notes: list[str] = []
    about = read_json(folder / COMPARISON_FILE, notes)
    results = read_json(folder / "results.json", notes)
    if not results:
        notes.append(
            "results.json is missing: the comparison has not ended, and there are no paired differences yet. "
            "The same dppo compare command goes on where it stopped."
        )
    asked = _mapping(about.get("methods"))
    seeds = [seed for seed in _sequence(about.get("seeds")) if isinstance(seed, int)]
    groups = []
    for name in asked or _mapping(results.get("methods")):
        runs = tuple(read_run(path) for path in _run_folders(folder / "runs" / str(name)))
        found = {run.seed for run in runs}
        groups.append(
            Group(
                label=str(name),
                name=str(name),
                baseline=str(results.get("baseline") or "trl"),
                runs=tuple(sorted(runs, key=lambda run: (run.seed is None, run.seed))),
                overrides=_mapping(asked.get(name)),
                readout=_mapping(_mapping(results.get("methods")).get(name)),
                speedup=_speedup(_mapping(_mapping(results.get("speedup")).get(name))),
                target=str(_mapping(results.get("target")).get("what") or ""),
                source=str(folder),
                awaited=tuple(seed for seed in seeds if seed not in found),
            )
        )
    there = {path.name for path in (folder / "runs").glob("*") if path.is_dir()}
    if left_out := sorted(there - {group.label for group in groups}):
        notes.append(
            f"Runs of {', '.join(left_out)} are in the folder, and the last dppo compare did not name them: they are "
            "not shown. Name all methods to have all."
        )
    if not any(group.runs for group in groups):
        raise ConfigError(
            f"{folder} is a comparison without a run: nothing under {folder / 'runs'}. Let it go on: dppo compare"
        )
    return groups, [f"{folder}: {note}" for note in notes]


def _speedup(read: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((_mapping(read[key]) for key in SPEEDUPS if key in read), {})


def _run_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if any((path / name).is_file() for name in RUN_FILES))


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


def _settings(run: Run) -> dict[str, Any]:
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


def _stepped(records: list[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    return tuple(record for record in records if math.isfinite(number(record.get("step"))))


def _without_repeats(logs: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    """Logs without those of updates that a run did again after it had gone back to a checkpoint."""
    kept: list[Mapping[str, Any]] = []
    for log in logs:
        if kept and log["step"] < kept[-1]["step"]:
            kept = [other for other in kept if other["step"] < log["step"]]
        kept.append(log)
    return tuple(kept)


def _written(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _not_there(folder: Path) -> str:
    looked = f"a run has {' or '.join(RUN_FILES)}, a comparison {COMPARISON_FILE}"
    if not folder.is_dir():
        return f"{folder} is not a folder ({looked}). Give the output_dir of a run: dppo report runs/embedded"
    inside = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    near = [path for path in inside if any((path / name).is_file() for name in (*RUN_FILES, COMPARISON_FILE))]
    line = f"dppo report {' '.join(map(str, near[:3]))}" if near else "dppo report runs/embedded"
    return f"{folder} is neither a run nor a comparison: {looked}, and none of them is there. Try: {line}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("s" if count != 1 else "")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


__all__ = ["read_json", "read_jsonl", "read_run", "read_sources"]
