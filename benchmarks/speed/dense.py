"""What forward and backward over the same kept completions cost on a CPU: TRL's padding against dense layouts.

python -m benchmarks.speed.dense [--quick] [--output FILE.json]

``trl`` is the path of TRL's trainer: the generation batch padded once to its longest prompt and its longest completion,
micro-batches of 8 sequences cut from it, TRL's fused head called with ``labels=``. ``padded`` is the same with this
library's head, ``sorted``, ``packed`` and ``shared`` are this library's layouts. All forward the same kept completions,
which are drawn uniformly: compute is measured here, not learning. No head computes entropies; TRL's trainer does, which
costs it more than is counted here.
"""

import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.shared import Record, options, spread, write
from benchmarks.speed.cases import PADDED, SAME_GRADIENT, SEED, TRL, Case, compare, contenders
from benchmarks.speed.layouts import MICRO_BATCH
from benchmarks.speed.workload import BATCH_PROMPTS, QUICK, REALISTIC, Lengths, generation_batch, prune

TOKENS_BAR = {0.5: 2.4, 0.75: 2.4}
TIME_BAR = {0.5: 4.0, 0.75: 2.5}
MEMORY_BAR = 1.0
"""Bars of the shared layout against ``trl``: how many times fewer tokens, less time, less memory, by prune rate."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured."""

    repetitions: Mapping[str, int]
    """Of each model."""
    group_sizes: tuple[int, ...] = (8, 16)
    rates: tuple[float, ...] = (0.0, 0.5, 0.75)
    lengths: Lengths = REALISTIC
    max_tokens: int = 4096
    """Of a row, and of a sorted micro-batch."""
    row_lengths: tuple[int, ...] = (1024, 2048, 4096, 8192)
    batches: int = 20
    """Whole generation batches over which tokens are counted."""


FULL = Settings(repetitions={"4x128": 5, "4x256": 3})
SMALL = Settings(
    repetitions={"2x64": 3},
    group_sizes=(8,),
    lengths=QUICK,
    max_tokens=1024,
    row_lengths=(256, 1024),
    batches=3,
)


def token_rows(settings: Settings) -> Iterator[Record]:
    """How many times fewer tokens than ``trl`` each layout forwards, over whole pruned generation batches."""
    named = contenders(settings.max_tokens)
    for group_size, rate in itertools.product(settings.group_sizes, settings.rates):
        counts: dict[str, list[int]] = {name: [] for name in named}
        for seed in range(settings.batches):
            batch = generation_batch(seed, group_size=group_size, vocabulary=2, lengths=settings.lengths)
            kept = prune(batch, rate, seed)
            for name, contender in named.items():
                counts[name].append(sum(forward.tokens for forward in contender.layout(kept)))
        for name, contender in named.items():
            fewer = spread(np.divide(counts["trl"], counts[name]), "fewer_")
            bar = TOKENS_BAR.get(rate) if name == "shared" else None
            yield {
                "figure": "tokens",
                "group_size": group_size,
                "prune": rate,
                "layout": name,
                "max_tokens": contender.max_tokens,
                "batches": settings.batches,
                "tokens": float(np.median(counts[name])),
                **fewer,
                **judged("tokens", fewer["fewer_median"], bar),
            }


def judged(what: str, value: float, bar: float | None) -> Record:
    """A bar and whether ``value`` reaches it, as entries of a flat record."""
    return {f"{what}_bar": bar, f"{what}_met": None if bar is None else value >= bar}


def layout_rows(settings: Settings) -> Iterator[Record]:
    """Every layout on every model, group size and prune rate."""
    for model, group_size, rate in itertools.product(settings.repetitions, settings.group_sizes, settings.rates):
        case = Case(model=model, group_size=group_size, rate=rate, lengths=settings.lengths)
        for row in compare(case, contenders(settings.max_tokens), settings.repetitions[model]):
            barred = row["layout"] == "shared"
            time_bar = TIME_BAR.get(rate) if barred else None
            yield {
                "figure": "layouts",
                **row,
                **judged("time", row["faster_median"], time_bar),
                **judged("memory", row["less_memory"], MEMORY_BAR if barred else None),
            }


def row_length_rows(settings: Settings) -> Iterator[Record]:
    """TRL's layout with this library's head, and shared rows of several lengths, on the largest group unpruned."""
    model, repetitions = next(iter(settings.repetitions.items()))
    case = Case(model=model, group_size=max(settings.group_sizes), rate=0.0, lengths=settings.lengths)
    by_length = {f"shared {n}": contenders(n)["shared"] for n in settings.row_lengths}
    for row in compare(case, {"trl": TRL, "padded": PADDED} | by_length, repetitions):
        yield {"figure": "head and row length", **row}


def token_line(row: Record) -> str:
    """A line of the table of tokens."""
    quartiles = f"{row['fewer_quartile_low']:.2f} .. {row['fewer_quartile_high']:.2f}"
    figures = f"{row['tokens']:>12,.0f}{row['fewer_median']:>8.2f}x{quartiles:>16}"
    return f"{row['group_size']:>3}{row['prune']:>6}  {row['layout']:12}{figures}{bar_text(row, 'tokens')}"


def time_line(row: Record) -> str:
    """A line of the table of times."""
    quartiles = f"{row['quartile_low']:,.0f} .. {row['quartile_high']:,.0f}"
    faster = f"{row['faster_median']:>7.2f}x {row['faster_quartile_low']:.2f} .. {row['faster_quartile_high']:.2f}"
    work = f"{row['model']:6}{row['group_size']:>3}{row['prune']:>6}  {row['layout']:12}{row['completions']:>4}"
    figures = f"{row['tokens']:>8,}{row['fewer_tokens']:>6.2f}x{row['median']:>9,.0f}{quartiles:>18}{faster:>22}"
    memory = f"{row['peak_mib']:>8,.0f}{row['less_memory']:>6.2f}x"
    exact = f"{row['loss']:>12.6f}{row['gradient_difference']:>9.0e}{'' if row['same'] else '  DIFFERS'}"
    return work + figures + memory + exact + bar_text(row, "time") + bar_text(row, "memory")


def bar_text(row: Record, what: str) -> str:
    """A bar and whether it was met, or nothing where there is none."""
    bar = row.get(f"{what}_bar")
    return "" if bar is None else f"  {what} {bar}x {'met' if row[f'{what}_met'] else 'MISSED'}"


TOKEN_HEAD = f"{'G':>3}{'prune':>6}  {'layout':12}{'tokens':>12}{'fewer':>9}{'quartiles':>16}  bar"
TIME_HEAD = (
    f"{'model':6}{'G':>3}{'prune':>6}  {'layout':12}{'rows':>4}{'tokens':>8}{'fewer':>7}{'CPU ms':>9}{'quartiles':>18}"
    f"{'faster, quartiles':>22}{'MiB':>8}{'less':>7}{'loss':>12}{'grad':>9}  bars"
)


def measure(settings: Settings) -> list[Record]:
    """Run every section, print its table as it comes, and give back all records."""
    width = f"all padded as wide as a batch of {BATCH_PROMPTS} prompts makes TRL pad"
    sections = (
        (f"Tokens of whole pruned batches of {BATCH_PROMPTS} prompts", TOKEN_HEAD, token_rows, token_line),
        (
            f"Forward and backward over a typical part of such a batch, {width}, {MICRO_BATCH} sequences at a time; "
            f"other layouts {settings.max_tokens} tokens at a time",
            TIME_HEAD,
            layout_rows,
            time_line,
        ),
        ("The head alone (padded), and the length of shared rows", TIME_HEAD, row_length_rows, time_line),
    )
    records = []
    for title, head, rows, line in sections:
        print(f"\n{title}\n{head}")
        for row in rows(settings):
            print(line(row), flush=True)
            records.append(row)
    print("\nCPU ms: of the one thread, layout included; faster: median of the ratios within each repetition.")
    print("MiB: peak resident memory above model and gradients, each layout in a fresh process.")
    print(
        f"grad: relative difference of the gradient to trl's; above {SAME_GRADIENT:g} it is not the same computation."
    )
    return records


def main() -> int:
    """Measure, print, and write the JSON file if one is named. 1 if a layout computed something else."""
    arguments = options(__doc__, quick="one small model and short texts, in under a minute").parse_args()
    torch.set_num_threads(1)
    records = measure(SMALL if arguments.quick else FULL)
    write(arguments.output, records, [SEED])
    return 0 if all(row.get("same", True) for row in records) else 1


if __name__ == "__main__":
    sys.exit(main())
