"""The measured rows of the README, the real model first. ``make tables`` draws them."""

from benchmarks import pages

SMALL = ("a KL term (`beta: 0.04`), `embedded`", "no KL term, groups of 4, `embedded`")
"""Rows of the small model that the README shows, as ``pages.measured`` calls them."""


def cells(text: str) -> list[list[str]]:
    """Cells of every line of a table."""
    lines = (line for line in text.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in line.replace("**", "").strip("|").split("|")] for line in lines]


def rows() -> str:
    """The default against TRL and against plain GRPO, packed."""
    found = [["training", "seeds", "times faster than TRL", "than plain GRPO, packed"], ["---"] * 4]
    model = cells(pages.chat_model())
    of_trl = {regime: seeds for regime, trainer, seeds, *_ in model if trainer == "TRL"}
    for regime, trainer, seeds, against_trl, against_plain, *_ in model:
        if trainer == "dppo, default":
            fewer = "" if of_trl.get(regime) in (None, seeds) else f"; TRL {of_trl[regime]}"
            found.append([f"SmolLM2-135M, {regime}", seeds + fewer, against_trl, against_plain])
    for setting, seeds, against_plain, _, against_trl in cells(pages.measured()):
        if setting in SMALL:
            found.append([f"0.6M parameters, {setting}", seeds, against_trl, against_plain])
    return "\n".join(f"| {' | '.join(row)} |" for row in found)
