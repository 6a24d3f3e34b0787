"""The best settings of each method on a task, and how many steps they have in the same seconds: a ``compare`` file.

python -m benchmarks.learning.tune CONFIG.yaml --output TUNED.yaml [--methods trl,dppo] [--any_field value]

CONFIG is a configuration for ``dppo train`` with a block ``tune``: ``embedded.yaml`` says what is in it. Every setting
of a method is trained for a short time, the best few for longer with other seeds (successive halving; Jamieson &
Talwalkar, 2016, arXiv:1502.07943), and what is chosen has the best mean accuracy there. Where that is at an end of what
was tried, the grid grows beyond it, until it is not. TUNED is a configuration for ``dppo compare``; ``compare.py`` runs
it with the clock that was used here. Seconds are CPU seconds of the one thread that trains. The same command goes on
where a stopped one was.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from benchmarks.shared import options
from dppo.errors import ConfigError
from dppo.files import write_text
from dppo_lab.cli.words import listed, read_words
from dppo_lab.comparison.contestants import Contestant
from dppo_lab.comparison.plan import Comparison, read_config
from dppo_lab.comparison.results import RunResult, result_of
from dppo_lab.comparison.runner import Event, run_comparison
from dppo_lab.runs.folder import TOTALS
from dppo_lab.runs.reader import read_logs

TIMED_STEPS, UNTIMED = 8, 4
"""Of a run that times steps; those at the start are for warming up."""
AXES = ("learning_rate", "completions")
"""What the grid grows along, by factors of two."""
OF_TUNING = ("method", "groups", "completions", "tuned_as", "prompts", "steps", "steps_of")
"""What the block ``tune`` says of a method that is no field of its runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A point of the grid."""

    learning_rate: float
    completions: int
    """Generated for a step."""
    group: int
    """Completions of a prompt."""


def overrides(method: Mapping[str, Any], setting: Setting, steps: int, evaluations: int) -> dict[str, Any]:
    """The fields of a run of a method of the block ``tune`` with a setting."""
    prompts = max(1, round(setting.completions / setting.group * method.get("prompts", 1.0)))
    return {
        "per_device_train_batch_size": prompts * setting.group,
        "num_generations": setting.group,
        "learning_rate": setting.learning_rate,
        "max_steps": steps,
        "eval_benchmark_every": -(-steps // evaluations),
        **{key: value for key, value in method.items() if key not in OF_TUNING},
    }


Reached = Callable[[Sequence[Setting], int], Mapping[Setting, float]]
"""From settings and the number of a round to the mean final accuracy of each that has finished all its runs."""


def best_setting(grid: Sequence[Setting], kept: Sequence[int], reached: Reached, most_prompts: int) -> Setting:
    """The best of the last round, beyond an end of the grid too; ``kept`` get to each round after the first."""

    def fitting(settings: Iterable[Setting]) -> list[Setting]:
        return [each for each in settings if 1 <= each.completions / each.group <= most_prompts]

    found = dict(reached(fitting(grid), 0))
    for number, count in enumerate(kept, 1):
        found = dict(reached(sorted(found, key=lambda each: -found[each])[:count], number))
    asked: set[Setting] = set()  # one that failed is not asked for again
    while found:
        # Of equal ones one that the grid began with, so that growth ends.
        best = max(found, key=lambda each: (found[each], each in grid))
        further = [each for each in fitting(beyond(best, [*grid, *found])) if each not in asked]
        if not further:
            return best
        asked |= {*further}
        found |= reached(further, len(kept))
    raise ConfigError("no setting has finished its runs: look at status and error in their run.json")


def beyond(best: Setting, tried: Iterable[Setting]) -> list[Setting]:
    """One setting past each end of what was tried at which the best is."""
    found = []
    for axis in AXES:
        values, value = {getattr(each, axis) for each in tried}, getattr(best, axis)
        if len(values) == 1:  # one value is no end: it was fixed
            continue
        further = [value / 2] * (value == min(values)) + [value * 2] * (value == max(values))
        found += [replace(best, **{axis: type(value)(other)}) for other in further]
    return found


def steps_in(seconds: float, seconds_per_step: float) -> int:
    """Steps that take about so many seconds, at least two."""
    return max(2, round(seconds / seconds_per_step))


class Tuning:
    """The runs of a tuning, all in one folder: no two rounds share a seed."""

    def __init__(self, config: Mapping[str, Any], tune: Mapping[str, Any], folder: Path) -> None:
        self.config, self.tune, self.folder = config, tune, folder
        self.methods: Mapping[str, Mapping[str, Any]] = tune["methods"]

    def run(self, name: str, run: str, fields: Mapping[str, Any], seeds: Sequence[int]) -> list[RunResult]:
        """What the runs of a method with these fields reached, by seed; those that are missing are trained."""
        contestant = Contestant(name=run, method=self.methods[name].get("method", name), overrides=fields)
        compared = Comparison(folder=self.folder, contestants=(contestant,), seeds=tuple(seeds), config=self.config)
        run_comparison(compared, told)
        return [result_of(compared, contestant, seed) for seed in seeds]

    def seconds_per_step(self, name: str, setting: Setting, steps: int, seeds: Sequence[int], kind: str) -> float:
        """Mean over runs of so many steps, the first few not counted."""
        run = f"{named(name, setting)}-{kind}"
        own = {
            **overrides(self.methods[name], setting, steps, 1),
            "eval_benchmark_limit": 8,
            "eval_benchmark_samples": 1,
        }
        results, paces, first = self.run(name, run, own, seeds), list[float](), min(UNTIMED, steps - 1)
        for result in results:
            if not result.finished:
                raise ConfigError(f"{run} {result.status}: {result.error}")
            logs = read_logs(self.folder / "runs" / run / f"seed_{result.seed}")
            seconds = {log["step"]: log[TOTALS["seconds"]] for log in logs if TOTALS["seconds"] in log}
            paces.append((seconds[steps] - seconds[first]) / (steps - first))
        return float(np.mean(paces))

    def best(self, name: str) -> Setting:
        """The best setting of a method with groups."""
        rounds, source = self.tune["rounds"], self.methods[name].get("tuned_as", name)
        sizes = self.methods[name].get("completions", self.tune["completions"])
        points = product(self.tune["learning_rate"], sizes, self.methods[name]["groups"])
        grid = [Setting(learning_rate=rate, completions=size, group=group) for rate, size, group in points]

        def reached(settings: Sequence[Setting], number: int) -> dict[Setting, float]:
            found: dict[Setting, float] = {}
            for each in settings:
                run, steps = named(source, each), steps_in(rounds[number]["seconds"], self.pace(source, each))
                fields = overrides(self.methods[name], each, steps, 1)
                results = self.run(name, run, fields, rounds[number]["seeds"])
                if all(result.finished for result in results):
                    found[each] = float(np.mean([result.curve[-1].accuracy for result in results]))
            return found

        return best_setting(grid, [each["best"] for each in rounds[1:]], reached, self.config["embedded_problems"])

    def pace(self, name: str, setting: Setting) -> float:
        """Seconds per step of a setting before it is trained; its learning rate makes no difference."""
        setting = replace(setting, learning_rate=self.tune["learning_rate"][0])
        return self.seconds_per_step(name, setting, TIMED_STEPS, self.tune["rounds"][0]["seeds"][:1], "timed")

    def tuned(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Fields of each method for runs of the seconds that are reported, as the block ``compare`` has them."""
        chosen, found = dict[str, Setting](), {}
        for name in names:
            method = self.methods[name]
            source = name if "groups" in method else method["tuned_as"]
            if source not in chosen:
                chosen[source] = self.best(source)
            other = method.get("steps_of")
            if other and other not in found:
                raise ConfigError(f"{name} has the steps of {other}: write --methods {other},{name}")
            steps = method.get("steps") or (
                found[other]["max_steps"] if other else self.reported_steps(name, chosen[source])
            )
            fields = overrides(method, chosen[source], steps, self.tune["evaluations"])
            found[name] = {"method": method.get("method", name), **fields}
        return found

    def reported_steps(self, name: str, setting: Setting) -> int:
        """How many steps take the seconds that are reported: what ``pilot_seeds`` say."""
        pilot = steps_in(self.tune["rounds"][-1]["seconds"], self.pace(name, setting))
        pace = self.seconds_per_step(name, setting, pilot, self.tune["pilot_seeds"], "pilot")
        steps = steps_in(self.tune["seconds"], pace)
        print(f"{named(name, setting)}: {steps} steps of {pace:.3f} s", flush=True)
        return steps


def named(name: str, setting: Setting) -> str:
    """What a run of a setting is called."""
    return f"{name}-g{setting.group}-c{setting.completions}-{setting.learning_rate:g}"


def given_steps(words: Iterable[str], methods: Iterable[str]) -> dict[str, int]:
    """By method, the steps that words such as ``default=310`` give it."""
    found = {}
    for word in words:
        name, _, count = word.partition("=")
        if name not in methods or not count.isdecimal():
            raise ConfigError(f"--steps {word}: expected a method of the block tune and a number, as in default=310")
        found[name] = int(count)
    return found


def told(event: Event) -> None:
    """One line for everything that happens, but steps."""
    if event.stage in ("finished", "failed"):
        print(f"{event.number}/{event.runs} {event.name} seed {event.seed}: {event.stage} {event.text}", flush=True)


def main() -> int:
    """Tune, and write the configuration of the comparison."""
    parser = options(__doc__)
    parser.add_argument("--methods", help="names of the block; all by default")
    parser.add_argument("--completions", type=int, help="of a step, in place of those of the block")
    parser.add_argument("--steps", help="of methods, as name=steps,name=steps, in place of what pilots say")
    parser.add_argument("--groups", type=int, help="completions of a prompt, of the first of --methods")
    config, given, flags = read_words(parser, sys.argv[1:])
    if config is None or given.output is None:
        parser.error("write CONFIG.yaml --output TUNED.yaml")
    torch.set_num_threads(1)
    fields, _ = read_config(config, flags)
    if "tune" not in fields:
        parser.error(f"{config} has no block tune: benchmarks/learning/embedded.yaml has one")
    tune, folder = fields.pop("tune"), Path(fields.pop("output_dir"))
    if given.completions is not None:
        tune |= {"completions": [given.completions]}
    tuning = Tuning(fields, tune, folder / "tuning")
    names = listed(given.methods) or list(tuning.methods)
    if unknown := sorted({*names} - tuning.methods.keys()):
        raise ConfigError(f"--methods {unknown[0]} is not in the block tune. There are: {', '.join(tuning.methods)}")
    if given.groups is not None:
        tune["methods"][names[0]]["groups"] = [given.groups]
    for name, steps in given_steps(listed(given.steps) or [], tune["methods"]).items():
        tune["methods"][name]["steps"] = steps
    methods = tuning.tuned(names)
    whole = {**fields, "output_dir": str(folder / "reported"), "seed": tune["seed"], "compare": {"methods": methods}}
    write_text(given.output, yaml.safe_dump(whole, sort_keys=False))
    return 0


if __name__ == "__main__":
    time.perf_counter = time.process_time  # every clock of this process
    sys.exit(main())
