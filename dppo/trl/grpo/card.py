"""The part of a saved model's card that says how it was trained here."""

from dppo import __version__
from dppo.methods import Method


def card_section(method: Method, optimizer_steps: int) -> str:
    """Method, rates, biases and paper as Markdown, to stand below what TRL writes.

    Args:
        method: that the model was trained with.
        optimizer_steps: that train on one rollout, >= 1.
    """
    reasons = method.biases(optimizer_steps)
    rows = {
        "method": f"`{method.name}`",
        "completions pruned": f"{method.completions.rate:.0%} of those with a gradient",
        "prompts pruned": f"{method.prompts.rate:.0%} of those with a history",
        "gradient": f"**biased**: {'; '.join(reasons)}" if reasons else "unbiased: the full batch's, in expectation",
        "paper": method.paper,
    }
    for what, level in (("completions pruned", method.completions), ("prompts pruned", method.prompts)):
        if getattr(level, "auto", None) is not None:
            rows[what] = f"up to {rows[what]}, chosen in each step (auto)"
    lines = [f"| {name} | {text.replace('|', chr(92) + '|')} |" for name, text in rows.items()]
    return "\n".join(
        [
            "## How it was trained: dppo",
            "",
            f"With dppo {__version__}, Dynamic Pruning Policy Optimization (not Divergence PPO):",
            "",
            "| | |",
            "|---|---|",
            *lines,
            "",
            method.describe(optimizer_steps),
            "",
        ]
    )
