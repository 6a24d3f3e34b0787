"""Tables of docs/results.md from the file of the first comparison, until runs of ``embedded_compare.py`` replace it."""

from collections.abc import Mapping, Sequence
from typing import Any

from embedded_tables import cell

GIVEN_RATES = (0.3, 0.5, 0.7, 0.9)
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
