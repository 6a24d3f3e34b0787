"""What came of ``step.py``: flat records of its steps, the table, and whether the bars were met."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.shared import Record, spread_with_ends
from benchmarks.speed.turns import PHASES, Step

FASTER_BAR = 1.0
"""TRL's seconds over ours at rate 0, with every backend."""
OVERHEAD_BAR = 0.02
"""What our trainer may add to TRL's step at rate 0, as a share of that step."""

FIELDS = (
    "figure",
    "backend",
    "contestant",
    "phase",
    "unit",
    "median",
    "quartile_low",
    "quartile_high",
    "lowest",
    "highest",
    "repeats",
    "same_completions",
    "bar",
    "met",
)
"""Of every record; None where a field does not apply."""


def record(values: Sequence[float], **fields: Any) -> Record:
    """A flat record with median, quartiles and extremes of ``values``."""
    return dict.fromkeys(FIELDS) | fields | spread_with_ends(values)


def first_difference(left: Sequence[Step], right: Sequence[Step]) -> int | None:
    """The first step in which ``right`` saw a prompt that ``left`` did not, or other completions; None if none."""
    for number, (one, other) in enumerate(zip(left, right, strict=True)):
        if any(one.seen.get(prompt) != completions for prompt, completions in other.seen.items()):
            return number
    return None


def step_records(backend: str, contestant: str, steps: Sequence[Step]) -> list[Record]:
    """Seconds of a contestant's steps, whole and by phase, and what went into them."""
    common = {"backend": backend, "contestant": contestant}
    rollouts = [sum(len(group) for group in step.seen.values()) for step in steps]
    return [
        record([step.seconds for step in steps], figure="step", unit="s", **common),
        record([step.cpu_seconds for step in steps], figure="step_cpu", unit="s", **common),
        *(
            record([step.phases[phase] for step in steps], figure="phase", phase=phase, unit="s", **common)
            for phase in PHASES
        ),
        record([step.tokens for step in steps], figure="tokens_forwarded", unit="tokens", **common),
        record([step.scored for step in steps], figure="tokens_scored", unit="tokens", **common),
        record(rollouts, figure="completions", unit="completions", **common),
    ]


def ratio_records(
    backend: str, baseline: Sequence[Step], contestant: str, steps: Sequence[Step], *, bar: float | None
) -> list[Record]:
    """Seconds of the baseline's step over those of the same step of a contestant."""
    same = first_difference(baseline, steps) is None
    common = {"backend": backend, "contestant": contestant, "unit": "ratio", "same_completions": same}
    readings: dict[str, Callable[[Step], float]] = {
        "ratio": lambda step: step.seconds,
        "ratio_cpu": lambda step: step.cpu_seconds,
        "ratio_tokens": lambda step: step.tokens,
    }
    records = []
    for figure, read in readings.items():
        values = [read(one) / read(other) for one, other in zip(baseline, steps, strict=True)]
        timed = bar if figure != "ratio_tokens" else None
        records.append(record(values, figure=figure, bar=timed, **common))
        records[-1]["met"] = None if timed is None else records[-1]["median"] > timed
    return records


def overhead_records(backend: str, baseline: Sequence[Step], contestant: str, steps: Sequence[Step]) -> list[Record]:
    """What our trainer adds when nothing is pruned, as a share of TRL's step.

    ``overhead_phases`` is what it spends on pruning and bookkeeping; TRL's own bookkeeping is not taken off.
    ``overhead_net`` is all its time outside the model minus TRL's, in whichever phase it is counted.
    """
    differs = first_difference(baseline, steps)
    if differs is not None:
        raise ValueError(
            f"counted step {differs}: {contestant} and TRL saw different completions, so their difference is not "
            "overhead. Give both the same rollout_func and the same seed"
        )
    own = ("prune", "log_probs", "bookkeeping")
    pairs = list(zip(baseline, steps, strict=True))
    figures = {
        "overhead_phases": [sum(step.phases[phase] for phase in own) / base.seconds for base, step in pairs],
        "overhead_net": [(step.outside - base.outside) / base.seconds for base, step in pairs],
    }
    records = []
    for figure, values in figures.items():
        common = {"backend": backend, "contestant": contestant, "unit": "share", "same_completions": True}
        records.append(record(values, figure=figure, bar=OVERHEAD_BAR, **common))
        records[-1]["met"] = records[-1]["median"] < OVERHEAD_BAR
    return records


def print_report(records: Sequence[Record]) -> None:
    """One table per backend, in milliseconds, and the bars below."""
    for backend in dict.fromkeys(row["backend"] for row in records):
        rows = [row for row in records if row["backend"] == backend]
        print(f"\ncompletions: {backend}. Medians; milliseconds per step")
        heads = "".join(f"{phase.replace('forward_backward', 'model'):>12}" for phase in PHASES)
        times, counts = f"{'step':>8}{'quartiles':>16}{'cpu':>8}", f"{'tokens':>9}{'scored':>8}{'rollouts':>9}"
        print(f"{'':26}{times}{heads}{counts}  TRL/this, and of cpu")
        for contestant in dict.fromkeys(row["contestant"] for row in rows):
            print(_line(contestant, [row for row in rows if row["contestant"] == contestant]))
    print()
    for row in records:
        if row["bar"] is not None:
            limit = ("under" if row["unit"] == "share" else "over") + f" {row['bar']:g}"
            found = f"{row['median']:.4f} ({row['lowest']:.4f} .. {row['highest']:.4f})"
            verdict = "met" if row["met"] else "MISSED"
            print(f"{row['figure']:16} {row['backend']:13} {row['contestant']:26} {found:32} {limit:10} {verdict}")


def _line(contestant: str, rows: Sequence[Record]) -> str:
    """A contestant's line of the table."""
    by = {row["phase"] or row["figure"]: row for row in rows}
    step = by["step"]
    quartiles = f"{1e3 * step['quartile_low']:.0f} .. {1e3 * step['quartile_high']:.0f}"
    times = f"{1e3 * step['median']:8.0f}{quartiles:>16}{1e3 * by['step_cpu']['median']:8.0f}"
    phases = "".join(f"{1e3 * by[phase]['median']:12.1f}" for phase in PHASES)
    tokens = f"{by['tokens_forwarded']['median']:9,.0f}{by['tokens_scored']['median']:8,.0f}"
    counts = tokens + f"{by['completions']['median']:9.0f}"
    ratios = [
        f"{by[name]['median']:5.2f} ({by[name]['lowest']:.2f} .. {by[name]['highest']:.2f})"
        for name in ("ratio", "ratio_cpu")
        if name in by
    ]
    told = "  ".join(ratios) + ("" if not ratios or by["ratio"]["same_completions"] else "  other completions")
    return f"{contestant:26}{times}{phases}{counts}  {told}"
