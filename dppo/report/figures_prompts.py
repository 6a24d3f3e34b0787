"""A map of prompts by difficulty over epochs: which were rolled out, with what reward, and which were skipped."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dppo.report.records import Group
from dppo.report.style import GRID, PAPER, Chart, new_figure
from dppo.report.text import counted
from dppo.runs.reader import RunRecord, number, sequence

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
    epochs_E: np.ndarray
    """(E,) number of each epoch, from 1."""
    unseen: int
    """Prompts that were candidates and never rolled out; they are the last rows."""


def prompt_map(run: RunRecord) -> PromptMap | None:
    """The map of one run; None where it has no record of prompts.

    A prompt is a candidate once an epoch, so its n-th time as a candidate is its n-th epoch.

    Args:
        run: with its ``prompts``.
    """
    rewards: dict[tuple[int, int], float] = {}
    skips: set[tuple[int, int]] = set()
    visits: dict[int, int] = {}
    for row, rolled_out, reward in _visits(run):
        epoch = visits.get(row, 0)
        visits[row] = epoch + 1
        if rolled_out:
            rewards[row, epoch] = reward
        else:
            skips.add((row, epoch))
    places = set(rewards) | skips
    if not places:
        return None
    rows, epochs = sorted({row for row, _ in places}), sorted({epoch for _, epoch in places})
    at_row, at_epoch = ({value: place for place, value in enumerate(values)} for values in (rows, epochs))
    reward_PE = np.full((len(rows), len(epochs)), np.nan)
    skipped_PE = np.zeros(reward_PE.shape, dtype=bool)
    for (row, epoch), reward in rewards.items():
        reward_PE[at_row[row], at_epoch[epoch]] = reward
    for row, epoch in skips:
        skipped_PE[at_row[row], at_epoch[epoch]] = True
    seen_P = np.isfinite(reward_PE).any(1)
    mean_P = np.where(seen_P, np.nansum(reward_PE, 1) / np.maximum(np.isfinite(reward_PE).sum(1), 1), np.inf)
    order_P = np.argsort(mean_P, kind="stable")
    return PromptMap(
        reward_PE=reward_PE[order_P],
        skipped_PE=skipped_PE[order_P],
        epochs_E=np.array(epochs) + 1,
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
    """The map of a method's first run that has one, and beside it the share skipped by difficulty.

    Args:
        group: runs of one method.
        key: file name of the figure.
    """
    title = f"Prompts of {group.label}"
    run, found = next(((run, m) for run in group.runs if (m := prompt_map(run)) is not None), (None, None))
    if run is None or found is None:
        return Chart(key=key, title=title, caption=RECORD_PROMPTS, figure=None)
    prompts, epochs = found.reward_PE.shape
    every = -(-prompts // ROWS)
    figure = new_figure(height=4.2)
    axes, side = figure.subplots(1, 2, width_ratios=[3.2, 1], sharey=True)
    extent = (0.5, epochs + 0.5, prompts, 0)
    shown = {"aspect": "auto", "interpolation": "nearest", "extent": extent}
    image = axes.imshow(found.reward_PE[::every], cmap=REWARDS, vmin=_lowest(found), vmax=_highest(found), **shown)
    skipped = np.where(found.skipped_PE[::every], 1.0, np.nan)
    axes.imshow(skipped, cmap=ListedColormap([SKIPPED]), vmin=0, vmax=1, **shown)
    axes.set_xlabel("epoch")
    axes.set_ylabel("prompts, from hardest to easiest")
    axes.set_xticks(*_ticks(found.epochs_E))
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


def _lowest(found: PromptMap) -> float:
    return min(0.0, float(np.nanmin(found.reward_PE))) if np.isfinite(found.reward_PE).any() else 0.0


def _highest(found: PromptMap) -> float:
    return max(1.0, float(np.nanmax(found.reward_PE))) if np.isfinite(found.reward_PE).any() else 1.0


def _ticks(epochs_E: np.ndarray) -> tuple[np.ndarray, list[str]]:
    every = max(1, -(-len(epochs_E) // 10))
    return np.arange(1, len(epochs_E) + 1)[::every], [str(epoch) for epoch in epochs_E[::every]]


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
