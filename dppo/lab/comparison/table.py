"""The results of a comparison as tables to print: the paper's columns first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dppo.lab.comparison.curves import READOUTS
from dppo.lab.comparison.words import Cell, Compared, interval, percent
from dppo.lab.statistics import FEWEST, most_covered

NARROWEST = 124
"""Columns that the tables need; where fewer are known, lines wrap."""
UNITS = {"equal_updates": "updates", "equal_seconds": "seconds", "equal_rollouts": "rollouts"}


def show(results: Mapping[str, Any], console: Console) -> None:
    """Print, of ``results.json``, speedups and differences, then what each method took, then what one must know."""
    compared = {name: Compared.of(results, name) for name in results["methods"]}
    main = figures_table(["method"], ("speedup", "equal seconds", "equal updates", "final accuracy", "biased", "seeds"))
    amounts = figures_table(
        ["method"], ("equal rollouts", "to target: seconds", "rollouts", "their tokens", "tokens trained", "reached")
    )
    main.columns[0].vertical = amounts.columns[0].vertical = "top"
    for name, each in compared.items():
        equal = dict(zip(READOUTS, each.difference_cells(), strict=True))
        final, biased = interval(each.readout["final"], percent), "yes" if each.readout["biased"] else "no"
        speedup = each.speedup_cell()
        if each.no_target:  # the reason is below the tables
            speedup = Cell(text=speedup.text)
        shown = (speedup, equal["equal_seconds"], equal["equal_updates"], final)
        main.add_row(escape(name), *map(in_two_lines, shown), biased, each.readout["finished"])
        took = (cell.text for cell in each.target_cells())
        amounts.add_row(escape(name), in_two_lines(equal["equal_rollouts"]), *took)
    console.print(main)
    console.print()
    console.print(amounts)
    for line in notes(results):
        console.print(line, markup=False, soft_wrap=True)


def in_two_lines(cell: Cell) -> str:
    """A cell as markup: the figure, and its small print below."""
    return escape(cell.text) + (f"\n[dim]{escape(cell.detail)}[/]" if cell.detail else "")


def notes(results: Mapping[str, Any]) -> Iterator[str]:
    """Notes below the tables, one sentence each."""
    baseline, seeds = results["baseline"], len(results["seeds"])
    first = results["methods"][baseline]
    yield f"Against {baseline}, paired by seed. Target: {results['target']['what']}."
    if results["target"]["missing"]:
        yield f"No speedup: {results['target']['missing']}."
    else:
        yield from _about_speedups(results)
    places = [f"{first[name]['at']:,.0f} {unit}" for name, unit in UNITS.items() if first[name]["at"] is not None]
    if places:
        yield f"Differences are in percentage points (pp) of accuracy, at {', '.join(places)} (means over seeds)."
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
    """Meaning of a speedup, and its gaps."""
    yield (
        "Speedup: median over seeds of the baseline's seconds to the target over the method's. A seed where the method "
        "never got there counts as the lowest; ≥ is where the baseline did not."
    )
    (own,) = results["speedup"][results["baseline"]].values()
    if own["missed"]["both"]:
        yield f"{results['baseline']} reached the target with {own['reached']} seeds."
    ended = {str(run["seed"]) for run in results["methods"][results["baseline"]]["runs"] if run["status"] == "finished"}
    without = [seed for seed, ends in own["per_seed"].items() if ends is None and seed in ended]
    if without:
        yield f"The start is at the target already with seed {', '.join(without)}: no speedup is counted there."


def figures_table(names: Sequence[str], headings: Iterable[str]) -> Table:
    """An empty table without lines: columns with names, then columns with figures, on the right."""
    table = Table(box=None, pad_edge=False)
    for heading in names:
        table.add_column(heading, no_wrap=True, vertical="bottom")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
