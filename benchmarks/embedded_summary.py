"""One file of all runs of ``embedded_compare.py``, and the tables of docs/results.md.

python benchmarks/embedded_summary.py [--work FOLDER] [--output FILE.json]
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from embedded_compare import FIELDS, GIVEN_RATES, GRID_SEEDS, MORE_SEEDS, SEEDS, comparison, stages
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from dppo.comparison.contestants import Contestant
from dppo.comparison.results import paired, speedup, summarise
from dppo.demo.evaluate import accuracy
from dppo.demo.task import Problem, make_split
from dppo.files import write_json
from dppo.rng import Purpose, torch_generator
from dppo.statistics import seed_interval

UNSEEN_SAMPLES = 8
"""Per question, of ``unseen``; evaluations while training have 4."""


def main() -> int:
    """Read, write, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("runs/embedded_compare"), help="folder of all runs")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/embedded_compare.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    write_summary(options.work, stages(), options.output)
    return 0


def write_summary(work: Path, parts: Mapping[str, tuple[Contestant, ...]], output: Path) -> None:
    """Read all runs, write one file and print its tables.

    Args:
        work: folder of all runs.
        parts: the stages.
        output: the JSON file.
    """
    reported = read_stages(work / "reported", parts)
    grid = summarise(comparison(work / "grid", parts["grid"], GRID_SEEDS))
    for name, figures in reported["speedup"].items():
        figures["whole_trl_run"] = whole_run(reported, name)
    made_with = json.loads((work / "reported" / "runs" / "trl" / f"seed_{SEEDS[0]}" / "run.json").read_text())
    record = {
        **reported,
        "made_with": made_with["environment"],
        "fields": FIELDS,
        "stages": {stage: [each.name for each in contestants] for stage, contestants in parts.items()},
        "unseen": unseen(work / "reported", parts["more"], SEEDS + MORE_SEEDS),
        "grid": {name: method["final"] for name, method in grid["methods"].items()},
    }
    write_json(output, record)
    for stage in ("main", "ablation"):
        print(f"{stage}\n\n{markdown(record, record['stages'][stage])}\n")
    print(f"rates\n\n{rates(record)}\n")
    for what in ("grid", "unseen"):
        figures = record[what] if what == "grid" else {k: v["final"] for k, v in record[what]["methods"].items()}
        print(
            f"{what}\n"
            + "\n".join(f"{name}: {cell(final, 'mean', '{:.3f}')}" for name, final in figures.items())
            + "\n"
        )


def read_stages(folder: Path, parts: Mapping[str, tuple[Contestant, ...]]) -> dict[str, Any]:
    """Figures of every contestant, read out beside those of its own stage.

    Final accuracies and speedups of ``MORE`` are over all seeds, read-outs at equal amounts over ``SEEDS``.

    Args:
        folder: of the runs.
        parts: the stages.
    """
    baseline = tuple(each for each in parts["main"] if each.name == "trl")
    further = summarise(comparison(folder, parts["more"], SEEDS + MORE_SEEDS))
    found = [summarise(comparison(folder, baseline + parts[stage], SEEDS)) for stage in ("rates", "ablation")]
    reported = summarise(comparison(folder, parts["main"], SEEDS))
    for stage in found:
        for kind in ("methods", "speedup"):
            reported[kind] |= {name: figures for name, figures in stage[kind].items() if name != "trl"}
    for name, figures in further["methods"].items():
        reported["methods"][name] |= {what: figures[what] for what in ("runs", "final", "to_target", "finished")}
        reported["speedup"][name] = further["speedup"][name]
    return {**reported, "seeds": [*SEEDS, *MORE_SEEDS], "target": further["target"]}


def unseen(folder: Path, contestants: Sequence[Contestant], seeds: Sequence[int]) -> dict[str, Any]:
    """Final accuracy, again, on those held-out questions of each seed that no run of the grid was asked.

    All seeds draw from one held-out part, in which short questions are few, so seeds of their own are not questions of
    their own. The models are the saved ones, and each question is answered ``UNSEEN_SAMPLES`` times.

    Args:
        folder: of the runs.
        contestants: whose runs; those that have not finished are left out.
        seeds: of the runs.
    """
    grid = {problem.question for seed in GRID_SEEDS for problem in held_out(seed)}
    asked = {seed: [problem for problem in held_out(seed) if problem.question not in grid] for seed in seeds}
    found: dict[str, dict[int, float | None]] = {}
    for each in contestants:
        found[each.name] = {}
        for seed in seeds:
            run = folder / "runs" / each.name / f"seed_{seed}"
            if (run / "model.safetensors").exists():
                model = AutoModelForCausalLM.from_pretrained(run).eval()
                tokenizer = AutoTokenizer.from_pretrained(run)
                draws = torch_generator(seed, Purpose.EVALUATION)
                found[each.name][seed] = (
                    accuracy(model, tokenizer, asked[seed], UNSEEN_SAMPLES, draws).double().mean().item()
                )
    return {
        "questions": {str(seed): len(problems) for seed, problems in asked.items()},
        "samples": UNSEEN_SAMPLES,
        "methods": {
            name: {
                "final": seed_interval(values).as_json(),
                "difference": seed_interval(paired(values, {**dict.fromkeys(values), **found["trl"]})).as_json(),
            }
            for name, values in found.items()
        },
    }


def held_out(seed: int) -> tuple[Problem, ...]:
    """The held-out problems that runs of a seed are evaluated on."""
    return make_split(seed, train=0, held_out=FIELDS["eval_benchmark_limit"]).held_out


def whole_run(results: Mapping[str, Any], name: str) -> dict[str, object]:
    """All seconds of TRL's run over the method's seconds to TRL's final accuracy, 0 where it was not reached.

    ``time_to_trl_final`` is stricter: there TRL's time ends where its curve first touches its final accuracy.

    Args:
        results: as ``summarise`` gives them.
        name: of the method.
    """
    runs = [run for run in results["methods"]["trl"]["runs"] if run["status"] == "finished"]
    whole = {run["seed"]: run["curve"][-1]["seconds"] for run in runs}
    method, found = results["methods"][name], {}
    for run in method["runs"]:
        if run["status"] == "finished" and run["seed"] in whole:
            seconds = method["to_target"]["seconds"]["per_seed"][str(run["seed"])]
            found[run["seed"]] = speedup(whole[run["seed"]], math.inf if seconds is None else seconds)
    return seed_interval(found, np.median).as_json("median")


COLUMNS = (
    *("method", "speedup", "of TRL's whole run", "reached", "difference at equal seconds, pp", "final accuracy"),
    *("biased", "seeds"),
)


def markdown(record: Mapping[str, Any], names: Sequence[str]) -> str:
    """A table of docs/results.md: the paper's columns, and what else a reader asks for.

    Args:
        record: what the JSON file holds.
        names: of the methods, in order.
    """
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for name in names:
        method, speedups = record["methods"][name], record["speedup"][name]
        cells = [
            f"`{name}`",
            cell(speedups["time_to_trl_final"], "median", "{:.2f}"),
            cell(speedups["whole_trl_run"], "median", "{:.2f}"),
            method["to_target"]["reached"],
            cell(method["equal_seconds"]["difference"], "mean", "{:+.1f}", 100),
            cell(method["final"], "mean", "{:.3f}"),
            "**yes**" if method["biased"] else "no",
            str(sum(run["status"] == "finished" for run in method["runs"])),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rates(record: Mapping[str, Any]) -> str:
    """The table of rates in docs/results.md: mean final accuracy, and seconds per step of the faster seed.

    Args:
        record: what the JSON file holds.
    """
    lines = [
        f"| prompts pruned | {' | '.join(f'{rate:g} of completions' for rate in GIVEN_RATES)} |",
        "|---" * (len(GIVEN_RATES) + 1) + "|",
    ]
    for prompt in GIVEN_RATES:
        cells = []
        for completion in GIVEN_RATES:
            method = record["methods"][f"dppo_rq{prompt}_ro{completion}"]
            ends = [run["curve"][-1] for run in method["runs"] if run["status"] == "finished"]
            seconds = min(end["seconds"] / end["step"] for end in ends)
            cells.append(f"{method['final']['mean']:.3f} ({seconds:.2f} s)")
        lines.append(f"| {prompt:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(figure: Mapping[str, Any], centre: str, form: str, times: float = 1.0) -> str:
    """A figure with its interval, where it has one.

    Args:
        figure: as ``SeedInterval.as_json`` gives it.
        centre: the name of its middle.
        form: of a number.
        times: what it is multiplied by.
    """
    if figure[centre] is None:
        return "-"
    ends = (
        "" if figure["low"] is None else " [{}, {}]".format(*(form.format(times * figure[e]) for e in ("low", "high")))
    )
    return form.format(times * figure[centre]) + ends


if __name__ == "__main__":
    sys.exit(main())
