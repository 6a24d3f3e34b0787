"""Cost of forward and backward over the same kept completions by layout, on a CPU or on one CUDA GPU.

python -m benchmarks.speed.forward [--device cpu|cuda] [--models 0.6B 4B] [--quick] [--output FILE.json]

``trl`` is the path of TRL's trainer: the generation batch padded once to its longest prompt and its longest completion,
micro-batches of 8 sequences, TRL's fused head called with ``labels=``. ``sorted``, ``packed`` and ``shared`` are this
library's layouts, ``padded`` is TRL's with this library's head; on a GPU all have TRL's head, and gradient
checkpointing. All forward the same kept completions, which are drawn uniformly: compute is measured here, not learning.
First kernels and layouts are compared with float32, and kernels timed on four layers. Last, tokens are left out of
shared rows: completions cut to a share of their tokens, and a share of the tokens sent to the head.
"""

import itertools
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from trl.trainer.utils import add_fused_lm_head

from benchmarks.shared import Record, in_turns, options, spread, write
from benchmarks.speed.layouts import Layout, call_with_labels, layouts, padded, train_step
from benchmarks.speed.workload import (
    MODELS,
    QUICK,
    REALISTIC,
    Lengths,
    Work,
    build_model,
    generation_batch,
    gradients,
    prune,
    relative_difference,
    tokens_left_out,
    typical_prompts,
)
from dppo.packing.attention import use_rows
from dppo.packing.head import add_scored_head
from dppo.packing.kernels import Kernel, candidates, choose_kernel, probe
from dppo.packing.rows import Segments

SEED = 0
SAME_GRADIENT = 1e-4
"""Largest relative difference of float32 gradients that counts as the same computation."""
NOISE, NOISE_LIMIT = 3.0, 0.2
"""In half precision a gradient may differ by this many times what sorting alone changes, and never by more."""
LAYOUT_NOISE = 2.0
"""How many times further from the float32 gradient than padding in the same dtype a layout may be."""
LEFT_OUT = {
    "cuts 0.5": (0.5, 1.0),
    "cuts 0.3": (0.3, 1.0),
    "head 0.15": (1.0, 0.15),
    "cuts 0.5, head 0.15": (0.5, 0.15),
}
"""Shares of the tokens that are kept, and that reach the head, by name."""
KERNEL_LAYERS = 4
SEGMENTS = Segments(length_S=(150, 130, 400, 1, 77, 129, 513, 33), trunk_S=(-1, -1, 0, 0, 0, 1, 1, -1))
"""Two prompts with branches longer, shorter and much shorter than they are, and a sequence that stands alone."""
Prepare = Callable[[PreTrainedModel], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Sizes of a run. Small enough to be sent to another process."""

    device: torch.device
    models: tuple[str, ...]
    repetitions: int = 3
    prompts: int | None = None
    """Prompts whose completions are forwarded; None for as many as have eight kept completions, the harder case."""
    dtype: torch.dtype = torch.float32
    group_sizes: tuple[int, ...] = (8, 16)
    rates: tuple[float, ...] = (0.0, 0.5, 0.75)
    lengths: Lengths = REALISTIC
    check: Lengths = QUICK
    max_tokens: int = 4096
    """Of a row, and of a sorted micro-batch."""
    row_lengths: tuple[int, ...] = (1024, 2048, 4096, 8192)
    batches: int = 20
    """Whole generation batches over which tokens are counted."""


CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TINY = Lengths(prompt=(5, 10), median=20.0, longest=50)
ON_GPU: dict[str, Any] = {
    "device": CUDA,
    "dtype": torch.bfloat16,
    "prompts": 8,
    "group_sizes": (8,),
    "max_tokens": 8192,
}
SETTINGS = {
    ("cpu", False): Settings(device=CPU, models=("4x128", "4x256")),
    ("cpu", True): Settings(
        device=CPU, models=("tiny",), repetitions=2, group_sizes=(8,), lengths=TINY, check=TINY, max_tokens=256,
        row_lengths=(256,), batches=3,
    ),
    ("cuda", False): Settings(models=("0.6B", "1.7B", "4B"), row_lengths=(2048, 8192, 32_768), **ON_GPU),
    ("cuda", True): Settings(models=("0.6B cut to 4 layers",), row_lengths=(8192,), **ON_GPU),
}  # fmt: skip


def with_rows(model: PreTrainedModel) -> None:
    """Make ``model`` what this library's trainer makes of it."""
    use_rows(model)
    on_gpu = next(model.parameters()).device.type == "cuda"
    # In float32 TRL's kernel may multiply in fewer bits, so what others are compared with does without it.
    (add_fused_lm_head if on_gpu and model.dtype != torch.float32 else add_scored_head)(model)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A layout, the model it runs on, and the tokens that it leaves out."""

    layout: Layout
    prepare: Prepare = with_rows
    left_out: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kept set on one model."""

    settings: Settings
    model: str
    group_size: int
    rate: float

    @property
    def prompts(self) -> int:
        """Prompts that are forwarded."""
        return self.settings.prompts or max(1, round(8 / (self.group_size * (1 - self.rate))))

    def work(self) -> Work:
        """A typical part of a pruned generation batch, padded as wide as all of it."""
        vocabulary, lengths = MODELS[self.model]().vocab_size, self.settings.lengths
        batch = generation_batch(SEED, group_size=self.group_size, vocabulary=vocabulary, lengths=lengths)
        rows = round(self.prompts * self.group_size * (1 - self.rate))
        return typical_prompts(prune(batch, self.rate, SEED), self.prompts, rows).to(self.settings.device)

    def works(self, named: Mapping[str, Contender]) -> dict[str, Work]:
        """The work of each contender, without the tokens that it leaves out."""
        whole = self.work()
        return {
            name: whole
            if each.left_out == (1.0, 1.0)
            else tokens_left_out(whole.to("cpu"), *each.left_out, SEED).to(self.settings.device)
            for name, each in named.items()
        }

    def prepared(self, prepare: Prepare, dtype: torch.dtype | None = None, **fields: Any) -> PreTrainedModel:
        """The model with random weights and gradients of zero."""
        settings = self.settings
        config = MODELS[self.model](**fields)
        model = build_model(config, SEED, device=str(settings.device), dtype=dtype or settings.dtype)
        prepare(model)
        if settings.device.type == "cuda":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return model


def contenders(settings: Settings, kernel: Kernel) -> dict[str, Contender]:
    """The layouts that are compared, by name; the first is what the others are measured against."""
    prepare = add_fused_lm_head if settings.device.type == "cpu" else with_rows
    dense = {name: each for name, each in layouts(settings.max_tokens, kernel).items() if each is not padded}
    trl = Contender(layout=partial(padded, call=call_with_labels), prepare=prepare)
    return {"trl": trl} | {name: Contender(layout=layout) for name, layout in dense.items()}


def now(device: torch.device) -> float:
    """CPU seconds of this process, which other work disturbs less; on a GPU seconds, once its work is done."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def taken(run: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of a call."""
    start = now(device)
    run()
    return 1e3 * (now(device) - start)


def peak_memory(case: Case, name: str, contender: Contender) -> float:
    """MiB that one forward and backward adds at its peak to model and gradients. On a CPU in a fresh process."""
    torch.set_num_threads(1)
    model, work = case.prepared(contender.prepare), case.works({name: contender})[name]
    train_step(model, work.take([0]), contender.layout)  # what is set up on first use is not the layout's
    if case.settings.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        train_step(model, work, contender.layout)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    train_step(model, work, contender.layout)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit / 2**20


def in_own_process(run: Callable[..., float], *arguments: Any) -> float:
    """Call ``run`` in a fresh process: a process keeps its highest resident size."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers", "trl.trainer.utils"])
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(run, *arguments).result()


def stepped(model: PreTrainedModel, work: Work, layout: Layout, wanted: list[torch.Tensor]) -> Record:
    """Tokens, loss and gradient of one step from gradients of zero; the first gradient fills ``wanted``."""
    model.zero_grad(set_to_none=False)
    step = train_step(model, work, layout)
    wanted[:] = wanted or gradients(model)
    off = relative_difference((each.grad for each in model.parameters() if each.grad is not None), wanted)
    return {**step, "loss": float(step["loss"]), "scored": int(step["scored"]), "gradient_difference": off}


def compare(case: Case, named: Mapping[str, Contender]) -> Iterator[Record]:
    """Time, memory and exactness of each contender on one case, against the first of them."""
    settings, works, first, wanted = case.settings, case.works(named), next(iter(named)), list[torch.Tensor]()
    measure = peak_memory if settings.device.type == "cuda" else partial(in_own_process, peak_memory)
    memory = {name: measure(case, name, contender) for name, contender in named.items()}
    models = {prepare: case.prepared(prepare) for prepare in {each.prepare for each in named.values()}}
    steps = {n: stepped(models[each.prepare], works[n], each.layout, wanted) for n, each in named.items()}
    limit = SAME_GRADIENT
    if settings.dtype != torch.float32:
        noise = steps["sorted"]["gradient_difference"] if "sorted" in steps else np.inf
        limit = min(NOISE_LIMIT, 1e-5 + NOISE * noise)
    runs = {n: partial(train_step, models[each.prepare], works[n], each.layout) for n, each in named.items()}
    times = in_turns({n: partial(taken, run, settings.device) for n, run in runs.items()}, settings.repetitions)
    for name in named:
        step, ratio = steps[name], np.divide(times[first], times[name])
        right = works[name] is not works[first] or step["gradient_difference"] <= limit
        yield {
            "model": case.model,
            "group_size": case.group_size,
            "prune": case.rate,
            "layout": name,
            "completions": len(works[name].completions),
            **step,
            "fewer_tokens": steps[first]["tokens"] / step["tokens"],
            "unit": "ms of CPU time" if settings.device.type == "cpu" else "ms",
            **spread(times[name]),
            "repetitions": settings.repetitions,
            **spread(ratio, "faster_"),
            "peak_mib": memory[name],
            "less_memory": memory[first] / memory[name],
            "passed": step["scored"] == works[name].scored and bool(right),
        }


def kernel_rows(settings: Settings, kernels: list[Kernel] | None = None) -> Iterator[Record]:
    """Check each kernel against float32 SDPA on segments longer than its blocks; None if it does not run here."""
    config = MODELS[settings.models[0]]()
    heads = (config.num_attention_heads, config.num_key_value_heads)
    for kernel in candidates(settings.device, settings.dtype) if kernels is None else kernels:
        asked = {"heads": heads, "segments": SEGMENTS, "windows": (None, 128)}
        problem = probe(kernel, settings.device, settings.dtype, config.head_dim, **asked)
        passed = not problem if not problem or problem.startswith("its ") else None
        yield {"figure": "kernel", "kernel": kernel.name, "passed": passed, "reason": problem}


def exactness_rows(case: Case, named: Mapping[str, Layout]) -> Iterator[Record]:
    """How far each layout's gradient is from that of padding in float32, on two layers and two prompts.

    In half precision every layout rounds differently, so the measure is padding's own distance, the first one's.
    """
    settings, config, wanted, noise = case.settings, MODELS[case.model](), list[torch.Tensor](), None
    work = generation_batch(SEED, prompts=2, group_size=4, vocabulary=config.vocab_size, lengths=settings.check)
    work = work.to(settings.device)
    stepped(case.prepared(with_rows, torch.float32, layers=2), work, padded, wanted)
    model = case.prepared(with_rows, layers=2)
    for name, layout in named.items():
        step = stepped(model, work, layout, wanted)
        noise = step["gradient_difference"] if noise is None else noise
        right = step["scored"] == work.scored and step["gradient_difference"] <= max(1e-5, LAYOUT_NOISE * noise)
        yield {"figure": "exactness", "model": case.model, "layout": name, **step, "passed": right}


def kernel_times(case: Case) -> Iterator[Record]:
    """Seconds of a step on shared rows by each kernel that is right here, in turns, on a few layers."""
    settings, model = case.settings, case.prepared(with_rows, layers=KERNEL_LAYERS)
    work, runs = case.work(), {}
    for row, kernel in zip(kernel_rows(settings), candidates(settings.device, settings.dtype), strict=True):
        if row["passed"]:
            step = partial(train_step, model, work, layouts(settings.max_tokens, kernel)["shared"])
            step()
            runs[kernel.name] = partial(taken, step, settings.device)
    for kernel, times in in_turns(runs, settings.repetitions).items():
        row = {"figure": "kernel time", "kernel": kernel, "layers": KERNEL_LAYERS, "unit": "s"}
        yield row | spread(np.divide(times, 1e3))


def token_rows(settings: Settings, named: Mapping[str, Contender]) -> Iterator[Record]:
    """How many times fewer tokens than ``trl`` each layout forwards, over whole pruned generation batches."""
    for group_size, rate in itertools.product(settings.group_sizes, settings.rates):
        counts: dict[str, list[int]] = {name: [] for name in named}
        for seed in range(settings.batches):
            batch = generation_batch(seed, group_size=group_size, vocabulary=2, lengths=settings.lengths)
            kept = prune(batch, rate, seed)
            for name, contender in named.items():
                counts[name].append(sum(forward.tokens for forward in contender.layout(kept)))
        for name in named:
            row = {"figure": "tokens", "group_size": group_size, "prune": rate, "layout": name}
            row |= {"batches": settings.batches, "tokens": float(np.median(counts[name]))}
            yield row | spread(np.divide(counts["trl"], counts[name]), "fewer_")


def measured(settings: Settings) -> Iterator[Record]:
    """All records, each with its ``figure``."""
    first = Case(settings=settings, model=settings.models[0], group_size=settings.group_sizes[0], rate=0.0)
    config = MODELS[first.model]()
    heads = (config.num_attention_heads, config.num_key_value_heads)
    kernel = choose_kernel(settings.device, settings.dtype, config.head_dim, heads=heads)
    named = contenders(settings, kernel)
    yield from kernel_rows(settings)
    yield from exactness_rows(first, layouts(settings.max_tokens, kernel))
    yield from kernel_times(first)
    yield from token_rows(settings, named)
    for model, group_size, rate in itertools.product(settings.models, settings.group_sizes, settings.rates):
        case = Case(settings=settings, model=model, group_size=group_size, rate=rate)
        yield from ({"figure": "layouts"} | row for row in compare(case, named))
    by_length = {f"shared {n}": Contender(layout=layouts(n, kernel)["shared"]) for n in settings.row_lengths}
    largest = replace(first, group_size=max(settings.group_sizes))
    others = {"trl": named["trl"], "padded": Contender(layout=padded)}
    yield from ({"figure": "head and row length"} | row for row in compare(largest, others | by_length))
    for model in settings.models:
        left = {name: replace(named["shared"], left_out=shares) for name, shares in LEFT_OUT.items()}
        case = replace(first, model=model)
        yield from ({"figure": "left out"} | row for row in compare(case, {"shared": named["shared"]} | left))


def line(row: Record) -> str:
    """A row as printed; columns that it lacks are empty."""
    verdict = {True: "passed", False: "WRONG", None: "does not run here"}[row.get("passed", True)]
    name = row.get("layout") or f"{row['kernel']} {row.get('reason', '')}"
    work = "".join(f"{row.get(key, ''):>7}" for key in ("model", "group_size", "prune", "tokens"))
    figures = "" if "median" not in row else f"{row['median']:>10,.2f} {row['unit']}"
    for prefix in ("faster_", "fewer_"):
        if f"{prefix}median" in row:
            low, high = row[f"{prefix}quartile_low"], row[f"{prefix}quartile_high"]
            figures += f"  {prefix[:-1]} {row[f'{prefix}median']:.2f}x ({low:.2f} to {high:.2f})"
    if "peak_mib" in row:
        figures += f"  {row['peak_mib']:,.0f} MiB"
    off = f"  gradient {row['gradient_difference']:.0e}" if "gradient_difference" in row else ""
    return f"{row['figure']:20}{name:21}{work}{figures}{off}  {verdict}"


def main() -> int:
    """Measure, print, and write the JSON file if one is named. 1 if a check failed, 2 without a GPU."""
    parser = options(__doc__, quick="one small model and few repetitions")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), help="some of the models; all by default")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("No CUDA GPU here. To test the path without one: python -m benchmarks.speed.forward --quick")
        return 2
    settings = SETTINGS[arguments.device, arguments.quick]
    if arguments.models:
        settings = replace(settings, models=tuple(arguments.models))
    if arguments.device == "cpu":
        torch.set_num_threads(1)
    rows = []
    for row in measured(settings):
        print(line(row), flush=True)
        rows.append(row)
        write(arguments.output, rows, [SEED])
    return 0 if all(row.get("passed") is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
