"""Accuracy that methods reach in the same seconds, by regime: the regime's rate is tuned, then all methods run.

python -m benchmarks.learning.smollm2 CONFIG.yaml --regimes no_kl[,kl] [--methods trl,control] [--seeds 5]
    [--any_field value] [--output benchmarks/results/smollm2.json]

CONFIG has the regimes: ``smollm2.yaml`` of a real chat model, ``regimes.yaml`` of the small tasks. Methods run seed by
seed, those of a seed in turns. A run that is in the file is not run again, so a table can be made on several days; one
that was stopped goes on from its checkpoint (TRL's starts again). Seconds are CPU seconds of the one thread that
trains, and with a GPU those of a clock.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.learning.tables import learned
from benchmarks.shared import Record, earlier, options
from dppo.errors import ConfigError
from dppo.files import write_json
from dppo.lab.cli.words import listed, read_words
from dppo.lab.comparison.contestants import Contestant
from dppo.lab.comparison.curves import Point
from dppo.lab.comparison.plan import Comparison
from dppo.lab.comparison.results import Curves, RunResult, Target, final_target, ratios, result_of
from dppo.lab.comparison.runner import Event, run_comparison
from dppo.lab.environment import environment
from dppo.lab.runs.folder import STOCK
from dppo.lab.runs.parsing import read_file, read_flags
from dppo.lab.runs.reader import read_logs
from dppo.lab.statistics import seed_interval

CONTROL, DEFAULT = "control", "default"
LOGGED = ("completion_rate", "prompt_rate", "kept_share", "added_variance", "completion_ceiling", "prompt_ceiling")
"""Metrics ``prune/*`` of what ``auto`` chose."""
PLACES = 40
"""Places at most of a mean curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """Fields that all methods share, how long they train, and the methods."""

    name: str
    folder: Path
    config: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]]
    seconds: Mapping[str, float]
    """CPU seconds of a run, ``others`` for each method that is not named."""
    rates: Sequence[float]
    target: float | None
    """Held-out accuracy to which seconds are counted; None for the opponent's final one, same seed. On 50 questions
    that would be noise."""
    tuning: Mapping[str, Any]
    """``seeds``, and how many rates are ``kept`` after the first of them."""

    def compared(self, name: str, seeds: Sequence[int], rate: float, *, tuning: bool = False) -> Comparison:
        """The runs of one method."""
        own = dict(self.methods[name])
        run = f"{name}-{rate:g}" if tuning else name
        contestant = Contestant(name=run, method=own.pop("method"), overrides={"learning_rate": rate, **own})
        return Comparison(
            folder=self.folder / ("tuning" if tuning else "reported"),
            contestants=(contestant,),
            seeds=tuple(seeds),
            config=self.config,
            seconds=self.seconds_of(name),
        )

    def seconds_of(self, name: str) -> float:
        """CPU seconds of a method's runs."""
        return self.seconds.get(name, self.seconds["others"])

    def tuned_rate(self) -> tuple[float, dict[str, list[float]]]:
        """The learning rate of the control's best mean final accuracy, and by rate those accuracies, seed by seed.

        Where there is one rate only, nothing is run.
        """
        found: dict[float, list[float]] = {rate: [] for rate in self.rates}
        left = list(self.rates)
        if len(left) == 1:
            return left[0], {}
        for seed in self.tuning["seeds"]:
            for rate in left:
                compared = self.compared(CONTROL, [seed], rate, tuning=True)
                found[rate].append(_ran(compared).curve[-1].accuracy)
            left = sorted(left, key=lambda rate: -float(np.mean(found[rate])))[: self.tuning["kept"]]
        return left[0], {f"{rate:g}": each for rate, each in found.items()}


def _ran(compared: Comparison) -> RunResult:
    """The result of the one run of a comparison, trained if it is missing; without its weights, which take 0.5 GB."""
    run_comparison(compared, told)
    (contestant,), (seed,) = compared.contestants, compared.seeds
    result = result_of(compared, contestant, seed)
    if not result.finished:
        raise RuntimeError(f"{contestant.name} seed {seed} {result.status}: {result.error}")
    for path in compared.run_folder(contestant, seed).glob("**/*.safetensors"):
        path.unlink()
    return result


def regime_of(name: str, config: str | Path, flags: Sequence[str] = ()) -> Regime:
    """A regime of a file; ``flags`` are fields that replace those of the file."""
    fields = read_file(config, example="benchmarks/learning/smollm2.yaml")
    regimes, tuning, target = (fields.pop(part, None) for part in ("regimes", "tuning", "target"))
    if name not in regimes:
        raise ConfigError(f"--regimes {name} is not in {config}. There are: {', '.join(regimes)}")
    own = regimes[name]
    shared = {**fields, **own.get("fields", {}), **read_flags(flags)}
    folder = Path(str(shared.pop("output_dir"))) / name
    kept = {part: own[part] for part in ("methods", "seconds", "rates")}
    return Regime(name=name, folder=folder, config=shared, target=target, tuning=tuning, **kept)


Runs = dict[str, dict[int, Record]]
"""Finished runs, by method and seed: curve, phases, logged choices, commit and processor."""


def runs_in(record: Record, regime: Regime) -> Runs:
    """The runs of an earlier record of a regime.

    Raises:
        ConfigError: a method ran with other fields or seconds than the regime has now.
    """
    found: Runs = {}
    for name, each in record.get("methods", {}).items():
        now = {"fields": dict(regime.methods.get(name, {})), "seconds": regime.seconds_of(name)}
        if now != {part: each[part] for part in now}:
            raise ConfigError(
                f"{name} of {regime.name} in the file is not as in the configuration, {now}: write --output NEW.json"
            )
        found[name] = {run["seed"]: run for run in each["runs"]}
    return found


def run(
    regime: Regime, methods: Sequence[str], seeds: Sequence[int], known: Record, done: Callable[[Record], None]
) -> None:
    """Tune and train where ``known``, an earlier record, has no run; ``done`` gets the record after each seed."""
    runs = runs_in(known, regime)
    rate, tuned = (known["rate"], known["tuned"]) if "rate" in known else regime.tuned_rate()
    for place, seed in enumerate(seeds):
        for number in range(len(methods)):
            name = methods[(place + number) % len(methods)]
            if seed not in runs.setdefault(name, {}):
                runs[name][seed] = _as_record(regime, name, _ran(regime.compared(name, [seed], rate)))
        done({**record_of(regime, runs), "rate": rate, "tuned": tuned})


def logged(folder: Path) -> dict[str, float]:
    """Means over the steps of a run: share of zero-variance groups, and what was dropped."""
    logs, names = read_logs(folder), {"silent_share": "frac_reward_zero_std", **{n: f"prune/{n}" for n in LOGGED}}
    found = {what: [log[name] for log in logs if log.get(name) is not None] for what, name in names.items()}
    return {what: float(np.mean(values)) for what, values in found.items() if values}


def _as_record(regime: Regime, name: str, result: RunResult) -> Record:
    facts = (result.facts and result.facts.environment) or {}
    return {
        **result.as_json(),
        "chosen": logged(regime.folder / "reported" / "runs" / name / f"seed_{result.seed}"),
        **{part: facts.get(part) for part in ("commit", "processor")},
    }


def record_of(regime: Regime, runs: Runs) -> Record:
    """Record of finished runs: seconds to the target against each opponent, and the seconds of a step."""
    curves = {
        name: {seed: tuple(Point(**each) for each in run["curve"]) for seed, run in found.items()}
        for name, found in runs.items()
    }
    record: Record = {
        "target": regime.target,
        "methods": {name: _method(regime, list(found.values()), name) for name, found in runs.items()},
    }
    for opponent in (STOCK, CONTROL):
        for name in curves if opponent in curves else ():
            found = _sooner(curves, name, opponent, regime.target)
            record["methods"][name][f"against_{opponent}"] = found
            if name == DEFAULT:
                record[f"against_{opponent}"] = found
    if CONTROL in runs:
        control = record["methods"][CONTROL]
        spent = control["step_seconds"]
        record |= {"seeds": len(runs[CONTROL]), "step_seconds": spent["whole"]}
        record |= {
            "silent_share": control["chosen"]["silent_share"],
            "reach_share": 1 - spent["rollout"] / spent["whole"],
        }
    return record


def _sooner(curves: Mapping[str, Curves], name: str, opponent: str, target: float | None) -> Record:
    """The opponent's seconds to the target over those of a method, over the seeds that both have."""
    seeds = sorted(curves[name].keys() & curves[opponent].keys())
    both = {each: {seed: curves[each][seed] for seed in seeds} for each in {name, opponent}}
    goal = final_target(opponent, both[opponent])
    if target is not None:
        goal = Target(what=f"accuracy {target:g}", per_seed=dict.fromkeys(seeds, target))
    return {**ratios(both, goal, opponent)[name], "seeds": len(seeds), "missing": goal.missing or None}


def _method(regime: Regime, runs: list[Record], name: str) -> Record:
    """The runs of a method, and what they have in common."""
    steps = sum(run["curve"][-1]["step"] for run in runs)
    seconds = {"whole": sum(run["curve"][-1]["seconds"] for run in runs) / steps}
    for phase in ("rollout", "forward_backward"):
        seconds[phase] = sum(run["phases"].get(phase, 0.0) for run in runs) / steps
    names = sorted({each for run in runs for each in run["chosen"]})
    return {
        "fields": dict(regime.methods[name]),
        "seconds": regime.seconds_of(name),
        "final_accuracy": seed_interval({run["seed"]: run["curve"][-1]["accuracy"] for run in runs}).as_json(),
        "step_seconds": seconds,
        "curve": mean_curve([run["curve"] for run in runs]),
        "chosen": {
            each: float(np.mean([run["chosen"][each] for run in runs if each in run["chosen"]])) for each in names
        },
        "runs": runs,
    }


def mean_curve(curves: Sequence[Sequence[Record]]) -> list[list[float]]:
    """Seconds, mean accuracy over seeds and the ends of its 95% interval, on the stretch that all runs cover."""
    of_runs = [np.array([[each["seconds"], each["accuracy"]] for each in curve]).T for curve in curves]
    start, end = max(x_I[0] for x_I, _ in of_runs), min(x_I[-1] for x_I, _ in of_runs)
    place_I = np.unique(np.concatenate([x_I[(x_I >= start) & (x_I <= end)] for x_I, _ in of_runs]))
    if len(place_I) > PLACES:
        place_I = np.linspace(start, end, PLACES)
    value_SI = np.stack([np.interp(place_I, *curve) for curve in of_runs])
    ends = np.empty((3, len(place_I)))
    for place, value_S in enumerate(value_SI.T.tolist()):
        found = seed_interval(dict(enumerate(value_S)))
        ends[:, place] = [np.mean(value_S) if each is None else each for each in (found.centre, found.low, found.high)]
    return np.round(np.column_stack([place_I, ends.T]), 5).tolist()


def told(event: Event) -> None:
    """One line for each run that ends."""
    if event.stage in ("finished", "failed"):
        print(f"{event.number}/{event.runs} {event.name} seed {event.seed}: {event.stage} {event.text}", flush=True)


def main() -> int:
    """Run regimes, and write the file anew after each seed."""
    parser = options(__doc__)
    parser.add_argument("--regimes", required=True, help="names in CONFIG, with commas between")
    parser.add_argument("--methods", help="names of the regime; all by default")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from the configuration's seed on")
    parser.add_argument("--tuned_rate", type=float, help="a learning rate that was tuned before")
    parser.add_argument("--seconds", type=float, help="of each run, in place of the file's")
    config, given, flags = read_words(parser, sys.argv[1:])
    if config is None:
        parser.error("write CONFIG.yaml --regimes NAME: benchmarks/learning/smollm2.yaml has them")
    known = earlier(given.output).get("regimes", {})
    for name in listed(given.regimes) or []:
        regime = regime_of(name, config, flags)
        if given.seconds is not None:
            regime = replace(regime, seconds={"others": given.seconds})
        if given.tuned_rate is not None:
            regime = replace(regime, rates=(given.tuned_rate,))

        def done(record: Record, name: str = name) -> None:
            known[name] = record
            if given.output is not None:
                write_json(given.output, {"regimes": known, "environment": environment()})

        first = int(regime.config["seed"])
        seeds = range(first, first + given.seeds)
        run(regime, listed(given.methods) or list(regime.methods), seeds, known.get(name, {}), done)
    print(learned(known))
    return 0


if __name__ == "__main__":
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
        time.perf_counter = time.process_time  # every clock of this process
    sys.exit(main())
