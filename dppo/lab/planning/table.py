"""A plan as a table, as sentences, and as lines of a configuration."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dppo.lab.planning.model import Plan
from dppo.lab.statistics import Estimate

NARROWEST = 130
HEADINGS = ("s / step", "rollout", "update", "rest", "x TRL", "noise", "hours", "hours to\nequal noise")
LEGEND = (
    "noise: variance of a step's gradient, in second moments, over that of TRL's step; x TRL: at equal steps;",
    "in brackets 95% intervals; hours to equal noise: for TRL's gradient variance; prompts: from the second epoch on.",
)


def show(plan: Plan, console: Console) -> None:
    """Print a plan: its source, the table, findings, notes, and lines for the configuration."""
    for line in (plan.title, plan.source):
        console.print(line, markup=False)
    console.print(_table(plan))
    for line in LEGEND:
        console.print(f"  {line}", markup=False)
    console.print()
    for line in (*findings(plan), *(f"note: {note}" for note in plan.notes)):
        console.print(f"- {line}", markup=False)
    console.print("\nto paste into the configuration:")
    for line in pasted(plan):
        console.print(line, markup=False)


def _table(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in plan.rows:
        seconds = row.seconds
        table.add_row(
            row.option.name,
            *(_cell(row.per_step), amount(seconds.rollout), amount(seconds.update)),
            *(amount(seconds.reward + seconds.rest), _cell(row.speedup), _cell(row.noise)),
            *(amount(row.hours.value), _cell(row.equal_hours)),
        )
    return table


def _cell(found: Estimate) -> str:
    """A figure, and below it its interval if it has one."""
    ends = "" if found.low == found.high else f"\n[{amount(found.low)}, {amount(found.high)}]"
    return escape(f"{amount(found.value)}{ends}")


def findings(plan: Plan) -> list[str]:
    """The advised rate of each level and the reason, a sentence each."""
    lines = []
    for advice in plan.advice:
        verdict = f"prune {advice.rate:g} of the {advice.level}" if advice.rate else f"do not prune {advice.level}"
        lines.append(f"{verdict}: {advice.why}")
    return lines


def pasted(plan: Plan) -> list[str]:
    """The lines of a configuration that do what the plan advises."""
    rates = {f"{advice.level.removesuffix('s')}_prune_rate": f"{advice.rate:g}" for advice in plan.advice}
    method = plan.method if any(advice.rate for advice in plan.advice) else {}
    return [f"{name}: {value}" for name, value in {**method, **rates}.items()]


def amount(value: float) -> str:
    """A number to about three digits, whole if it is large."""
    if value == 0 or 0.095 <= value < 99.95:
        return f"{value:.2f}"
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.2g}"
