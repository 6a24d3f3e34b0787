"""Writes the table of docs/methods.md from the methods' own records.

python docs/methods_table.py
"""

import re
from pathlib import Path

from dppo.methods import METHODS, ROW_METHODS, Method, RowMethod
from dppo.pruning import Pruning

PAGE = Path(__file__).with_name("methods.md")
HEADINGS = (
    "method",
    "paper",
    "what is pruned",
    "biased",
    "what of the paper is not reproduced, or is ours",
    "measured",
)
MARK = "<!-- table: python docs/methods_table.py -->"
DGPO = (
    "`dppo.diffusion`",
    "[2510.08425](https://arxiv.org/abs/2510.08425)",
    "pictures of a group, by `proportional` of advantage times the root of the error",
    "no",
    "a group shares its timestep and noise, since how the paper draws them was not seen; its optional penalty on "
    "velocities is left out; a group's weight takes forward passes of all its pictures, so pruning saves of the update "
    "alone",
    "one seed: [DGPO](dgpo.md)",
)
INHERITED = METHODS["dppo"].deviations
RUN = "[trained](results.md)"
FROZEN = "[gradients](results.md#bias-and-variance-without-training)"
TESTS = "tests only"
MEASURED = {
    **dict.fromkeys(("cppo_trl", "cppo_verl", "dppo_deterministic", "dppo_unweighted", "infobatch", "pods"), FROZEN),
    **dict.fromkeys(("dppo", "cppo", "greso", "dapo", "dppo_threshold"), f"{RUN}, {FROZEN}"),
    **dict.fromkeys(("grpo", "dppo_history", "dppo_history_sizes"), RUN),
    "grpo_history": "trained with [priors](difficulty.md)",
    "a_star_po": "its values as priors: [A*-PO](a_star_po.md)",
}
"""Where figures of training or of a model's gradients are."""


def numbers(paper: str) -> str:
    """The arXiv numbers in what a method says of its paper, its own first."""
    found = re.findall(r"\d{4}\.\d{5}", paper)
    return ", ".join(f"[{number}](https://arxiv.org/abs/{number})" for number in found)


def dropped(method: Method) -> str:
    """What a method leaves out, in words."""
    completions = method.completions
    parts = ["groups that do not count, in rounds"] if method.rounds is not None else []
    if not isinstance(completions, Pruning):
        parts.append(f"completions, {str(completions).partition('pruned, ')[2]}")
    elif completions.rate:
        parts.append(
            f"completions, by `{completions.rule.__name__}` of {method.score_name}, and prompts that come back"
        )
    elif method.prompts.rate:
        parts.append("prompts that come back")
    return "; ".join(parts) or "nothing but completions without a gradient"


def biased(method: Method) -> str:
    """Whether a method is, and why: at its own rates, and where prompts are pruned that its own leave alone."""
    own = method.biases()
    said = f"**yes**: {'; '.join(own)}" if own else "no"
    if not isinstance(method.completions, Pruning) or not method.completions.rate:
        return said
    further = [reason for reason in method.with_rates(prompt=0.5).biases() if reason not in own]
    return f"{said}; with prompts pruned **yes**: {'; '.join(further)}" if further else said


def ours(deviations: tuple[str, ...]) -> str:
    """Where a method differs from its paper; what all that draw as ``dppo`` have is said once."""
    inherited = len(deviations) > len(INHERITED) and deviations[-len(INHERITED) :] == INHERITED
    own = deviations[: -len(INHERITED)] if inherited else deviations
    return "; ".join((*own, *(("and as `dppo`",) if inherited else ()))) or "-"


def table() -> str:
    """One row a method."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS)]
    for name, method in METHODS.items():
        row = (f"`{name}`", numbers(method.paper), dropped(method), biased(method), ours(method.deviations))
        rows.append((*row, MEASURED.get(name, TESTS)))
    rows += [row_of(name, method) for name, method in ROW_METHODS.items()]
    rows.append(DGPO)
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def row_of(name: str, method: RowMethod) -> tuple[str, ...]:
    """The row of a method for supervised fine-tuning and preferences."""
    bias = "; ".join(method.biases)
    what = f"rows of the dataset, by `{method.rows.rule.__name__}` of their recorded {method.score}"
    said = f"**yes**: {bias}" if bias else "no"
    measured = TESTS if method.biases else "[trained](supervised.md#does-it-help)"
    return (f"`{name}`, rows", numbers(method.paper), what, said, ours(method.deviations), measured)


def main() -> None:
    """Put the table in its place."""
    before, mark, _ = PAGE.read_text().partition(MARK)
    PAGE.write_text(f"{before}{mark}\n\n{table()}\n")


if __name__ == "__main__":
    main()
