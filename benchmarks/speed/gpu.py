"""What forward and backward cost on one CUDA GPU by layout, for Qwen3 of 0.6B, 1.7B and 4B with random weights.

python -m benchmarks.speed.gpu [--models 0.6B 1.7B 4B] [--quick] [--output FILE.json]

Needs torch and transformers: from the root of this repository, nothing need be installed. On a GPU the head is TRL's
fused one if TRL is installed. First attention kernels and layouts are compared with float32, and kernels timed on four
layers; then, in bfloat16 with gradient checkpointing and one head for all, padding is measured against sorted, packed
and shared rows at several prune rates. Kept completions are drawn uniformly: compute is measured, not learning. Then
tokens are left out of shared rows: completions cut to half and to three tenths of their tokens, and 15% of the tokens
sent to the head, beside a head that holds all logits and today's fused one. ``--device cpu --quick`` runs a tiny model,
to test the path.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.shared import Record, in_turns, options, seconds_of, spread, write
from benchmarks.speed.gpu_checks import head_rows, kernel_rows, layout_rows
from benchmarks.speed.gpu_tables import (
    EXACTNESS_HEAD,
    NOTES,
    TIME_HEAD,
    TOKEN_HEAD,
    exactness_line,
    kernel_line,
    kernel_time_line,
    time_line,
    token_line,
)
from benchmarks.speed.layouts import Layout, flops, layouts, shared, step_each, train_step
from benchmarks.speed.workload import (
    BATCH_PROMPTS,
    MODELS,
    QUICK,
    REALISTIC,
    Lengths,
    Work,
    build_model,
    generation_batch,
    prune,
    tokens_left_out,
    typical_prompts,
)
from dppo.packing.attention import use_rows
from dppo.packing.head import add_scored_head
from dppo.packing.kernels import SEGMENT_SDPA, Kernel, candidates, choose_kernel, probe

SEED = 0
GROUP_SIZE = 8
RATES = (0.0, 0.5, 0.75)
TOKEN_CASES = {"plain head": (1.0, 1.0), "fused head": (1.0, 1.0), "cuts 0.5": (0.5, 1.0), "cuts 0.3": (0.3, 1.0),
               "head 0.15": (1.0, 0.15), "cuts 0.5, head 0.15": (0.5, 0.15)}  # fmt: skip
"""Shares of the tokens that are kept, and that reach the head, by name."""
KERNEL_LAYERS, KERNEL_PROMPTS = 4, 16
"""Of the first model, and of how many prompts completions are forwarded, where kernels are timed."""
FUSED = "fused head"
"""Today's step, which the others are measured against."""
NOISE, NOISE_LIMIT = 3.0, 0.2
"""A layout's gradient may differ from padding's by this many times what sorting alone changes, and never by more
than the limit, which is relative."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured."""

    prompts: dict[str, int]
    """Models by name, and of how many prompts the completions are forwarded."""
    dtype: torch.dtype = torch.bfloat16
    lengths: Lengths = REALISTIC
    max_tokens: int = 8192
    """Of a row, and of a sorted micro-batch; padding forwards 8 sequences, about 9,800 tokens."""
    row_lengths: tuple[int, ...] = (2048, 4096, 8192, 16_384, 32_768)
    repetitions: int = 3
    matrix: int = 8192
    """Side of the square matrices that the rate of the GPU is measured with."""
    check: Lengths = field(default_factory=lambda: QUICK)


SETTINGS = {
    ("cuda", False): Settings(prompts={"0.6B": 8, "1.7B": 8, "4B": 4}),
    ("cuda", True): Settings(prompts={"0.6B cut to 4 layers": 8}, row_lengths=(8192,)),
    ("cpu", True): Settings(
        prompts={"tiny": 4},
        dtype=torch.float32,
        lengths=Lengths(prompt=(5, 10), median=20.0, longest=50),
        check=Lengths(prompt=(5, 10), median=20.0, longest=50),
        max_tokens=256,
        row_lengths=(256,),
        repetitions=2,
        matrix=256,
    ),
}


def seconds(run: Any, device: torch.device) -> float:
    """Wall-clock time of ``run``, until the device has done what it was given."""

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return seconds_of(run, clock)


def matrix_rate(side: int, device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a product of two square matrices: the median of 20 after 5 that are not counted."""
    make = torch.Generator(device).manual_seed(SEED)
    a, b = (torch.randn(side, side, generator=make, device=device).to(dtype) for _ in range(2))
    taken = [seconds(lambda: a @ b, device) for _ in range(25)][5:]
    return 2.0 * side**3 / float(np.median(taken))


def head_for(device: torch.device, dtype: torch.dtype) -> tuple[str, Callable[[PreTrainedModel], None]]:
    """Name of the head that training has on ``device``, and the function that adds it to a model.

    That is TRL's fused head on a GPU, if TRL is installed. In float32 TRL's kernel may multiply in fewer bits, so it is
    not taken for the model that others are compared with.
    """
    if device.type == "cuda" and dtype != torch.float32:
        try:
            from trl.trainer.utils import add_fused_lm_head
        except ImportError:
            return "in blocks, because TRL is not installed", add_scored_head
        return "TRL's fused head", add_fused_lm_head
    return "in blocks", add_scored_head


def prepared(config: Any, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A model with random weights that rows can be given to, with gradient checkpointing."""
    model = build_model(config, SEED, device=str(device), dtype=dtype)
    use_rows(model)
    head_for(device, dtype)[1](model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def kept_work(settings: Settings, config: Any, prompts: int, rate: float, device: torch.device) -> Work:
    """A typical part of a pruned generation batch, padded as wide as all of it."""
    batch = generation_batch(SEED, group_size=GROUP_SIZE, vocabulary=config.vocab_size, lengths=settings.lengths)
    kept = typical_prompts(prune(batch, rate, SEED), prompts, round(prompts * GROUP_SIZE * (1 - rate)))
    return kept.to(device)


def check_rows(settings: Settings, config: Any, kernel: Kernel, device: torch.device) -> Iterator[Record]:
    """Every layout against float32 padding, on the first two layers and two prompts."""
    work = generation_batch(SEED, prompts=2, group_size=4, vocabulary=config.vocab_size, lengths=settings.check).to(
        device
    )
    build = partial(prepared, config, device)
    named = layouts(settings.max_tokens, kernel)
    exact = layouts(settings.max_tokens, SEGMENT_SDPA)["shared"]
    yield from layout_rows(build, settings.dtype, work, named)
    yield from head_rows(build, work, tokens_left_out(work.to("cpu"), 1.0, 0.15, SEED).to(device), exact)


def kernel_times(settings: Settings, config: Any, device: torch.device) -> Iterator[Record]:
    """A step on shared rows by each kernel that is right here, in turns."""
    model = prepared(config, device, settings.dtype)
    heads = (config.num_attention_heads, config.num_key_value_heads)
    work = kept_work(settings, config, KERNEL_PROMPTS, 0.0, device)
    steps = {}
    for kernel in candidates(device, settings.dtype):
        if not probe(kernel, device, settings.dtype, config.head_dim, heads=heads):
            steps[kernel.name] = partial(train_step, model, work, layouts(settings.max_tokens, kernel)["shared"])
    for step in steps.values():
        step()
    runs = {kernel: partial(seconds, step, device) for kernel, step in steps.items()}
    for kernel, taken in in_turns(runs, settings.repetitions).items():
        row = {
            "figure": "kernel time",
            "kernel": kernel,
            "layers": KERNEL_LAYERS,
            "tokens": shared(work, max_tokens=sys.maxsize)[0].tokens,
        }
        yield {**row, "unit": "s", **spread(taken)}


def compared(
    model: PreTrainedModel, work: Work, named: dict[str, Layout], repetitions: int, device: torch.device
) -> Iterator[tuple[str, Record, list[float], list[float]]]:
    """Of each layout its name, one step with exactness and memory, and its and the first one's seconds."""
    steps = step_each({name: (model, layout) for name, layout in named.items()}, work)
    runs = {name: partial(train_step, model, work, layout) for name, layout in named.items()}
    memory = {name: peak_memory(run, device) for name, run in runs.items()}
    taken = in_turns({name: partial(seconds, run, device) for name, run in runs.items()}, repetitions)
    first = next(iter(named))
    for name, step in steps.items():
        yield name, step | memory[name], taken[name], taken[first]


def peak_memory(run: Any, device: torch.device) -> dict[str, float | None]:
    """GiB that torch has given out at most while ``run`` ran, in all and above what was given out before."""
    if device.type != "cuda":
        run()
        return {"peak_gib": None, "added_gib": None}
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    peak = torch.cuda.max_memory_allocated(device)
    return {"peak_gib": peak / 2**30, "added_gib": (peak - before) / 2**30}


def model_rows(
    settings: Settings, name: str, kernel: Kernel, rate_of_matrices: float, device: torch.device
) -> Iterator[Record]:
    """Every layout at every prune rate, and shared rows of several lengths, for one model."""
    config = MODELS[name]()
    model = prepared(config, device, settings.dtype)
    by_length = {f"shared {n}": layouts(n, kernel)["shared"] for n in settings.row_lengths}
    plan = [("layouts", rate, layouts(settings.max_tokens, kernel)) for rate in RATES]
    plan.append(("row length", 0.0, {"padded": layouts(1)["padded"]} | by_length))
    for figure, rate, named in plan:
        work = kept_work(settings, config, settings.prompts[name], rate, device)
        needed = shared(work, max_tokens=sys.maxsize)
        least = flops(config, needed[0].tokens, needed[0].pairs, work.scored, again=0)
        noise = 0.0
        for layout, step, taken, first in compared(model, work, named, settings.repetitions, device):
            noise = step["gradient_difference"] if layout == "sorted" else noise
            limit = min(NOISE_LIMIT, 1e-5 + NOISE * noise) if noise else NOISE_LIMIT
            done = flops(config, step["tokens"], step["pairs"], work.scored, again=1)
            median = float(np.median(taken))
            yield {
                "figure": figure,
                "model": name,
                "group_size": GROUP_SIZE,
                "prune": rate,
                "layout": layout,
                "kernel": kernel.name,
                "max_tokens": settings.max_tokens,
                "prompts": settings.prompts[name],
                "completions": len(work.completions),
                "tokens": step["tokens"],
                "forwards": step["forwards"],
                "unit": "s",
                **spread(taken),
                "repetitions": settings.repetitions,
                **spread(np.divide(first, taken), "faster_"),
                "tokens_per_second": step["tokens"] / median,
                "kept_tokens_per_second": work.scored / median,
                "share_done": done / median / rate_of_matrices,
                "share_needed": least / median / rate_of_matrices,
                "peak_gib": step["peak_gib"],
                "added_gib": step["added_gib"],
                "loss": step["loss"],
                "gradient_difference": step["gradient_difference"],
                "passed": step["scored"] == work.scored and step["gradient_difference"] <= limit,
            }


def token_rows(settings: Settings, name: str, kernel: Kernel, device: torch.device) -> Iterator[Record]:
    """A step on shared rows with tokens left out, and with a head that holds all logits; in turns."""
    config = MODELS[name]()
    model = prepared(config, device, settings.dtype)
    work = kept_work(settings, config, settings.prompts[name], 0.0, torch.device("cpu"))
    steps: dict[str, Any] = {}
    for case, (kept, head) in TOKEN_CASES.items():
        left = work if kept == head == 1.0 else tokens_left_out(work, kept, head, SEED)
        layout = partial(shared, max_tokens=settings.max_tokens, kernel=kernel, plain=case == "plain head")
        steps[case] = partial(train_step, model, left.to(device), layout)
    found: dict[str, Record] = {}
    for case, step in steps.items():
        model.zero_grad(set_to_none=False)
        try:
            found[case] = {**step(), **peak_memory(step, device)}
        except torch.OutOfMemoryError as error:  # all logits at once may not fit: that is a finding
            found[case] = {"reason": f"{type(error).__name__}"}
    runs = {case: partial(seconds, steps[case], device) for case in steps if "scored" in found[case]}
    taken = in_turns(runs, settings.repetitions)
    for case, (kept, head) in TOKEN_CASES.items():
        row = {"figure": "tokens", "model": name, "case": case, "kept": kept, "head": head, "unit": "s"}
        if case not in taken:
            yield {**row, **found[case], "passed": None}
            continue
        left, step = steps[case].args[1], found[case]
        yield {
            **row,
            "completions": len(left.completions),
            "tokens": step["tokens"],
            "scored": int(step["scored"]),
            **spread(taken[case]),
            "repetitions": settings.repetitions,
            **spread(np.divide(taken[case], taken[FUSED]), "ratio_"),
            "peak_gib": step["peak_gib"],
            "added_gib": step["added_gib"],
            "loss": float(step["loss"]),
            "passed": int(step["scored"]) == left.scored,
        }


def measure(settings: Settings, models: list[str], device: torch.device, output: Path | None) -> list[Record]:
    """Run all checks and models, print as they come, and write the file after each model."""
    records: list[Record] = []

    def show(rows: Iterator[Record], line: Any) -> None:
        for row in rows:
            print(line(row), flush=True)
            records.append(row)
        write(output, records, [SEED])

    config = MODELS[models[0]](layers=2)
    heads, head_dim = (config.num_attention_heads, config.num_key_value_heads), config.head_dim
    print("Attention over segments against float32")
    show(kernel_rows(device, settings.dtype, heads, head_dim), kernel_line)
    kernel = choose_kernel(device, settings.dtype, head_dim, heads=heads)
    print(f"chosen: {kernel.name} ({kernel.reason})")
    print(f"head: {head_for(device, settings.dtype)[0]}")
    print(f"\nGradient against float32 padding, two layers, {settings.dtype}\n{EXACTNESS_HEAD}")
    show(check_rows(settings, config, kernel, device), exactness_line)
    rate = matrix_rate(settings.matrix, device, settings.dtype)
    figures = {"figure": "matrix rate", "side": settings.matrix, "unit": "FLOP/s", "median": rate}
    show(iter([figures]), lambda row: f"\nmatrix rate: {row['median'] / 1e12:,.3g} TFLOP/s, side {row['side']}")
    cut = MODELS[models[0]](layers=KERNEL_LAYERS)
    show(kernel_times(settings, cut, device), kernel_time_line)
    print(
        f"\nForward and backward, padded as wide as a batch of {BATCH_PROMPTS} prompts; {GROUP_SIZE} completions each"
    )
    print(TIME_HEAD)
    for name in models:
        show(model_rows(settings, name, kernel, rate, device), time_line)
    print(NOTES)
    print(f"\nForward and backward of shared rows with tokens left out\n{TOKEN_HEAD}")
    for name in models:
        show(token_rows(settings, name, kernel, device), token_line)
    return records


def main() -> int:
    """Measure, print, and write the JSON file if one is named. 1 if a check failed, 2 if nothing can be measured."""
    parser = options(__doc__, quick="one small model and few repetitions")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), help="which of the models; all by default")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("No CUDA GPU here. To test the path without one: python -m benchmarks.speed.gpu --device cpu --quick")
        return 2
    settings = SETTINGS.get((arguments.device, arguments.quick))
    if settings is None:
        print("On a CPU only the path can be tested: python -m benchmarks.speed.gpu --device cpu --quick")
        return 2
    models = arguments.models or list(settings.prompts)
    if unknown := [name for name in models if name not in settings.prompts]:
        parser.error(f"no figures are planned for {unknown} here. Try --models {' '.join(settings.prompts)}")
    records = measure(settings, models, torch.device(arguments.device), arguments.output)
    return 0 if all(row.get("passed") is not False for row in records) else 1


if __name__ == "__main__":
    sys.exit(main())
