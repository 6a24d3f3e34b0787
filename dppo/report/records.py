"""What a report is made of: runs as they were read, and the groups of seeds they form."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dppo.errors import ConfigError
from dppo.report.text import visible
from dppo.runs.reader import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """The runs of one method that differ in their seed alone."""

    label: str
    """What the method is called in this report; no two groups share it."""
    runs: tuple[RunRecord, ...]
    name: str = ""
    """What the method is called in its comparison; empty for runs on their own."""
    baseline: str = ""
    """Name of the method that its comparison measures against."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings that make this method in its comparison."""
    readout: Mapping[str, Any] = field(default_factory=dict)
    """What ``results.json`` says about it; empty where there is none."""
    speedup: Mapping[str, Any] = field(default_factory=dict)
    target: str = ""
    """What the speedup is a speedup to, in words."""
    source: str = ""
    """Folder of the comparison; empty for runs on their own."""
    awaited: tuple[int, ...] = ()
    """Seeds that were asked for and have no run."""

    @property
    def is_baseline(self) -> bool:
        """Whether it is what its comparison measures against."""
        return bool(self.source) and self.name == self.baseline

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
        """Why the method is biased, from the first run that says so, or from the comparison."""
        reasons = self.readout.get("biased")
        if isinstance(reasons, list):
            return tuple(map(str, reasons))
        return next((tuple(run.biased) for run in self.runs if run.biased), ())

    @property
    def paper(self) -> str:
        """The paper of the method, empty where no run says."""
        return next((run.paper for run in self.runs if run.paper), str(self.readout.get("paper") or ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All that a report is about."""

    title: str
    groups: tuple[Group, ...]
    task: Mapping[str, Any]
    environment: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """Every run of every group."""
        return tuple(run for group in self.groups for run in group.runs)


def differing(runs: tuple[RunRecord, ...], keys: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``keys`` that runs disagree about in their ``environment``."""
    known = [run.environment for run in runs if run.environment]
    return tuple(key for key in keys if len({repr(environment.get(key)) for environment in known}) > 1)


def one_task(runs: tuple[RunRecord, ...]) -> Mapping[str, Any]:
    """The task all runs share; empty where none says.

    Models made from scratch for a run, or for a seed of a comparison, count as one: their folders differ.

    Raises:
        ConfigError: two runs were on different tasks.
    """
    known = [run for run in runs if run.task]
    for run in known[1:]:
        first = known[0]
        if _comparable(run.task) != _comparable(first.task):
            raise ConfigError(
                f"{first.folder} and {run.folder} are of different tasks: {_in_words(first.task)}, and "
                f"{_in_words(run.task)}. Their figures cannot be compared: write one report for each, "
                f"dppo report {first.folder}"
            )
    return _comparable(known[0].task) if known else {}


def _comparable(task: Mapping[str, Any]) -> dict[str, Any]:
    model = Path(str(task.get("model", "")))
    scratch = model.name == "start" or model.parent.name == "starts"
    return {**task, "model": "made from scratch"} if scratch else dict(task)


def _in_words(task: Mapping[str, Any]) -> str:
    return visible(", ".join(f"{key} {value}" for key, value in task.items()))
