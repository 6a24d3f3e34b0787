"""Records and the table of ``gpu_step``: TRL's best batch size, ratios to it, and the checks of work and gradients."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.shared import Record

CONTROL = "control"
SAME_NORM = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Largest relative difference of gradient norms that counts as the same gradient, by the precision computed in."""
HEAD = (
    f"{'':13}{'step s':>8}{'TRL/':>6}{'control/':>9}{'GiB':>6}{'passes':>8}{'again':>7}{'tokens':>9}{'norm/':>8}"
    f"{'log-probs':>11}{'fwd, bwd':>9}{'optimizer':>10}{'other':>7}{'busy':>6}"
)
NOTES = (
    "TRL/, control/: seconds of TRL's best batch size, and of the control, over these. passes: forward passes with a "
    "gradient in a step; again: without. norm/: gradient norm over TRL's. From log-probs on: seconds by phase, and the "
    "share of a step in which the GPU computed, of later steps."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One contestant's measurements at one beta."""

    row: Record
    norms: Sequence[float] = ()
    """Gradient norm of each timed step; empty if memory ran out."""
    prompts: Sequence[Sequence[int]] = ()
    """Numbers of the prompts of each step, sorted."""
    is_trl: bool


def compared(measured: Sequence[Measured], precision: torch.dtype) -> list[Record]:
    """Records of the contestants of one beta with ratios and checks; TRL's best is the one with the lowest median.

    ``passed`` is False if work was not what the lengths need, if other prompts were seen, or if the control's gradient
    has another norm than TRL's. It is None if memory ran out.
    """
    rows = [dict(each.row) for each in measured]
    finished = [number for number, each in enumerate(measured) if each.norms]
    stock = [number for number in finished if measured[number].is_trl]
    best = min(stock, key=lambda number: rows[number]["median"], default=None)
    control = next((number for number in finished if rows[number]["contestant"] == CONTROL), None)
    for number in finished:
        row, first = rows[number], measured[finished[0]]
        row["trl_best"] = number == best
        for name, base in (("trl_over_this", best), ("control_over_this", control)):
            row[name] = None if base is None else rows[base]["median"] / row["median"]
        row["same_prompts"] = measured[number].prompts == first.prompts
        problems = [row["reason"]] if row["reason"] else []
        problems += [] if row["same_prompts"] else [f"prompts are not those of {rows[finished[0]]['contestant']}"]
        if stock:
            ratio = np.divide(measured[number].norms, measured[stock[0]].norms)
            row |= {"norm_ratio_lowest": float(ratio.min()), "norm_ratio_highest": float(ratio.max())}
            same = bool(np.all(np.abs(ratio - 1) <= SAME_NORM[precision]))
            if not same and (measured[number].is_trl or number == control):
                problems.append(f"gradient norms are {ratio.min():.4f} to {ratio.max():.4f} times TRL's")
        if not np.all(np.isfinite(measured[number].norms)):
            problems.append("a gradient norm is not finite")
        row |= {"reason": "; ".join(problems), "passed": not problems}
    return rows


def print_table(rows: Sequence[Record]) -> None:
    """One line for each contestant of one beta, and below it what failed."""
    first = rows[0]
    lora = f", LoRA {first['lora']}" if first["lora"] else ""
    print(
        f"\nQwen3-{first['model']}, {first['layers']} layers, weights in {first['dtype']}{lora}, "
        f"beta {first['beta']:g}, {first['prompts']} x {first['generations']} completions, on {first['device']}\n{HEAD}"
    )
    for row in rows:
        if "median" in row:
            print(_line(row))
    for row in rows:
        if row["reason"]:
            print(f"{row['contestant']}: {row['reason']}")


def _line(row: Record) -> str:
    ratios = "".join(
        f"{'' if row[name] is None else format(row[name], '.2f'):>{width}}"
        for name, width in (("trl_over_this", 6), ("control_over_this", 9))
    )
    memory = "" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}"
    work = f"{row['passes']:8,.1f}{row['passes_no_grad']:7,.1f}{row['tokens']:9,.0f}"
    norm = f"{row['norm_ratio_highest']:8.3f}" if "norm_ratio_highest" in row else f"{'':8}"
    names, widths = ("log_probs", "forward_backward", "optimizer", "other"), (11, 9, 10, 7)
    phases = "".join(f"{row[f'phase_{name}']:{width}.3f}" for name, width in zip(names, widths, strict=True))
    return f"{row['contestant']:13}{row['median']:8.3f}{ratios}{memory:>6}{work}{norm}{phases}{row['busy_share']:6.0%}"
