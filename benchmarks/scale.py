"""How the cost of a batch grows with its completions: drawing, bins, planning rows, laying them out, and memory.

Then whole steps of up to a million completions on 512 ranks, histories of up to 100 million prompts, and what ranks
wait for each other (``scale_step.py``).

python benchmarks/scale.py [--quick] [--output FILE.json]

Nothing is pruned before it is packed, so every figure is of as many completions as its size says. ``growth`` is the
exponent from the size before: 1 is linear, 0 does not grow. The last lines fit one exponent over all sizes. Exponents
are of the lowest times, since other work on the machine only ever adds. A step builds one row, forwards it and drops
it, so the memory that counts is ``memory_of_largest_row``.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from results_file import write
from scale_step import history_records, idle_shares, step_records
from timing import milliseconds, python_peak
from torch import Tensor
from workload import Work, generation_batch

from dppo.packing.bins import best_fit_decreasing, longest_processing_time, window_greedy
from dppo.packing.rows import Row, build_row, plan_rows
from dppo.pruning import Pruning
from dppo.rng import Purpose, generator
from dppo.types import Completions

SEED = 0
GROUP_SIZE = 8
MAX_TOKENS = 8192
RANKS = 8
VOCABULARY = 32_768
BINS_BAR_MS = 150.0
"""Best fit decreasing over 65,536 sequences."""
GROWTH_BAR = 1.2
"""Largest exponent that counts as near linear: four times the completions in at most 5.3 times the time."""
BAR_SIZE = 65_536

Record = dict[str, Any]


def laid_out(work: Work, rows: list[list[int]]) -> Iterator[Row]:
    """The rows, one at a time."""
    for index in rows:
        yield build_row(
            [work.prompts[i] for i in index],
            [work.completions[i] for i in index],
            [work.group_N[i] for i in index],
        )


def tensor_bytes(row: Row) -> int:
    """Bytes of a row's tensors, each storage counted once."""
    storages = [value.untyped_storage() for value in vars(row).values() if isinstance(value, Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def time_records(work: Work, rows: list[list[int]], repeats: int) -> Iterator[Record]:
    """Milliseconds of each part of a step over all completions of ``work``."""
    size, rng = len(work.completions), generator(SEED, Purpose.COMPLETION_DRAW)
    pruning = Pruning(rate=0.5)
    batch = Completions(
        advantage_N=work.weight_N,
        tokens_N=torch.tensor(work.completion_tokens),
        group_N=torch.tensor(work.group_N),
        live_N=torch.ones(size, dtype=torch.bool),
    )
    prompt_N, completion_N = work.prompt_tokens, work.completion_tokens
    whole_N = [sum(pair) for pair in zip(prompt_N, completion_N, strict=True)]
    parts: dict[str, Callable[[], object]] = {
        "draw": lambda: pruning.draw(batch, rng),
        "bins": lambda: best_fit_decreasing(whole_N, MAX_TOKENS),
        "bins_of_a_stream": lambda: list(window_greedy(whole_N, MAX_TOKENS)),
        f"bins_of_{RANKS}_ranks": lambda: longest_processing_time(whole_N, RANKS),
        "plan_rows": lambda: plan_rows(work.group_N, prompt_N, completion_N, MAX_TOKENS),
        "layout": lambda: [row.completions for row in laid_out(work, rows)],
    }
    for figure, run in parts.items():
        taken = milliseconds(run, repeats)
        bar = BINS_BAR_MS if (figure, size) == ("bins", BAR_SIZE) else None
        per_completion = {"per_completion": taken["median"] * 1e3 / size, "per_completion_unit": "us"}
        yield {"figure": figure, "size": size, **taken, **per_completion, "bar": bar}


def memory_records(work: Work, rows: list[list[int]]) -> Iterator[Record]:
    """Bytes: Python objects while planning; tensors of the largest row; tensors if all rows were held at one time.

    These are counted, not read off the process, whose resident memory keeps what was freed. The tokens of the batch
    are there before and not counted.
    """
    size, rows_bytes = len(work.completions), [tensor_bytes(row) for row in laid_out(work, rows)]
    lengths = work.prompt_tokens, work.completion_tokens
    counted = {
        "memory_of_plan": python_peak(lambda: plan_rows(work.group_N, *lengths, MAX_TOKENS)),
        "memory_of_largest_row": max(rows_bytes),
        "memory_of_all_rows": sum(rows_bytes),
    }
    for figure, amount in counted.items():
        spread = dict.fromkeys(("median", "quartile_low", "quartile_high", "lowest", "highest"), amount)
        per_completion = {"per_completion": amount / size, "per_completion_unit": "bytes"}
        yield {"figure": figure, "size": size, "unit": "bytes", **spread, "repeats": 1, **per_completion, "bar": None}


def with_growth(records: list[Record]) -> Iterator[Record]:
    """The records of one figure, sizes ascending, with the growth from each size to the next, and the fit over all."""
    sizes, lowest = (np.log([record[key] for record in records]) for key in ("size", "lowest"))
    steps = np.diff(lowest) / np.diff(sizes)
    for record, growth in zip(records, [None, *steps.tolist()], strict=True):
        yield {**record, "growth": growth}
    slope = float(np.polyfit(sizes, lowest, 1)[0])
    spread = dict.fromkeys(("median", "quartile_low", "quartile_high", "lowest", "highest"), slope)
    nothing = dict.fromkeys(("per_completion", "per_completion_unit"))
    name, largest = f"growth_of_{records[0]['figure']}", records[-1]["size"]
    fit = {"figure": name, "size": largest, "unit": "exponent", **spread, "repeats": len(records)}
    yield {**fit, **nothing, "bar": GROWTH_BAR, "growth": slope}


def measure_steps(sizes: list[int], histories: list[int], ranks: list[int], repeats: int) -> list[Record]:
    """Records of whole steps and of histories, with growth and fits; then what ranks wait for each other."""
    by_figure: dict[str, list[Record]] = {}
    measured = [step_records(size, max(ranks), repeats) for size in sizes]
    measured += [history_records(size, repeats) for size in histories]
    for record in (record for records in measured for record in records):
        by_figure.setdefault(record["figure"], []).append(record)
    grown = [record for figure in by_figure.values() for record in with_growth(figure)]
    idle = [record for prompts in (2, 8) for many in ranks for record in idle_shares(many, prompts, repeats)]
    return sorted(grown, key=lambda record: record["unit"] == "exponent") + idle


def measure(sizes: list[int], repeats: int) -> list[Record]:
    """All records: by figure, then by size, then the fits."""
    by_figure: dict[str, list[Record]] = {}
    for size in sizes:
        work = generation_batch(SEED, prompts=size // GROUP_SIZE, group_size=GROUP_SIZE, vocabulary=VOCABULARY)
        rows = plan_rows(work.group_N, work.prompt_tokens, work.completion_tokens, MAX_TOKENS)
        for record in (*time_records(work, rows, repeats), *memory_records(work, rows)):
            by_figure.setdefault(record["figure"], []).append(record)
    records = [record for figure in by_figure.values() for record in with_growth(figure)]
    return sorted(records, key=lambda record: record["unit"] == "exponent")


def print_table(records: list[Record]) -> None:
    """One line per record, with its bar and whether it was met."""
    heads = f"{'size':>8}{'median':>18}{'quartiles':>34}{'per completion':>22}{'growth':>8}"
    print(f"{'figure':40}{heads}  bar")
    for row in records:
        digits = 0 if row["unit"] == "bytes" else 2
        quartiles = f"{row['quartile_low']:,.{digits}f} .. {row['quartile_high']:,.{digits}f}"
        each = "" if row["per_completion"] is None else f"{row['per_completion']:,.2f} {row['per_completion_unit']}"
        growth = "" if row["growth"] is None else f"{row['growth']:.2f}"
        met = "" if row["bar"] is None else f"{row['bar']:g} " + ("met" if row["median"] < row["bar"] else "MISSED")
        figures = f"{row['size']:>8,}{row['median']:>18,.{digits}f}{quartiles:>34}{each:>22}{growth:>8}"
        print(f"{row['figure']:40}{figures}  {row['unit']} {met}")


def main() -> None:
    """Measure, print, and write the JSON file if one is named."""
    parser = argparse.ArgumentParser(description="Growth of the cost of a batch with its completions.")
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats, in a few seconds")
    parser.add_argument("--output", metavar="FILE.json", help="where to write the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes, repeats = ([64, 256, 1024], 3) if arguments.quick else ([64, 256, 1024, 4096, 16_384, BAR_SIZE], 15)
    whole = ([4096, 65_536, 2**20], [10**6, 10**7, 10**8], [2, 8, 64, 512], 5)
    records = measure(sizes, repeats) + measure_steps(
        *(([64, 256], [100, 1000], [2, 8], 2) if arguments.quick else whole)
    )
    print_table(records)
    if arguments.output:
        write(arguments.output, records, [SEED])


if __name__ == "__main__":
    main()
