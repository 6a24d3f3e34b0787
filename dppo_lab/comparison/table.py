"""The results of a comparison as tables to print: the paper's columns first."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dppo_lab.comparison.curves import AMOUNTS
from dppo_lab.statistics import FEWEST, most_covered

NARROWEST = 110
"""Columns that the tables need; where fewer are known, lines wrap."""
NONE = "-"


def show(results: Mapping[str, Any], console: Console) -> None:
    """Print, of ``results.json``, speedups and differences, then what each method took, then what one must know."""
    console.print(_main(results))
    console.print()
    console.print(_amounts(results))
    for line in notes(results):
        console.print(line, markup=False, soft_wrap=True)


def notes(results: Mapping[str, Any]) -> Iterator[str]:
    """What a reader of the tables must know, one sentence each."""
    baseline, seeds = results["baseline"], len(results["seeds"])
    first = results["methods"][baseline]
    yield f"Against {baseline}, paired by seed. Target: {results['target']['what']}."
    yield from _about_speedups(results)
    places = [
        f"{first[name]['at']:,.0f} {unit}"
        for name, unit in (("equal_updates", "updates"), ("equal_seconds", "seconds"), ("equal_rollouts", "rollouts"))
        if first[name]["at"] is not None
    ]
    if places:
        yield f"Differences are in points of accuracy, at {', '.join(places)} (means over seeds)."
    if seeds < FEWEST:
        yield f"{seeds} seed{'s' if seeds > 1 else ''}: no intervals are shown with fewer than {FEWEST}. Try --seeds 5"
    else:
        yield (
            f"Intervals: 95% bootstrap over seeds, tails expanded for few seeds; {seeds} seeds can cover "
            f"{most_covered(seeds):.0%} at most. None where fewer than {FEWEST} finished."
        )
    for name, method in results["methods"].items():
        for reason in method["biased"]:
            yield f"biased {name}: {reason}"
        if method["left_out"] and method["method"] != "trl":
            yield f"{name} does not take {', '.join(method['left_out'])}: left out"
        for run in method["runs"]:
            if run["status"] != "finished":
                yield f"{run['status']} {name}, seed {run['seed']}{': ' + run['error'] if run['error'] else ''}"


def _about_speedups(results: Mapping[str, Any]) -> Iterator[str]:
    """What a speedup is and what is not known of it, or why there is none."""
    if results["target"]["missing"]:
        yield f"No target and no speedup: {results['target']['missing']}."
        return
    yield (
        "Speedup: median over seeds of the baseline's seconds to the target over the method's. A seed where the method "
        "never got there counts as the lowest; >= is where the baseline did not."
    )
    (own,) = results["speedup"][results["baseline"]].values()
    if own["missed"]["both"]:
        yield f"{results['baseline']} reached the target with {own['reached']} seeds."
    ended = {str(run["seed"]) for run in results["methods"][results["baseline"]]["runs"] if run["status"] == "finished"}
    without = [seed for seed, ends in own["per_seed"].items() if ends is None and seed in ended]
    if without:
        yield f"The start is at the target already with seed {', '.join(without)}: no speedup is counted there."


def _main(results: Mapping[str, Any]) -> Table:
    headings = ("speedup", "equal seconds", "equal updates", "final accuracy", "biased", "seeds")
    table = figures_table(["method"], headings)
    for name, method in results["methods"].items():
        (fast,) = results["speedup"][name].values()
        own = name == results["baseline"]
        table.add_row(
            escape(name),
            "1" if own else _speedup(fast, results["target"]["missing"]),
            *(NONE if own else _points(method[part]["difference"]) for part in ("equal_seconds", "equal_updates")),
            _interval(method["final"], "mean", "{:.3f}"),
            "yes" if method["biased"] else "no",
            method["finished"],
        )
    return table


def _amounts(results: Mapping[str, Any]) -> Table:
    headings = ("equal rollouts", "to target: seconds", "rollouts", "their tokens", "tokens trained", "reached")
    table = figures_table(["method"], headings)
    for name, method in results["methods"].items():
        took = method["to_target"]
        table.add_row(
            escape(name),
            NONE if name == results["baseline"] else _points(method["equal_rollouts"]["difference"]),
            *(NONE if took[part]["median"] is None else f"{took[part]['median']:,.0f}" for part in AMOUNTS),
            took["reached"] or NONE,
        )
    return table


def figures_table(names: Sequence[str], headings: Sequence[str]) -> Table:
    """An empty table without lines: columns with names, then columns with figures, on the right."""
    table = Table(box=None, pad_edge=False)
    for heading in names:
        table.add_column(heading, no_wrap=True, vertical="bottom")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _speedup(figure: Mapping[str, Any], missing: str | None) -> str:
    """A speedup with its interval; of one that may be any more, since the baseline missed the target, the least."""
    if missing or not any(figure["per_seed"].values()):
        return NONE
    if figure["median"] is None:
        return "not reached"
    more = ">= " if figure["at_most"] is None or figure["at_most"] > figure["median"] else ""
    if figure["low"] is not None and figure["high"] is None:
        return rf"{more}{figure['median']:.2f} \[{figure['low']:.2f}, no end]"
    return more + _interval(figure, "median", "{:.2f}")


def _points(figure: Mapping[str, Any]) -> str:
    """A difference of accuracies in points, with its interval."""
    hundred = {part: None if figure[part] is None else 100 * figure[part] for part in ("mean", "low", "high")}
    return _interval(hundred, "mean", "{:+.1f}")


def _interval(figure: Mapping[str, Any], centre: str, form: str) -> str:
    if figure[centre] is None:
        return NONE
    ends = [form.format(figure[part]) for part in ("low", "high") if figure[part] is not None]
    return form.format(figure[centre]) + (rf" \[{', '.join(ends)}]" if len(ends) == 2 else "")
