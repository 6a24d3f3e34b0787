"""Sources of a report: a run, or the methods of a comparison with their seeds."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dppo.errors import ConfigError
from dppo.lab.comparison.curves import COMPARISON_FILE, RESULTS_FILE, RUNS
from dppo.lab.comparison.words import Compared
from dppo.lab.runs.folder import METRICS_FILE
from dppo.lab.runs.reader import EITHER, RunRecord, is_run, mapping, number, read_record, read_run, sequence


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """The runs of one method in a comparison, by seed; or a single run."""

    label: str
    """The method's name."""
    runs: tuple[RunRecord, ...]
    compared: Compared = field(default_factory=Compared)
    """Its figures in ``results.json`` of its comparison."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings that make this method in its comparison."""
    awaited: tuple[int, ...] = ()
    """Seeds that were asked for and have no run yet."""

    @property
    def logged(self) -> tuple[RunRecord, ...]:
        """The runs that have logs."""
        return tuple(run for run in self.runs if run.logs)

    @property
    def sound(self) -> tuple[RunRecord, ...]:
        """The runs with logs that did not fail."""
        return tuple(run for run in self.logged if run.status != "failed")

    @property
    def biased(self) -> tuple[str, ...]:
        """Why the method is biased, from the comparison, or from the first run that says so."""
        reasons = sequence(self.compared.readout.get("biased"))
        return tuple(map(str, reasons)) or next((tuple(run.biased) for run in self.runs if run.biased), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything that a report shows."""

    title: str
    command: str = ""
    """That writes the report."""
    groups: tuple[Group, ...]
    task: Mapping[str, Any]
    environment: Mapping[str, Any]
    notes: tuple[str, ...]


def read_sources(folder: str | Path) -> Contents:
    """The runs in the folder of a run or of a comparison, as a report's contents."""
    path, notes = Path(folder), list[str]()
    if (path / COMPARISON_FILE).is_file():
        groups, task = _read_comparison(path, notes)
    elif is_run(path):
        run = read_run(path)
        groups, task = (Group(label=run.method, runs=(run,)),), run.task
    else:
        looked = ", ".join((*EITHER, COMPARISON_FILE))
        raise ConfigError(
            f"{path} has none of {looked}: it is neither a run nor a comparison. Give the output_dir of a run: "
            "dppo report runs/embedded"
        )
    runs = [run for group in groups for run in group.runs]
    if not any(run.logs for run in runs):
        raise ConfigError(
            f"nothing to report: no run in {path} has a record in {METRICS_FILE}. It is written while training, every "
            "logging_steps updates: dppo train CONFIG.yaml --logging_steps 5"
        )
    notes += [f"{run.folder}: there are no logs" for run in runs if not run.logs]
    notes += [f"{run.folder} {run.status}: {run.error}" for run in runs if run.error]
    if len({repr(run.environment.get("processor")) for run in runs if run.environment}) > 1:
        notes.append("The runs were not measured on one machine, so seconds do not compare.")
    return Contents(
        title=path.resolve().name,
        command=shlex.join(["dppo", "report", str(path)]),
        groups=groups,
        task=task,
        environment=next((run.environment for run in runs if run.environment), {}),
        notes=tuple(notes),
    )


def _read_comparison(folder: Path, told: list[str]) -> tuple[tuple[Group, ...], Mapping[str, Any]]:
    """A group for each of its methods, and the task of all; problems are added to ``told``."""
    about, results = (read_record(folder / name) for name in (COMPARISON_FILE, RESULTS_FILE))
    if not results:
        told.append(f"{RESULTS_FILE} is missing. The same dppo compare command goes on where it stopped.")
    if about.get("clock") == "cpu" or number(about.get("seconds")) > 0:
        told.append("Seconds are CPU seconds, and not of the clock on the wall.")
    asked, seeds = mapping(about.get("methods")), sequence(about.get("seeds"))
    groups = []
    for name in map(str, asked or mapping(results.get("methods"))):
        runs = [read_run(path) for path in sorted((folder / RUNS / name).glob("*")) if is_run(path)]
        found = {run.seed for run in runs}
        groups.append(
            Group(
                label=name,
                runs=tuple(sorted(runs, key=lambda run: (run.seed is None, run.seed))),
                compared=Compared.of(results, name),
                overrides=mapping(asked.get(name)),
                awaited=tuple(seed for seed in seeds if isinstance(seed, int) and seed not in found),
            )
        )
    if not any(group.runs for group in groups):
        raise ConfigError(
            f"{folder} is a comparison without a run: nothing under {folder / RUNS}. Let it go on: dppo compare"
        )
    return tuple(groups), mapping(results.get("task"))
