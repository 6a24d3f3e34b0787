"""A map of prompts by difficulty over epochs: which were rolled out, with what reward, and which were skipped."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dppo_lab.comparison.words import counted
from dppo_lab.report.sources import Group
from dppo_lab.report.style import GRID, PAPER, Chart, new_figure
from dppo_lab.runs.reader import RunRecord, number, sequence

ROWS = 240
"""Prompts drawn at most; of more, every n-th by difficulty."""
BINS = 10
REWARDS = LinearSegmentedColormap.from_list("reward", ["#cfe3f3", "#5aa0cf", "#08306b"])
SKIPPED = "#f5d033"
"""No method has this colour, and no reward."""
RECORD_PROMPTS = (
    "No prompts.jsonl beside these runs. dppo train and dppo compare write a line of it for every generation; in a "
    "script of one's own, RunRecorder(output_dir).attach(trainer) does."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMap:
    """What became of each prompt in each epoch."""

    reward_PE: np.ndarray
    """(P, E) mean reward where a prompt was rolled out, NaN elsewhere. Prompts ascend in their mean over the run."""
    skipped_PE: np.ndarray
    """(P, E) bool, a candidate that was not rolled out in that epoch."""
    unseen: int
    """Prompts that were candidates and never rolled out; they are the last lines."""


def prompt_map(run: RunRecord) -> PromptMap | None:
    """The map of one run; None where it has no record of prompts.

    A prompt is a candidate once an epoch, so its n-th time as a candidate is its n-th epoch.
    """
    visits: dict[int, list[tuple[bool, float]]] = {}
    for row, rolled_out, reward in _visits(run):
        visits.setdefault(row, []).append((rolled_out, reward))
    if not visits:
        return None
    reward_PE = np.full((len(visits), max(map(len, visits.values()))), np.nan)
    skipped_PE = np.zeros(reward_PE.shape, dtype=bool)
    for place, row in enumerate(sorted(visits)):
        for epoch, (rolled_out, reward) in enumerate(visits[row]):
            skipped_PE[place, epoch] = not rolled_out
            reward_PE[place, epoch] = reward if rolled_out else np.nan
    seen_P = np.isfinite(reward_PE).any(1)
    mean_P = np.where(seen_P, np.nansum(reward_PE, 1) / np.maximum(np.isfinite(reward_PE).sum(1), 1), np.inf)
    order_P = np.argsort(mean_P, kind="stable")
    return PromptMap(
        reward_PE=reward_PE[order_P],
        skipped_PE=skipped_PE[order_P],
        unseen=int((~seen_P).sum()),
    )


def _visits(run: RunRecord) -> Iterator[tuple[int, bool, float]]:
    """Dataset row, whether it was rolled out, and the mean reward then, of every candidate that has a row."""
    for record in run.prompts:
        parts = [sequence(part) for part in (record.rows, record.rolled_out, record.mean_reward)]
        for row, rolled_out, reward in zip(*parts, strict=False):
            if np.isfinite(number(row)):
                yield int(row), rolled_out is True, number(reward)


def prompts_chart(group: Group, key: str) -> Chart:
    """The map of a method's first run that has one, and beside it the share skipped by difficulty."""
    title = f"Prompts of {group.label}"
    run, found = next(((run, m) for run in group.runs if (m := prompt_map(run)) is not None), (None, None))
    if run is None or found is None:
        return Chart(key=key, title=title, caption=RECORD_PROMPTS)
    prompts, epochs = found.reward_PE.shape
    every = -(-prompts // ROWS)
    figure = new_figure(height=4.2)
    axes, side = figure.subplots(1, 2, width_ratios=[3.2, 1], sharey=True)
    extent = (0.5, epochs + 0.5, prompts, 0)
    shown = {"aspect": "auto", "interpolation": "nearest", "extent": extent}
    known = found.reward_PE[np.isfinite(found.reward_PE)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    image = axes.imshow(found.reward_PE[::every], cmap=REWARDS, vmin=min(0.0, low), vmax=max(1.0, high), **shown)
    skipped = np.where(found.skipped_PE[::every], 1.0, np.nan)
    axes.imshow(skipped, cmap=ListedColormap([SKIPPED]), vmin=0, vmax=1, **shown)
    axes.set_xlabel("epoch")
    axes.set_ylabel("prompts, from hardest to easiest")
    axes.set_xticks(range(1, epochs + 1, max(1, -(-epochs // 10))))
    axes.grid(visible=False)
    edges = np.linspace(0, prompts, min(BINS, prompts) + 1).round().astype(int)
    shares = [_share_skipped(found, low, high) for low, high in pairwise(edges.tolist())]
    side.barh((edges[:-1] + edges[1:]) / 2, shares, height=np.diff(edges) * 0.86, color=SKIPPED)
    side.set_xlim(0, max(0.1, *shares) * 1.1)
    side.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    side.xaxis.set_major_locator(MaxNLocator(nbins=2))
    side.set_xlabel("skipped (%)")
    side.grid(axis="y", visible=False)
    bar = figure.colorbar(image, ax=[axes, side], location="bottom", fraction=0.045, pad=0.02, aspect=40)
    bar.set_label("mean reward of the group when rolled out")
    cast(Any, bar.outline).set_visible(False)
    figure.legend(
        handles=[
            Patch(color=SKIPPED, label="skipped"),
            Patch(facecolor=PAPER, edgecolor=GRID, label="no candidate in that epoch"),
        ],
        loc="outside lower center",
        ncols=2,
    )
    return Chart(key=key, title=title, caption=_caption(run, found, every), figure=figure)


def _share_skipped(found: PromptMap, low: int, high: int) -> float:
    skipped = found.skipped_PE[low:high].sum()
    visits = skipped + np.isfinite(found.reward_PE[low:high]).sum()
    return float(skipped / visits) if visits else 0.0


def _caption(run: RunRecord, found: PromptMap, every: int) -> str:
    skipped = int(found.skipped_PE.sum())
    visits = skipped + int(np.isfinite(found.reward_PE).sum())
    seed = "" if run.seed is None else f" of seed {run.seed}"
    text = (
        f"The run{seed}: {counted(len(found.reward_PE), 'prompt')} by their mean reward over the run, lowest on top. "
        f"Skipped {skipped:,} of {visits:,} visits (a prompt in an epoch). Right: share of visits skipped, by tenths "
        "of difficulty."
    )
    text += f" Drawn is every {every}th prompt." if every > 1 else ""
    text += f" {counted(found.unseen, 'prompt')} never rolled out, at the bottom." if found.unseen else ""
    return text
