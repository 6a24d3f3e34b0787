"""The results of a comparison as a table to print."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dppo.lab.comparison.curves import READOUTS
from dppo.lab.comparison.words import Cell, Compared, interval, percent
from dppo.lab.statistics import FEWEST

NARROWEST = 132


def show(results: Mapping[str, Any], console: Console) -> None:
    """Print speedups, differences and final accuracies of ``results.json``, then notes."""
    columns = [name.replace("_", " ") for name in READOUTS]
    table = figures_table(["method"], ("speedup", *columns, "final accuracy", "biased", "seeds"))
    table.columns[0].vertical = "top"
    for name in results["methods"]:
        each = Compared.of(results, name)
        speedup = Cell(text=each.speedup_cell().text) if each.no_target else each.speedup_cell()  # the reason is below
        shown = (speedup, *each.difference_cells(), interval(each.readout["final"], percent))
        biased = "yes" if each.readout["biased"] else "no"
        table.add_row(escape(name), *map(in_two_lines, shown), biased, each.readout["finished"])
    console.print(table)
    for line in notes(results):
        console.print(line, markup=False, soft_wrap=True)


def in_two_lines(cell: Cell) -> str:
    """A cell as markup: the figure, and its small print below."""
    return escape(cell.text) + (f"\n[dim]{escape(cell.detail)}[/]" if cell.detail else "")


def notes(results: Mapping[str, Any]) -> Iterator[str]:
    """Notes below the table, one sentence each."""
    target, seeds = results["target"], len(results["seeds"])
    yield f"Against {results['baseline']}, paired by seed. Target: {target['what']}."
    if target["missing"]:
        yield f"No speedup: {target['missing']}."
    yield "Differences are in percentage points (pp) of accuracy. How to read the table: dppo docs compare"
    if seeds < FEWEST:
        yield f"{seeds} seed{'s' if seeds > 1 else ''}: no intervals are shown with fewer than {FEWEST}. Try --seeds 5"
    else:
        most = 1 - 2.0 ** (1 - seeds)  # the chance that not all seeds lie on one side of the median
        yield f"Intervals: 95% bootstrap over seeds; {seeds} seeds can cover {most:.0%} at most."
    for name, method in results["methods"].items():
        yield from (f"biased {name}: {reason}" for reason in method["biased"])
        if method["left_out"] and method["method"] != "trl":
            yield f"{name} does not take {', '.join(method['left_out'])}: left out"
        for run in method["runs"]:
            if run["status"] != "finished":
                yield f"{run['status']} {name}, seed {run['seed']}{': ' + run['error'] if run['error'] else ''}"


def figures_table(names: Sequence[str], headings: Iterable[str]) -> Table:
    """An empty table without lines: columns with names, then columns with figures, on the right."""
    table = Table(box=None, pad_edge=False)
    for heading in names:
        table.add_column(heading, no_wrap=True, vertical="bottom")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
