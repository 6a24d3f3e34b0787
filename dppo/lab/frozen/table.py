"""The frozen comparison as text: one table per level, a legend, and the verdict."""

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from dppo.lab.comparison.table import figures_table
from dppo.lab.frozen.grid import FrozenComparison, Measurement
from dppo.lab.frozen.lines import CONTROLS, PrunedLevel

TITLES = {
    PrunedLevel.BLOCK: "Nothing pruned at a rate: the block as it is",
    PrunedLevel.COMPLETIONS: "Completions pruned",
    PrunedLevel.PROMPTS: "Prompts pruned, by what an earlier set of rollouts predicts",
}
COLOURS = {"biased": "yellow", "declared": "yellow", "WRONG": "red", "unbiased": "green"}
LEGEND = {
    "bias": "|E[g_hat] - g| / |g|, g the full batch's gradient and g_hat a draw's; [95% interval], none where exact",
    "verdict": "unbiased: none found; biased: declared and found; declared: and not found; WRONG: found, not declared",
    "variance": "E|g_hat - E[g_hat]|^2 / |g|^2 of one draw, +- its standard error: what averages out",
    **CONTROLS,
}
NARROWEST = 110


def show(found: FrozenComparison, console: Console) -> None:
    """Print all tables, the legend and the verdict."""
    console.print(f"{found.subject}\n", markup=False)
    for level, title in TITLES.items():
        table, named = figures_table(["method", "loss", "rate"], ("bias", "verdict", "variance")), ""
        for each in (each for each in found.measured if each.level is level):
            table.add_row(*((each.name, each.normaliser) if each.name != named else ("", "")), *_cells(each))
            named = each.name
        if named:
            console.print(f"[bold]{title}[/]")
            console.print(table)
            console.print()
    for name, meaning in LEGEND.items():
        console.print(f"  {name}: {meaning}", markup=False)
    for name, reasons in {each.name: each.reasons for each in found.measured if each.reasons}.items():
        console.print(f"[yellow]declared[/] {name}: {escape('; '.join(reasons))}", soft_wrap=True)
    wrong = [each for each in found.measured if each.verdict == "WRONG"]
    for each in wrong:
        rates = f"r_q {each.prompt_rate:g}, r_o {each.completion_rate:g}"
        figures = f"{each.squared_bias:.2g} > {each.squared_bias_bound:.2g}"
        console.print(f"[red]WRONG[/] {each.name} ({rates}): squared bias {figures}")
    verdict = "[green]PASS[/]" if found.passed else "[red]FAIL[/]"
    console.print(f"\n{verdict} {len(wrong)} rows are biased without saying so; {found.seconds:.0f} s")


def _cells(measured: Measurement) -> Iterator[str]:
    found = measured.figures
    yield f"{measured.prompt_rate or measured.completion_rate:g}"
    exact = found.bias_low is None or found.bias_high is None
    interval = "exact".rjust(14) if exact else escape(f"[{found.bias_low:.3f}, {found.bias_high:.3f}]")
    yield f"{found.relative_bias:.3f} {interval}"
    yield f"[{COLOURS[measured.verdict]}]{measured.verdict}[/]"
    yield f"{found.added_variance:.3f} +- {found.added_variance_error:.3f}"
