"""Writes the table of docs/methods.md from the methods' own records.

python docs/methods_table.py
"""

import re
from collections.abc import Iterable
from pathlib import Path

from dppo.methods import METHODS, ROW_METHODS, Method, RowMethod
from dppo.methods.pods import widest
from dppo.methods.ranking import Ranking
from dppo.pruning import Pruning

PAGE = Path(__file__).with_name("methods.md")
HEADINGS = ("method", "paper", "prunes", "biased", "differs from the paper")
LEVEL = re.compile(r"^(completion pruning is|prompt pruning is|rounds are) biased: ")
MARK = "<!-- table: python docs/methods_table.py -->"
DGPO = (
    "[`dgpo.py`](dgpo.md)",
    "[2510.08425](https://arxiv.org/abs/2510.08425)",
    "pictures of a group, `proportional`",
    "no",
)
DGPO_DIFFERS = (
    "a group shares its timestep and noise, since how the paper draws them was not seen",
    "the paper's optional penalty on velocities is left out",
    "a group's weight takes forward passes of all its pictures, so pruning saves of the update alone",
)
RUN = "[training](results.md)"
FROZEN = "[gradients](results.md#bias-and-variance-without-training)"
MEASURED = {
    **dict.fromkeys(
        ("cppo_trl", "cppo_verl", "dppo_deterministic", "dppo_unweighted", "dppo_threshold", "infobatch", "pods"),
        FROZEN,
    ),
    **dict.fromkeys(("dppo", "cppo", "greso", "dapo"), f"{RUN}, {FROZEN}"),
    **dict.fromkeys(("grpo", "dppo_history", "dppo_history_sizes"), RUN),
    **dict.fromkeys(("a_star_po", "grpo_history"), "[values](a_star_po.md)"),
}
"""Where figures of training or of a model's gradients are."""


class Notes:
    """Texts below the table, each once, by the number that cells have for it."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}

    def of(self, texts: Iterable[str]) -> str:
        """The numbers of these texts in order, three or more in a row as a range."""
        runs: list[list[int]] = []
        for number in sorted(self.number.setdefault(text, len(self.number) + 1) for text in texts):
            if runs and number == runs[-1][-1] + 1:
                runs[-1].append(number)
            else:
                runs.append([number])
        return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)

    def written(self) -> str:
        """All of them as a numbered list."""
        return "\n".join(f"{number}. {text[0].upper()}{text[1:]}." for text, number in self.number.items())


def numbers(paper: str) -> str:
    """The arXiv numbers in what a method says of its paper, its own first."""
    found = re.findall(r"\d{4}\.\d{5}", paper)
    return ", ".join(f"[{number}](https://arxiv.org/abs/{number})" for number in found)


def dropped(method: Method) -> str:
    """What a method leaves out, in words."""
    completions = method.completions
    parts = ["groups that do not count, in rounds"] if method.rounds is not None else []
    if isinstance(completions, Ranking) and completions.choose is widest:
        parts.append("completions; the subset with the widest rewards is kept")
    elif not isinstance(completions, Pruning):
        parts.append(f"completions, {str(completions).partition('pruned, ')[2].removesuffix(', without chance')}")
    elif completions.rate:
        parts.append(f"completions, `{completions.rule.__name__}`; prompts")
    elif method.prompts.rate:
        parts.append("prompts")
    parts += ["tokens behind a random cut"] if method.tokens.rate else []
    parts += ["tokens, at random"] if method.tokens.head_rate else []
    return "; ".join(parts) or "nothing"


def reasons(biases: Iterable[str]) -> list[str]:
    """What biases a method, a reason at a time."""
    return [reason for bias in biases for reason in LEVEL.sub("", bias).split("; ")]


def biased(method: Method, notes: Notes) -> str:
    """Whether a method is, and why: at its own rates, and where prompts are pruned that its own leave alone."""
    own = method.biases()
    said = f"**yes**: {notes.of(reasons(own))}" if own else "no"
    if not isinstance(method.completions, Pruning) or not method.completions.rate:
        return said
    further = [reason for reason in method.with_rates(prompt=0.5).biases() if reason not in own]
    return f"{said}; with prompts pruned **yes**: {notes.of(reasons(further))}" if further else said


def table() -> str:
    """One row a method, and the notes that the rows name."""
    notes, rows = Notes(), [HEADINGS, tuple("---" for _ in HEADINGS)]
    for name, method in METHODS.items():
        row = (f"`{name}`", numbers(method.paper), dropped(method), biased(method, notes))
        rows.append((*row, notes.of(method.deviations) or "-"))
    rows += [row_of(name, method, notes) for name, method in ROW_METHODS.items()]
    rows.append((*DGPO, notes.of(DGPO_DIFFERS)))
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines) + f"\n\n{where_measured()}\n\n## Notes\n\n{notes.written()}"


def where_measured() -> str:
    """Methods with figures, and the pages that have them."""
    found: dict[str, list[str]] = {}
    for name in METHODS:
        for place in filter(None, MEASURED.get(name, "").split(", ")):
            found.setdefault(place, []).append(f"`{name}`")
    said = [f"{place[0].upper() + place[1:]}: {', '.join(names)}." for place, names in found.items()]
    return " ".join(["Measured:", *said, "All others only have tests."])


def row_of(name: str, method: RowMethod, notes: Notes) -> tuple[str, ...]:
    """The row of a method for supervised fine-tuning and preferences."""
    what = f"dataset rows, `{method.rows.rule.__name__}` of {method.score}"
    said = f"**yes**: {notes.of(method.biases)}" if method.biases else "no"
    return (f"`{name}`, rows", numbers(method.paper), what, said, notes.of(method.deviations) or "-")


def main() -> None:
    """Put the table in its place."""
    before, mark, _ = PAGE.read_text().partition(MARK)
    PAGE.write_text(f"{before}{mark}\n\n{table()}\n")


if __name__ == "__main__":
    main()
