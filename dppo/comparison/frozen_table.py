"""The frozen report as text: one table per level, what the columns mean, and the verdict."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dppo.comparison.contestants import STOCK
from dppo.comparison.frozen_grid import FrozenReport, FrozenRow
from dppo.comparison.frozen_methods import CONTROLS, Level

TITLES = {
    Level.BLOCK: "Nothing pruned at a rate: the block as it is",
    Level.COMPLETIONS: "Completions pruned at rate r_o",
    Level.PROMPTS: "Prompts pruned at rate r_q, by what an earlier set of rollouts predicts",
    Level.BOTH: "Prompts pruned at rate r_q and completions of the others at rate r_o",
}
MARKS = {"biased": "*", "declared": "~", "WRONG": "!", "unbiased": " "}
"""What stands behind the bias in the table of both levels, by verdict."""
COLOURS = {"biased": "yellow", "declared": "yellow", "WRONG": "red", "unbiased": "green"}
LEGEND = (
    ("loss", "the normaliser; every method is measured against the full batch of its own loss"),
    ("prompts, trained", "share of the block's prompts used, of its completions with a gradient trained on; means"),
    ("bias", "|E[g_hat] - g| / |g|, g the full batch's gradient and g_hat a draw's; [95% interval], none where exact"),
    (
        "verdict",
        "unbiased: none found; biased: declared and found; declared: and not found; WRONG: found, not declared",
    ),
    ("variance", "E|g_hat - E[g_hat]|^2 / |g|^2 of one draw, +- its standard error: what averages out"),
    ("cosine", "between one draw and g, mean over draws; of mean: between E[g_hat] and g"),
    ("rows", "(sum w)^2 / sum w^2 of the weights w of a draw, mean over draws, in completions"),
    ("weight", "the largest of all draws"),
)
MARK_LEGEND = ("behind a bias", "* biased, ~ declared, ! WRONG")
FIGURES = ("prompts", "trained", "bias", "verdict", "variance", "cosine", "of mean", "rows", "weight")
"""Columns of a table of one level, after method, loss and rate."""
NARROWEST = 140
"""Columns that the tables need; where fewer are known, lines wrap."""


def show(report: FrozenReport, console: Console) -> None:
    """Print a report.

    Args:
        report: what was found.
        console: where to print.
    """
    console.print(f"{report.subject}\n", markup=False)
    for level in TITLES:
        rows = [row for row in report.rows if row.level is level]
        if rows:
            names = [line.name for line in report.lines if line.takes]
            console.print(f"[bold]{TITLES[level]}[/]")
            console.print(_both(rows) if level is Level.BOTH else _single(level, rows, names))
            console.print()
    for name, meaning in (*LEGEND, MARK_LEGEND):
        console.print(f"  {name}: {meaning}", markup=False)
    for line in _notes(report):
        console.print(f"  {line}", markup=False)
    for name, reasons in {row.name: row.reasons for row in report.rows if row.reasons}.items():
        console.print(f"[yellow]declared[/] {name}: {escape('; '.join(reasons))}", soft_wrap=True)
    missed = [row.name for row in report.controls if not row.found]
    wrong = [row for row in report.rows if row.wrong]
    for row in wrong:
        rates = f"r_q {row.prompt_rate:g}, r_o {row.completion_rate:g}"
        console.print(f"[red]WRONG[/] {row.name} ({rates}): squared bias {row.squared_bias:.2g} > {row.bound:.2g}")
    for name in missed:
        console.print(f"[red]FAIL[/] control not found: {name}")
    controls = f"{len(report.controls) - len(missed)} of {len(report.controls)} controls known to be biased are found"
    verdict = "[green]PASS[/]" if report.passed else "[red]FAIL[/]"
    console.print(f"\n{verdict} {len(wrong)} rows are biased without saying so; {controls}; {report.seconds:.0f} s")


def _notes(report: FrozenReport) -> Iterator[str]:
    setting = report.setting
    yield (
        f"{setting.draws} draws per row, {report.tests} rows with chance in them: with no bias anywhere, any is "
        f"called biased at a rate of {setting.false_alarm:g}."
    )
    for name, meaning in CONTROLS.items():
        yield f"{name}: {meaning}"
    names = [line.name for line in report.lines]
    if STOCK in names:
        yield f"{STOCK}: stock TRL, whose gradient is that of grpo (dppo verify)"
    for name in (line.name for line in report.lines if line.method.rounds is not None):
        yield f"{name}: one round of this block and no further ones, as a mean over its groups that count"
    yield "A dash: the method takes no rate at that level. Floors are at most half of what a rate keeps."


def _single(level: Level, rows: Sequence[FrozenRow], names: Sequence[str]) -> Table:
    """One row per method and rate; methods that do not take the rate as a line of dashes."""
    table = Table(box=None, pad_edge=False)
    for heading in ("method", "loss", "rate"):
        table.add_column(heading, no_wrap=True)
    for heading in FIGURES:
        table.add_column(heading, justify="left" if heading == "verdict" else "right", no_wrap=True)
    shown = list(dict.fromkeys(row.name for row in rows))
    for name in [*shown, *(name for name in names if name not in shown and level is not Level.BLOCK)]:
        own = [row for row in rows if row.name == name]
        for row in own:
            table.add_row(*((name, row.normaliser) if row is own[0] else ("", "")), *_cells(row))
        if not own:
            table.add_row(name, *["-"] * (len(FIGURES) + 2))
    return table


def _cells(row: FrozenRow) -> Iterator[str]:
    found = row.figures
    rate = row.prompt_rate or row.completion_rate
    yield f"{rate:g}" if rate else "-"
    yield f"{found.prompts_kept:.0%}"
    yield f"{found.rows_kept:.0%}"
    exact = found.bias_low is None or found.bias_high is None
    interval = "exact".rjust(14) if exact else escape(f"[{found.bias_low:.3f}, {found.bias_high:.3f}]")
    yield f"{found.relative_bias:.3f} {interval}"
    yield f"[{COLOURS[row.verdict]}]{row.verdict}[/]"
    yield f"{found.added_variance:.3f} +- {found.added_variance_error:.3f}"
    yield f"{found.cosine:.3f}"
    yield f"{found.mean_cosine:.3f}"
    yield f"{found.effective_rows:.1f}"
    yield f"{found.largest_weight:.1f}"


def _both(rows: Sequence[FrozenRow]) -> Table:
    """One row per method and prompt rate, three columns per completion rate."""
    table = Table(box=None, pad_edge=False)
    table.add_column("method", vertical="bottom", no_wrap=True)
    table.add_column("r_q", vertical="bottom", no_wrap=True)
    rates = list(dict.fromkeys(row.completion_rate for row in rows))
    for rate in rates:
        for heading in (f"r_o {rate:g}\nbias", "\nvariance", "\nrows"):
            table.add_column(heading, justify="right", no_wrap=True)
    for name, prompt in dict.fromkeys((row.name, row.prompt_rate) for row in rows):
        own = {row.completion_rate: row for row in rows if (row.name, row.prompt_rate) == (name, prompt)}
        texts = []
        for row in (own[rate] for rate in rates):
            found = row.figures
            texts += [f"{found.relative_bias:.2f}{MARKS[row.verdict]}", f"{found.added_variance:.2f}"]
            texts.append(f"{found.effective_rows:.0f}")
        table.add_row(name if prompt == rows[0].prompt_rate else "", f"{prompt:g}", *texts)
    return table
