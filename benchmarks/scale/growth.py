"""How the cost of a batch grows with its completions: drawing, bins, planning rows, laying them out, and memory.

Then whole steps of up to a million completions on 512 ranks, histories of up to 100 million prompts, and what ranks
wait for each other (``steps.py``).

python -m benchmarks.scale.growth [--quick] [--output FILE.json]

Nothing is pruned before it is packed, so every figure is of as many completions as its size says. ``growth`` is the
exponent from the size before: 1 is linear, 0 does not grow. The last lines fit one exponent over all sizes. Exponents
are of the lowest times, since other work on the machine only ever adds. A step builds one row, forwards it and drops
it, so the memory that counts is ``memory_of_largest_row``.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks.scale.steps import counted, history_records, idle_shares, record, step_records, timed
from benchmarks.shared import Record, met, options, python_peak, spread_with_ends, write
from benchmarks.speed.workload import Work, generation_batch
from dppo.packing.bins import best_fit_decreasing, longest_processing_time
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


def laid_out(work: Work, rows: list[list[int]]) -> Iterator[Row]:
    """The rows, one at a time."""
    for index in rows:
        yield build_row(
            [work.prompts[i] for i in index], [work.completions[i] for i in index], [work.group_N[i] for i in index]
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
        f"bins_of_{RANKS}_ranks": lambda: longest_processing_time(whole_N, RANKS),
        "plan_rows": lambda: plan_rows(work.group_N, prompt_N, completion_N, MAX_TOKENS),
        "layout": lambda: [row.completions for row in laid_out(work, rows)],
    }
    for figure, run in parts.items():
        yield timed(figure, size, run, repeats, bar=BINS_BAR_MS if (figure, size) == ("bins", BAR_SIZE) else None)


def memory_records(work: Work, rows: list[list[int]]) -> Iterator[Record]:
    """Bytes: Python objects while planning; tensors of the largest row; tensors if all rows were held at one time.

    These are counted, not read off the process, whose resident memory keeps what was freed. The tokens of the batch
    are there before and not counted.
    """
    size, rows_bytes = len(work.completions), [tensor_bytes(row) for row in laid_out(work, rows)]
    lengths = work.prompt_tokens, work.completion_tokens
    yield counted("memory_of_plan", size, python_peak(lambda: plan_rows(work.group_N, *lengths, MAX_TOKENS)))
    yield counted("memory_of_largest_row", size, max(rows_bytes))
    yield counted("memory_of_all_rows", size, sum(rows_bytes))


def with_growth(records: list[Record]) -> Iterator[Record]:
    """The records of one figure, sizes ascending, with the growth from each size to the next, and the fit over all."""
    sizes, lowest = (np.log([each[key] for each in records]) for key in ("size", "lowest"))
    steps = np.diff(lowest) / np.diff(sizes)
    for each, growth in zip(records, [None, *steps.tolist()], strict=True):
        yield {**each, "growth": growth}
    slope = float(np.polyfit(sizes, lowest, 1)[0])
    fit = {"unit": "exponent", **spread_with_ends([slope]), "repeats": len(records)}
    name, largest = f"growth_of_{records[0]['figure']}", records[-1]["size"]
    yield {**record(name, largest, fit, bar=GROWTH_BAR), "growth": slope}


def measure(sizes: list[int], repeats: int) -> list[Record]:
    """Records of the parts of a step: by figure, then by size, then the fits."""
    found = []
    for size in sizes:
        work = generation_batch(SEED, prompts=size // GROUP_SIZE, group_size=GROUP_SIZE, vocabulary=VOCABULARY)
        rows = plan_rows(work.group_N, work.prompt_tokens, work.completion_tokens, MAX_TOKENS)
        found += [*time_records(work, rows, repeats), *memory_records(work, rows)]
    return grown(found)


def measure_steps(sizes: list[int], histories: list[int], ranks: list[int], repeats: int) -> list[Record]:
    """Records of whole steps and of histories, with growth and fits; then what ranks wait for each other."""
    found = [each for size in sizes for each in step_records(size, max(ranks), repeats)]
    found += [each for size in histories for each in history_records(size, repeats)]
    return grown(found) + [each for prompts in (2, 8) for many in ranks for each in idle_shares(many, prompts, repeats)]


def grown(records: list[Record]) -> list[Record]:
    """Records by figure with their growth; the fits come last."""
    by_figure: dict[str, list[Record]] = {}
    for each in records:
        by_figure.setdefault(each["figure"], []).append(each)
    found = [each for figure in by_figure.values() for each in with_growth(figure)]
    return sorted(found, key=lambda each: each["unit"] == "exponent")


def print_table(records: list[Record]) -> None:
    """One line per record, with its bar and whether it was met."""
    heads = f"{'size':>8}{'median':>18}{'quartiles':>34}{'per completion':>22}{'growth':>8}"
    print(f"{'figure':40}{heads}  bar")
    for row in records:
        digits = 0 if row["unit"] == "bytes" else 2
        quartiles = f"{row['quartile_low']:,.{digits}f} .. {row['quartile_high']:,.{digits}f}"
        each = "" if row["per_completion"] is None else f"{row['per_completion']:,.2f} {row['per_completion_unit']}"
        growth = "" if row["growth"] is None else f"{row['growth']:.2f}"
        figures = f"{row['size']:>8,}{row['median']:>18,.{digits}f}{quartiles:>34}{each:>22}{growth:>8}"
        print(f"{row['figure']:40}{figures}  {row['unit']} {met(row)}")


def main() -> None:
    """Measure, print, and write the JSON file if one is named."""
    arguments = options(__doc__, quick="small sizes and few repeats, in a few seconds").parse_args()
    torch.set_num_threads(1)
    sizes, repeats = ([64, 256, 1024], 3) if arguments.quick else ([64, 256, 1024, 4096, 16_384, BAR_SIZE], 15)
    whole = ([4096, 65_536, 2**20], [10**6, 10**7, 10**8], [2, 8, 64, 512], 5)
    records = measure(sizes, repeats) + measure_steps(
        *(([64, 256], [100, 1000], [2, 8], 2) if arguments.quick else whole)
    )
    print_table(records)
    write(arguments.output, records, [SEED])


if __name__ == "__main__":
    main()
