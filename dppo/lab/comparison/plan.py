"""A comparison: contestants, seeds, shared fields and folder, and the part of it that is on disk already."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dppo.errors import ConfigError
from dppo.files import write_json
from dppo.lab.comparison.contestants import SEEDED, SHARED, Contestant, choose
from dppo.lab.comparison.curves import COMPARISON_FILE, CONFIG_FILE, RESULTS_FILE, RUNS, STARTS
from dppo.lab.demo.scratch import SCRATCH
from dppo.lab.environment import environment
from dppo.lab.runs.benchmarks import load_benchmarks
from dppo.lab.runs.folder import FORMAT, STOCK
from dppo.lab.runs.parsing import COMPARISON, AnyRun, read_file, read_flags
from dppo.lab.runs.preflight import check_run
from dppo.lab.runs.reader import read_record
from dppo.lab.runs.rewards import load_rewards, load_rollouts
from dppo.lab.shipped import EXAMPLES
from dppo.lab.statistics import finite
from dppo.trl.checkpoints.files import LOCK_FILE, WRITER_FILE

QUICK = EXAMPLES / "embedded_compare.yaml"
"""The comparison without a configuration; the file in ``examples`` is a link to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Contestants and seeds: one run of each contestant for each seed."""

    folder: Path
    contestants: tuple[Contestant, ...]
    seeds: tuple[int, ...]
    config: Mapping[str, Any]
    """The training fields that all share."""
    target: float | None = None
    """Accuracy in [0, 1]; None for the final accuracy of the baseline with the same seed."""
    seconds: float | None = None
    """CPU seconds of training after which a run ends, checked at each log; infinite to count CPU seconds without an
    end before ``max_steps``. None for the clock on the wall, without an end either."""

    @property
    def baseline(self) -> str:
        """Name of the contestant that others are measured against: ``trl``, or else the first."""
        names = [contestant.name for contestant in self.contestants]
        return STOCK if STOCK in names else names[0]

    @property
    def scratch(self) -> bool:
        """True if runs start from models made here, one for each seed."""
        return str(self.config.get("model_name_or_path", "")).startswith(SCRATCH)

    def run_folder(self, contestant: Contestant, seed: int) -> Path:
        """The folder of a run."""
        return self.folder / RUNS / contestant.name / f"seed_{seed}"

    def start_folder(self, seed: int) -> Path:
        """The folder of the model made from scratch for a seed."""
        return self.folder / STARTS / f"seed_{seed}"

    def fields(self, contestant: Contestant, seed: int) -> dict[str, Any]:
        """Every field of a run."""
        start = {"model_name_or_path": str(self.start_folder(seed))} if self.scratch else {}
        return contestant.fields({**self.config, **start}, seed, self.run_folder(contestant, seed))

    def order(self) -> list[tuple[int, Contestant]]:
        """Every run, seed by seed; the order within a seed rotates from seed to seed."""
        count = len(self.contestants)
        return [(seed, self.contestants[(seed + place) % count]) for seed in self.seeds for place in range(count)]

    def check(self) -> dict[str, AnyRun]:
        """The parsed first run of each contestant, after every field, and what accuracy is measured on, was checked."""
        for name, example in (("eval_benchmarks", "[math500]"), ("model_name_or_path", "Qwen/Qwen3-0.6B")):
            if not self.config.get(name):
                raise ConfigError(f"{name} is not set, and a comparison needs it. For example {name}: {example}")
        runs = {each.name: each.parse(self.fields(each, self.seeds[0])) for each in self.contestants}
        model = {"model_name_or_path": self.config["model_name_or_path"]} if self.scratch else {}  # not made yet
        for each in self.contestants:
            run = each.parse({**self.fields(each, self.seeds[0]), **model})
            check_run(run)
            load_rewards(run, None)
        first = runs[self.contestants[0].name]
        load_rollouts(first)
        load_benchmarks(first)
        if first.training.world_size > 1:
            raise ConfigError(
                f"a comparison trains in one process, this launch has {first.training.world_size}. Start it with dppo "
                "compare, without accelerate launch."
            )
        return runs

    def as_json(self) -> dict[str, Any]:
        """The record of ``comparison.json``."""
        return {
            "format": FORMAT,
            "methods": {each.name: {"method": each.method, **each.overrides} for each in self.contestants},
            "seeds": list(self.seeds),
            "config": dict(self.config),
            "target": self.target,
            "seconds": finite(self.seconds),
            "clock": "wall" if self.seconds is None else "cpu",
            "environment": environment(),
        }


def plan(
    config: str | Path | None,
    flags: Sequence[str] = (),
    *,
    methods: Sequence[str] | None = None,
    seeds: int = 3,
    target: float | None = None,
    seconds: float | None = None,
) -> Comparison:
    """The comparison of a configuration for ``dppo train``, ``QUICK`` by default; ``flags`` win over the file.

    The file may have a block ``compare: {methods: {name: {field: value}}}``; ``methods`` are names of it, or of
    methods, and None is all of the block. ``seeds`` are counted from the configuration's ``seed``. ``target`` is an
    accuracy in (0, 1] whose time is measured, and ``seconds`` are those of ``Comparison``.
    """
    fields, block = read_config(config, flags)
    folder, first = fields.pop("output_dir", None), fields.get("seed", 42)
    problems = {
        "dry_run is a field of dppo train. Check a run by itself: dppo train CONFIG.yaml --dry_run": (
            bool(fields.get("dry_run"))
        ),
        f"--seeds {seeds} must be at least 1; 3 or more for intervals. Try --seeds 5": seeds < 1,
        f"--target {target} must be an accuracy in (0, 1]. Try --target 0.8": target is not None
        and not 0 < target <= 1,
        f"--cpu_seconds {seconds} must be > 0. Try --cpu_seconds 60": seconds is not None and not seconds > 0,
        "output_dir is not set: the folder of the comparison. Write output_dir: runs/compare": not folder,
        f"seed={first!r} must be a whole number >= 0. Write seed: 0": not str(first).isdigit(),
    }
    for problem, applies in problems.items():
        if applies:
            raise ConfigError(problem)
    return Comparison(
        folder=Path(str(folder)),
        contestants=choose(methods, block, fields),
        seeds=tuple(int(first) + index for index in range(seeds)),
        config=fields,
        target=target,
        seconds=seconds,
    )


def read_config(path: str | Path | None, flags: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """The training fields of a configuration, ``QUICK`` by default, and the contestants of its ``compare`` block."""
    read = read_file(QUICK if path is None else path, example="examples/embedded_compare.yaml")
    block = read.pop(COMPARISON, None) or {}
    unknown = sorted(block.keys() - {"methods"}) if isinstance(block, dict) else [str(block)]
    methods = block.get("methods") if isinstance(block, dict) else None
    if unknown or not isinstance(methods or {}, dict):
        raise ConfigError(
            f"{COMPARISON}: {(unknown[0] if unknown else methods)!r} is not understood. Write {COMPARISON}: {{methods: "
            "{half_batch: {method: grpo, per_device_train_batch_size: 64}}}"
        )
    return read | read_flags(flags), dict(methods or {})


def check_folder(folder: Path) -> None:
    """Refuse a folder that is none, or that holds something else than a comparison."""
    held = {each.name for each in folder.iterdir()} if folder.is_dir() else set()
    if (folder.exists() and not folder.is_dir()) or (held - {LOCK_FILE, WRITER_FILE} and COMPARISON_FILE not in held):
        raise ConfigError(f"output_dir={folder} is no comparison. Name another --output_dir (demo: --output).")


def open_folder(comparison: Comparison, *, overwrite: bool) -> None:
    """Make the comparison's folder, or go on in it: runs with other fields are refused, with ``overwrite`` removed."""
    folder, record = comparison.folder, comparison.folder / COMPARISON_FILE
    changed = changes(comparison, read_record(record)) if record.exists() else {}
    if changed and not overwrite:
        listed = "; ".join(f"{place.relative_to(folder)}: {', '.join(names)}" for place, names in changed.items())
        raise ConfigError(
            f"output_dir={folder} holds runs that were made with other fields ({listed}). Add --overwrite to make "
            "those anew, or name another --output_dir."
        )
    for place in changed:
        shutil.rmtree(place, ignore_errors=True)
        (folder / RESULTS_FILE).unlink(missing_ok=True)  # of the runs that are gone, too
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(record, comparison.as_json())
    except OSError as error:
        raise ConfigError(f"output_dir={folder} cannot be written ({error}). Name another --output_dir.") from error


def changes(comparison: Comparison, before: Mapping[str, Any]) -> dict[Path, list[str]]:
    """Folders that do not belong to this comparison, and the fields that differ; ``before`` is ``comparison.json``."""
    old, starts = before.get("config", {}), comparison.folder / STARTS
    task = {*SEEDED, "embedded_problems"} & SHARED
    different = sorted(name for name in task if old.get(name) != comparison.config.get(name))
    if different and starts.is_dir():
        return {starts: different, comparison.folder / RUNS: different}
    found: dict[Path, list[str]] = {}
    for seed, contestant in comparison.order():
        place = comparison.run_folder(contestant, seed)
        if (place / CONFIG_FILE).exists():
            then, now = read_file(place / CONFIG_FILE), comparison.fields(contestant, seed)
            changed = [name for name in then.keys() | now.keys() if _meant(then.get(name)) != _meant(now.get(name))]
            found |= {place: sorted(changed)} if changed else {}
    return found


def _meant(value: Any) -> Any:
    """A value of a field by what it says: YAML reads ``1e-4`` as text, and a list of one may be written without."""
    one = value[0] if isinstance(value, list) and len(value) == 1 else value
    try:
        return float(one) if isinstance(one, str | int | float) and not isinstance(one, bool) else one
    except ValueError:
        return one
