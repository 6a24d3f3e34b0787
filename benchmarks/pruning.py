"""What pruning costs per step: probabilities, draws, prompt blocks, and the memory of a history.

python benchmarks/pruning.py [--quick] [--output FILE.json]
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results_file import write
from timing import milliseconds

from dppo.pruning import DESIGNS, PromptHistory, PromptPruning, PromptStream, Pruning, inclusion_probabilities
from dppo.rng import Purpose, generator
from dppo.types import Completions, Rewards

SEED = 0
DRAW_BAR_MS = 100.0
"""One draw over 65,536 completions; a step takes seconds."""
BLOCK_BAR_MS = 20.0
"""One block of prompts from a history of 10 million."""
HISTORY_BAR_BYTES = 1e9
"""A history of 10 million prompts."""
BAR_ROWS, BAR_PROMPTS = 65_536, 10_000_000
GROUP = 8
BLOCK = 512


def completions(rows: int) -> Completions:
    """A batch with normal advantages, log-normal lengths and a tenth of the rows without a gradient."""
    rng = generator(SEED, Purpose.CHECK, rows)
    return Completions(
        advantage_N=torch.from_numpy(rng.normal(size=rows)),
        tokens_N=torch.from_numpy(rng.lognormal(6, 0.7, rows).astype(np.int64) + 1),
        group_N=torch.arange(rows) // GROUP,
        live_N=torch.from_numpy(rng.random(rows) > 0.1),
    )


def draw_rows(sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    """One draw of each design, and the whole step from completions to weights, for each batch size."""
    rows, rng = [], generator(SEED, Purpose.COMPLETION_DRAW)
    for size in sizes:
        batch = completions(size)
        score = batch.advantage_N.abs()
        prob = inclusion_probabilities(score, size / 2, floor=0.1)
        bar = {"bar": DRAW_BAR_MS} if size == BAR_ROWS else {"bar": None}
        for name, design in DESIGNS.items():
            pruning = Pruning(rate=0.5, design=design)
            one = milliseconds(lambda d=design, p=prob, s=score: d.draw(p, s, rng), repeats)
            whole = milliseconds(lambda p=pruning, b=batch: p.draw(b, rng), repeats)
            rows.append({"figure": "draw", "design": name, "size": size, **one, **bar})
            rows.append({"figure": "draw_completions", "design": name, "size": size, **whole, **bar})
        solved = milliseconds(lambda s=score, n=size: inclusion_probabilities(s, n / 2, floor=0.1), repeats)
        rows.append({"figure": "inclusion_probabilities", "design": None, "size": size, **solved, "bar": None})
    return rows


def filled_history(prompts: int) -> PromptHistory:
    """A history in which every prompt was rolled out once."""
    rng, history = generator(SEED, Purpose.CHECK), PromptHistory(np.arange(prompts, dtype=np.uint64))
    for step, start in enumerate(range(0, prompts, 1_000_000)):
        rows = np.arange(start, min(start + 1_000_000, prompts))
        signal = rng.random(len(rows)) * (rng.random(len(rows)) > 0.5)
        tokens = torch.from_numpy(rng.integers(50, 2000, 2 * len(rows)))
        history.update(rows, Rewards.of_groups(torch.ones(len(rows), 2)), torch.from_numpy(signal), tokens, step)
    return history


def history_rows(prompts: int, repeats: int) -> list[dict[str, Any]]:
    """A block of prompts from a full history, its record afterwards, a checkpoint of it, and its bytes."""
    history, stream = filled_history(prompts), PromptStream(prompts, SEED)
    stream.take(1)  # the order of the epoch, paid once
    rng, signal = generator(SEED, Purpose.PROMPT_DRAW), torch.rand(BLOCK, generator=torch.Generator().manual_seed(SEED))
    rewards, tokens = Rewards.of_groups(torch.ones(BLOCK, GROUP)), torch.ones(BLOCK * GROUP)
    common: dict[str, Any] = {"design": None, "size": prompts}
    at_size = prompts == BAR_PROMPTS

    def block(pruning: PromptPruning) -> None:
        pruning.draw(history.candidates(stream.take(BLOCK), 20), rng, multiple=8)

    rows = []
    for budget in ("rows", "tokens"):
        taken = milliseconds(lambda b=budget: block(PromptPruning(rate=0.5, budget=b)), repeats)
        rows.append(
            {
                "figure": f"prompt_block_of_{BLOCK}_by_{budget}",
                **common,
                **taken,
                "bar": BLOCK_BAR_MS if at_size else None,
            }
        )
    taken = milliseconds(lambda: history.update(stream.take(BLOCK), rewards, signal, tokens, 21), repeats)
    rows.append({"figure": f"history_update_of_{BLOCK}", **common, **taken, "bar": None})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.npz"
        for name, run in (("history_save", history.save), ("history_load", history.load)):
            taken = milliseconds(lambda run=run: run(path), min(repeats, 3))
            rows.append({"figure": name, **common, **taken, "bar": None})
    taken = milliseconds(lambda: PromptStream(prompts, SEED).take(1), min(repeats, 3))
    rows.append({"figure": "order_of_an_epoch", **common, **taken, "bar": None})
    spread = dict.fromkeys(("quartile_low", "median", "quartile_high", "lowest", "highest"), history.nbytes)
    memory = {"unit": "bytes", **spread, "repeats": 1, "bar": HISTORY_BAR_BYTES if at_size else None}
    return [*rows, {"figure": "history_memory", **common, **memory}]


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line per figure, with its bar and whether it was met."""
    print(f"{'figure':32}{'design':>14}{'size':>12}{'median':>18}{'quartiles':>36}  bar")
    for row in rows:
        quartiles = f"{row['quartile_low']:,.2f} .. {row['quartile_high']:,.2f}"
        met = "" if row["bar"] is None else f"{row['bar']:,.0f} " + ("met" if row["median"] < row["bar"] else "MISSED")
        figures = f"{row['size']:>12,}{row['median']:>18,.2f}{quartiles:>36}"
        print(f"{row['figure']:32}{row['design'] or '':>14}{figures}  {row['unit']} {met}")


def main() -> None:
    """Measure, print, and write the JSON file if one is named."""
    parser = argparse.ArgumentParser(description="Cost of pruning per step.")
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats, in a few seconds")
    parser.add_argument("--output", metavar="FILE.json", help="where to write the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes, prompts, repeats = ([1024], 100_000, 3) if arguments.quick else ([1024, 16_384, BAR_ROWS], BAR_PROMPTS, 30)
    rows = draw_rows(sizes, repeats) + history_rows(prompts, repeats)
    print_table(rows)
    if arguments.output:
        write(arguments.output, rows, [SEED])


if __name__ == "__main__":
    main()
