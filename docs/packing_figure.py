"""Draws docs/packing.png: the same kept completions padded as TRL pads them, and as rows of segments.

python docs/packing_figure.py
"""

from itertools import groupby
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from dppo.packing import plan_rows, row_tokens
from dppo.rng import Purpose, generator

PROMPTS, KEPT, MAX_TOKENS = 3, 3, 2048
PROMPT_COLOURS, COMPLETION_COLOURS = ("#1f4e79", "#7a3b00", "#245c2a"), ("#7fb2e5", "#f2a65a", "#86c98c")
PADDING = "#e3e3e3"


def bar(axes: Axes, y: float, start: float, width: float, colour: str) -> None:
    """One stretch of tokens."""
    axes.barh(y, width, left=start, height=0.8, color=colour, edgecolor="white", linewidth=0.8)


def main() -> None:
    """Draw and save."""
    draws = generator(0, Purpose.CHECK)
    prompt = [int(n) for n in draws.integers(100, 200, PROMPTS) for _ in range(KEPT)]
    completion = [min(1024, int(n)) for n in draws.lognormal(6, 0.5, PROMPTS * KEPT)]
    group = [i // KEPT for i in range(PROMPTS * KEPT)]
    rows = plan_rows(group, prompt, completion, MAX_TOKENS)

    figure, (above, below) = plt.subplots(2, 1, figsize=(10, 5.2), sharex=True, height_ratios=[len(group), len(rows)])
    widest = max(prompt), max(completion)
    for i, (p, c) in enumerate(zip(prompt, completion, strict=True)):
        bar(above, i, 0, widest[0] - p, PADDING)
        bar(above, i, widest[0] - p, p, PROMPT_COLOURS[group[i]])
        bar(above, i, widest[0], c, COMPLETION_COLOURS[group[i]])
        bar(above, i, widest[0] + c, widest[1] - c, PADDING)
    for y, row in enumerate(rows):
        at = 0
        for g, members in groupby(row, key=group.__getitem__):
            indices = list(members)
            bar(below, y, at, prompt[indices[0]] - 1, PROMPT_COLOURS[g])
            at += prompt[indices[0]] - 1
            for i in indices:
                bar(below, y, at, completion[i], COMPLETION_COLOURS[g])
                at += completion[i]
    padded = len(group) * sum(widest)
    above.set_title(f"padded: {padded:,} tokens forwarded", loc="left", fontsize=11)
    dense = row_tokens(group, prompt, completion, rows)
    below.set_title(f"rows of segments, at most {MAX_TOKENS:,} tokens each: {dense:,} tokens", loc="left", fontsize=11)
    for axes in (above, below):
        axes.invert_yaxis()
        axes.set_yticks([])
        axes.spines[["top", "right", "left"]].set_visible(False)
    below.set_xlabel("tokens")
    names = {"prompt": PROMPT_COLOURS[0], "completion": COMPLETION_COLOURS[0], "padding": PADDING}
    figure.legend([Patch(color=c) for c in names.values()], list(names), loc="upper right", ncols=3, frameon=False)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_name("packing.png"), dpi=120)


if __name__ == "__main__":
    main()
