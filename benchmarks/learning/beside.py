"""Methods at points that were measured before, which stay as they are: CPPO, GRESO, and TRL with groups of 8.

python -m benchmarks.learning.beside REGIME... [--methods cppo,greso] [--seeds 5] [--output FILE.json]

Settings come from ``benchmarks/results/regimes.json``, and what is found is added to FILE: that file, or another which
begins as a copy of it. CPPO and GRESO run in turns with the control, with its settings and for its seconds; TRL, at its
own tuned rate and completions of a step, with the default. Seconds are those of this machine and day: the first seed
says how many steps take them. The same command goes on where a stopped one was.
"""

import json
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.learning.points import (
    CONTROL,
    PER_METHOD,
    STOCK,
    beside_stock,
    commits,
    logged,
    mean_curve,
    merged,
    point,
    seconds_ratio,
)
from benchmarks.learning.regimes import CONFIG, NEAR, REGIMES, RESULTS, compared, corrected, flags, module
from benchmarks.shared import Record, earlier, options
from dppo.files import write_json, write_text
from dppo_lab.cli.words import listed
from dppo_lab.comparison.plan import read_config

PARTNERS = {STOCK: "default", "cppo": CONTROL, "greso": CONTROL}
"""By method, what it runs in turns with."""
TRIES = 3
ROUGH = 0.1
"""How far seconds of CPPO and GRESO may be off over all seeds: to run them again would take more than it tells."""
Settings = dict[str, dict[str, Any]]
"""Fields of methods by name, as the block ``compare`` of a configuration has them."""


def settings_of(regime: str, points: Record, partner: str, names: Sequence[str], folder: Path) -> Settings:
    """Fields of a partner and of methods: what the point has, TRL's tuned, or else the partner's with other steps."""
    overrides, blocks = points[regime]["overrides"], read_config(CONFIG)[0]["tune"]["methods"]
    found = {}
    for name in (partner, *names):
        own = overrides.get(name)
        if own is None and name == STOCK:
            own = tuned_stock(regime, folder, overrides[partner])
        if own is None:
            own = {**overrides[partner], "max_steps": likely_steps(points, partner, name, overrides[partner])}
        found[name] = {"method": blocks[name]["method"], **own}
    return found


def likely_steps(points: Record, partner: str, name: str, own: Mapping[str, Any]) -> int:
    """Steps that take a method about a partner's seconds: by the median of the points that have both."""
    known = [point["overrides"] for point in points.values() if {partner, name} <= set(point["overrides"])]
    ratios = [each[name]["max_steps"] / each[partner]["max_steps"] for each in known]
    return round(own["max_steps"] * (statistics.median(ratios) if ratios else 1))


def tuned_stock(regime: str, folder: Path, partner: Mapping[str, Any]) -> dict[str, Any]:
    """TRL's fields at the learning rate and completions of a step that are best for it, with the partner's steps."""
    output = folder / f"{STOCK}.yaml"
    if not output.exists():
        words = ["--methods", STOCK, "--steps", f"{STOCK}={partner['max_steps']}", "--output", str(output)]
        words += ["--output_dir", str(folder / STOCK)]
        module("tune", str(CONFIG), *words, *flags(regime))
    return yaml.safe_load(output.read_text(encoding="utf-8"))["compare"]["methods"][STOCK]


def in_turns(regime: str, settings: Settings, seeds: int, folder: Path) -> Record:
    """The record of a comparison of methods that all take the seconds of the first of them.

    Targets are the final accuracies of TRL, or else of the first.
    """
    fields, _ = read_config(CONFIG, flags(regime))
    tune, file, output = fields.pop("tune"), folder / "compare.yaml", folder / "compare.json"
    whole = {**fields, "output_dir": str(folder / "reported"), "seed": tune["seed"]}
    methods = yaml.safe_load(file.read_text(encoding="utf-8"))["compare"]["methods"] if file.exists() else settings
    first, *others = methods
    ours, opponent = (first, STOCK) if STOCK in others else (others[0], first)
    found, off, runs = Record(), dict[str, int](), folder / "reported" / "runs"
    complete = len(earlier(output).get("seeds", [])) == seeds
    begun = complete or any(runs.glob(f"*/seed_{tune['seed'] + 1}"))  # the first seed has said how many steps
    for count in (seeds,) if begun else (1, seeds):
        for left in reversed(range(TRIES)):
            for own in methods.values():
                own["eval_benchmark_every"] = -(-own["max_steps"] // tune["evaluations"])
            folder.mkdir(parents=True, exist_ok=True)
            write_text(file, yaml.safe_dump({**whole, "compare": {"methods": methods}}, sort_keys=False))
            found = compared(file, count, list(methods), ours, [opponent], output)
            off = corrected(found["methods"], first, NEAR if count == 1 or STOCK in others else ROUGH)
            if not off or not left or complete:
                break
            output.unlink()  # first: stopped from here on, the old steps are corrected once more
            for name in off if count == 1 else methods:  # of all seeds the partner too, so that they ran in turns
                shutil.rmtree(runs / name)
                methods[name]["max_steps"] = off.get(name, methods[name]["max_steps"])
    if off:
        print(f"{regime}: seconds of {', '.join(off)} are not the partner's", flush=True)
    return found


def added(known: Record, record: Record, names: Sequence[str], folder: Path) -> Record:
    """A point with what a comparison says of the methods with these names."""
    made, ours = commits(folder, record), PARTNERS[STOCK]
    if STOCK not in names:
        new = point(record, {name: logged(folder, record["seeds"], name) for name in (CONTROL, *names)})
        return _with(known, {**new, "commits": made}, names)
    methods = record["methods"]
    lane = beside_stock(record, ours, {ours: logged(folder, record["seeds"], ours)}) | {"commits": made}
    new = {part: lane[part] for part in ("final_accuracy", "overrides", "commits")}
    # Over the default's: it takes the control's, which is not run beside TRL.
    new["seconds"] = {STOCK: seconds_ratio(methods[ours], methods[STOCK])}
    new["curves"] = {STOCK: mean_curve([run["curve"] for run in methods[STOCK]["runs"]])}
    found = _with(_with(known, new, [STOCK]), {"beside_stock": {ours: lane}}, [ours])
    return {**found, f"against_{STOCK}": lane[f"against_{STOCK}"]}


def _with(known: Record, new: Record, names: Sequence[str]) -> Record:
    """A point with the parts of some methods from a new one."""
    return merged(
        known, {part: {name: new[part][name] for name in names if name in new.get(part, {})} for part in PER_METHOD}
    )


def main() -> int:
    """Run methods at points, and add them to the file."""
    parser = options(__doc__)
    parser.add_argument("regimes", nargs="+", choices=REGIMES)
    parser.add_argument("--methods", default="cppo,greso", help="that have one partner, or TRL's alone")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from the configuration's seed on")
    parser.add_argument("--folder", type=Path, default=Path("runs/beside"), help="where the runs go")
    given = parser.parse_args()
    names = listed(given.methods) or []
    partners = {PARTNERS.get(name) for name in names}
    partner = partners.pop() if len(partners) == 1 else None
    if partner is None:
        parser.error(f"--methods {given.methods} have no one partner. Write --methods cppo,greso or --methods {STOCK}")
    for regime in given.regimes:
        points = {**earlier(RESULTS)["regimes"], **earlier(given.output).get("regimes", {})}
        folder = given.folder / regime
        lane = folder / "_".join(names)
        settings = settings_of(regime, points, partner, names, folder)
        points[regime] = added(points[regime], in_turns(regime, settings, given.seeds, lane), names, lane)
        print(json.dumps({name: points[regime]["final_accuracy"][name] for name in names}))
        if given.output is not None:
            write_json(given.output, {"regimes": points})
    return 0


if __name__ == "__main__":
    sys.exit(main())
