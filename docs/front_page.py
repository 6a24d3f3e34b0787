"""The measured rows of the README, on the real model. ``make tables`` draws them."""

from benchmarks import pages


def cells(text: str) -> list[list[str]]:
    """Cells of every line of a table."""
    lines = (line for line in text.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in line.replace("**", "").strip("|").split("|")] for line in lines]


def rows() -> str:
    """The default against TRL and against plain GRPO, packed."""
    found = [["SmolLM2-135M, all weights", "seeds", "times faster than TRL", "than plain GRPO, packed"], ["---"] * 4]
    model = cells(pages.chat_model())
    of_trl = {regime: seeds for regime, trainer, seeds, *_ in model if trainer == "TRL"}
    for regime, trainer, seeds, against_trl, against_plain, *_ in model:
        if trainer == "dppo, default":
            fewer = "" if of_trl.get(regime) in (None, seeds) else f" (TRL: {of_trl[regime]})"
            found.append([regime, seeds + fewer, against_trl or "-", against_plain])
    return "\n".join(f"| {' | '.join(row)} |" for row in found)
