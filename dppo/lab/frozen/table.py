"""The frozen comparison as text: one table per level, a legend, and the verdict."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dppo.lab.comparison.table import figures_table
from dppo.lab.frozen.grid import FrozenComparison, Measurement
from dppo.lab.frozen.lines import CONTROLS, RATES, PrunedLevel

TITLES = {
    PrunedLevel.BLOCK: "Nothing pruned at a rate: the block as it is",
    PrunedLevel.COMPLETIONS: "Completions pruned at rate r_o",
    PrunedLevel.PROMPTS: "Prompts pruned at rate r_q, by what an earlier set of rollouts predicts",
    PrunedLevel.BOTH: "Prompts pruned at rate r_q and completions of the others at rate r_o",
}
COLOURS = {"biased": "yellow", "declared": "yellow", "WRONG": "red", "unbiased": "green"}
LEGEND = (
    ("loss", "the normaliser; every method is measured against the full batch of its own loss"),
    ("bias", "|E[g_hat] - g| / |g|, g the full batch's gradient and g_hat a draw's; [95% interval], none where exact"),
    (
        "verdict",
        "unbiased: none found; biased: declared and found; declared: and not found; WRONG: found, not declared",
    ),
    ("variance", "E|g_hat - E[g_hat]|^2 / |g|^2 of one draw, +- its standard error: what averages out"),
    ("rows", "(sum w)^2 / sum w^2 of the weights w of a draw, mean over draws, in completions"),
    ("weight", "the largest of all draws"),
)
FIGURES = ("bias", "verdict", "variance", "rows", "weight")
"""Columns of a table of one level, after method, loss and rate."""
NARROWEST = 110
"""Columns of the screen that the tables need."""


def show(found: FrozenComparison, console: Console) -> None:
    """Print all tables, the legend and the verdict."""
    console.print(f"{found.subject}\n", markup=False)
    for level in TITLES:
        measured = [each for each in found.measured if each.level is level]
        dashes = [line.name for line in found.lines if level in RATES and not {level, PrunedLevel.BLOCK} & line.levels]
        if measured:
            console.print(f"[bold]{TITLES[level]}[/]")
            console.print(_table(measured, dashes))
            console.print()
    for name, meaning in LEGEND:
        console.print(f"  {name}: {meaning}", markup=False)
    for line in _notes(found):
        console.print(f"  {line}", markup=False)
    for name, reasons in {each.name: each.reasons for each in found.measured if each.reasons}.items():
        console.print(f"[yellow]declared[/] {name}: {escape('; '.join(reasons))}", soft_wrap=True)
    missed = [each.name for each in found.controls if not each.found]
    wrong = [each for each in found.measured if each.verdict == "WRONG"]
    for each in wrong:
        rates = f"r_q {each.prompt_rate:g}, r_o {each.completion_rate:g}"
        figures = f"{each.squared_bias:.2g} > {each.squared_bias_bound:.2g}"
        console.print(f"[red]WRONG[/] {each.name} ({rates}): squared bias {figures}")
    for name in missed:
        console.print(f"[red]FAIL[/] control not found: {name}")
    controls = f"{len(found.controls) - len(missed)} of {len(found.controls)} controls known to be biased are found"
    verdict = "[green]PASS[/]" if found.passed else "[red]FAIL[/]"
    console.print(f"\n{verdict} {len(wrong)} rows are biased without saying so; {controls}; {found.seconds:.0f} s")


def _notes(found: FrozenComparison) -> Iterator[str]:
    setting = found.setting
    yield (
        f"{setting.draws} draws per row, {found.tests} rows with chance in them: with no bias anywhere, any is "
        f"called biased at a rate of {setting.false_alarm:g}."
    )
    for name, meaning in CONTROLS.items():
        yield f"{name}: {meaning}"
    for line in found.lines:
        if line.method.rounds is not None:
            yield f"{line.name}: one round of this block and no further ones, as a mean over its groups that count"
    yield "A dash: the method takes no rate at that level. Floors are at most half of what a rate keeps."


def _table(measured: Sequence[Measurement], dashes: Sequence[str]) -> Table:
    """A line per method and rate, then one of dashes for each method that does not take the rate."""
    table = figures_table(["method", "loss", "rate"], FIGURES)
    table.columns[3 + FIGURES.index("verdict")].justify = "left"
    named = ""
    for each in measured:
        table.add_row(*((each.name, each.normaliser) if each.name != named else ("", "")), *_cells(each))
        named = each.name
    for name in dashes:
        table.add_row(name, *["-"] * (len(FIGURES) + 2))
    return table


def _cells(measured: Measurement) -> Iterator[str]:
    found = measured.figures
    rates = [f"{rate:g}" for rate in (measured.prompt_rate, measured.completion_rate) if rate]
    yield ", ".join(rates) or "-"
    exact = found.bias_low is None or found.bias_high is None
    interval = "exact".rjust(14) if exact else escape(f"[{found.bias_low:.3f}, {found.bias_high:.3f}]")
    yield f"{found.relative_bias:.3f} {interval}"
    yield f"[{COLOURS[measured.verdict]}]{measured.verdict}[/]"
    yield f"{found.added_variance:.3f} +- {found.added_variance_error:.3f}"
    yield f"{found.effective_rows:.1f}"
    yield f"{found.largest_weight:.1f}"
