"""Lines of the tables that ``gpu.py`` prints."""

from benchmarks.shared import Record


def token_line(row: Record) -> str:
    """A line of the table of tokens left out."""
    start = f"{row['model'][:12]:13}{row['case']:21}"
    if row["passed"] is None:
        return f"{start}does not fit: {row['reason']}"
    ratio = f"{row['ratio_median']:.2f} {row['ratio_quartile_low']:.2f} .. {row['ratio_quartile_high']:.2f}"
    verdict = "" if row["passed"] else "  DIFFERS"
    return f"{start}{row['tokens']:>9,}{row['scored']:>9,}{row['median']:>9.3f}{ratio:>22}{_memory(row)}{verdict}"


TOKEN_HEAD = (
    f"{'model':13}{'case':21}{'tokens':>9}{'scored':>9}{'s':>9}{'of fused, quartiles':>22}{'GiB':>7}{'added':>7}"
)


def kernel_line(row: Record) -> str:
    """A line of the table of kernels."""
    verdict = {True: "passed", False: "WRONG", None: "does not run here"}[row["passed"]]
    return f"{row['kernel']:27}{verdict}{row['reason'] and ': '}{row['reason']}"


def kernel_time_line(row: Record) -> str:
    """A line of the table of kernels in a step."""
    return f"{row['kernel']:27}{row['tokens']:>9,} tokens{row['median']:>9.3f} s"


def exactness_line(row: Record) -> str:
    """A line of the table of exactness."""
    verdict = "passed" if row["passed"] else "WRONG"
    return f"{row['layout']:20}{row['scored']:>8,}{row['gradient_difference']:>10.1e}  {verdict}"


def time_line(row: Record) -> str:
    """A line of the table of times."""
    faster = f"{row['faster_median']:.2f}x {row['faster_quartile_low']:.2f} .. {row['faster_quartile_high']:.2f}"
    work = f"{row['model'][:12]:13}{row['prune']:<5}{row['layout']:13}{row['completions']:>5}{row['tokens']:>9,}"
    times = f"{row['median']:>9.3f}{faster:>22}{row['tokens_per_second']:>10,.0f}"
    shares = f"{row['share_done']:>6.0%}{row['share_needed']:>7.0%}"
    return (
        f"{work}{times}{shares}{_memory(row)}{row['gradient_difference']:>9.0e}{'' if row['passed'] else '  DIFFERS'}"
    )


def _memory(row: Record) -> str:
    """Two columns, GiB at most and added; a dash where the device does not tell."""
    return "".join(f"{'-' if row[k] is None else format(row[k], '.1f'):>7}" for k in ("peak_gib", "added_gib"))


EXACTNESS_HEAD = f"{'layout':20}{'scored':>8}{'gradient':>10}"
TIME_HEAD = (
    f"{'model':13}{'prune':5}{'layout':13}{'rows':>5}{'tokens':>9}{'s':>9}{'faster, quartiles':>22}{'tokens/s':>10}"
    f"{'done':>6}{'needed':>7}{'GiB':>7}{'added':>7}{'grad':>9}"
)
NOTES = """
done: operations of the layout, recomputation and padding included, per second, as a share of the matrix rate.
needed: the same for the operations training needs: no padding, each prompt once, nothing recomputed.
GiB, added: most memory torch gave out, in all and above weights and gradients.
grad: relative difference of the gradient to padding's; the same arithmetic in another order also differs."""
