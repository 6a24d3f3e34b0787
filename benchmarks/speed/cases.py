"""One kept set on one small model on a CPU: time, memory and exactness of every layout against TRL's path."""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from trl.trainer.utils import add_fused_lm_head

from benchmarks.shared import Record, in_turns, spread
from benchmarks.speed.layouts import Layout, call_with_labels, layouts, padded, step_each, train_step
from benchmarks.speed.workload import (
    Lengths,
    Work,
    build_model,
    generation_batch,
    prune,
    qwen3,
    typical_prompts,
)
from dppo.packing.attention import use_rows
from dppo.packing.head import add_scored_head

SEED = 0
FORWARDED = 8
"""Kept completions that are forwarded where a prompt has no more of them: packing little is the harder case."""
SAME_GRADIENT = 1e-4
"""Largest relative difference of float32 gradients that counts as the same computation."""

Prepare = Callable[[PreTrainedModel], None]


def with_rows(model: PreTrainedModel) -> None:
    """Make ``model`` what this library's trainer makes of it."""
    use_rows(model)
    add_scored_head(model)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A layout and the model it runs on."""

    layout: Layout
    prepare: Prepare
    max_tokens: int | None
    """Of a row or a sorted micro-batch; None for a fixed number of sequences."""


TRL = Contender(layout=partial(padded, call=call_with_labels), prepare=add_fused_lm_head, max_tokens=None)


PADDED = Contender(layout=padded, prepare=with_rows, max_tokens=None)
"""TRL's layout with this library's head: what the head alone is worth."""


def contenders(max_tokens: int) -> dict[str, Contender]:
    """The layouts that are compared, by name; the first is what the others are measured against."""
    dense = {name: layout for name, layout in layouts(max_tokens).items() if layout is not padded}
    return {"trl": TRL} | {
        name: Contender(layout=layout, prepare=with_rows, max_tokens=max_tokens) for name, layout in dense.items()
    }


MODELS = {"2x64": (2, 64, 1024), "4x128": (4, 128, 4096), "4x256": (4, 256, 8192)}
"""Layers, hidden size and vocabulary by name, layers times hidden size."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kept set on one model. Small enough to be sent to another process."""

    model: str
    group_size: int
    rate: float
    lengths: Lengths

    @property
    def prompts(self) -> int:
        """Prompts that are forwarded."""
        return max(1, round(FORWARDED / (self.group_size * (1 - self.rate))))

    def work(self) -> Work:
        """A typical part of a pruned generation batch, padded as wide as all of it."""
        batch = generation_batch(
            SEED, group_size=self.group_size, vocabulary=MODELS[self.model][2], lengths=self.lengths
        )
        rows = round(self.prompts * self.group_size * (1 - self.rate))
        return typical_prompts(prune(batch, self.rate, SEED), self.prompts, rows)

    def prepared(self, prepare: Prepare) -> PreTrainedModel:
        """The model in float32, with gradients of zero."""
        model = build_model(qwen3(*MODELS[self.model]), SEED, device="cpu", dtype=torch.float32)
        prepare(model)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return model

    def record(self) -> dict[str, Any]:
        """The case as entries of a flat record."""
        _, _, vocabulary = MODELS[self.model]
        return {
            "model": self.model,
            "vocabulary": vocabulary,
            "group_size": self.group_size,
            "prune": self.rate,
            "prompts": self.prompts,
        }


def peak_memory(case: Case, prepare: Prepare, layout: Layout) -> float:
    """MiB of resident memory that one forward and backward adds at its peak to a process with model and gradients.

    To be called in a fresh process: the highest resident size of a process never comes down again.
    """
    torch.set_num_threads(1)
    model, work = case.prepared(prepare), case.work()
    train_step(model, work.take([0]), layout)  # what is loaded and set up on first use is not the layout's
    before = highest_resident_mib()
    train_step(model, work, layout)
    return highest_resident_mib() - before


def highest_resident_mib() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def in_own_process(run: Callable[..., float], *arguments: Any) -> float:
    """Call ``run`` in a fresh process that starts with nothing but the imports of this file."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers", "trl.trainer.utils"])
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(run, *arguments).result()


def exactness(
    work: Work, named: Mapping[str, Contender], models: Mapping[Prepare, PreTrainedModel]
) -> dict[str, Record]:
    """One step of each contender: its tokens and loss, and how far its gradient is from the first one's."""
    found = step_each({name: (models[each.prepare], each.layout) for name, each in named.items()}, work)
    fields = ("tokens", "forwards", "loss", "scored", "gradient_difference")
    return {
        name: {field: step[field] for field in fields}
        | {"same": step["scored"] == work.scored and step["gradient_difference"] <= SAME_GRADIENT}
        for name, step in found.items()
    }


def compare(case: Case, named: Mapping[str, Contender], repetitions: int) -> Iterator[Record]:
    """Time, memory and exactness of each contender on one case, against the first of them.

    Time is the CPU time of the one thread, which other work on the machine disturbs less; wall-clock time is given too.
    """
    work, first = case.work(), next(iter(named))
    memory = {name: in_own_process(peak_memory, case, c.prepare, c.layout) for name, c in named.items()}
    models = {prepare: case.prepared(prepare) for prepare in {c.prepare for c in named.values()}}
    measured = exactness(work, named, models)

    def milliseconds(contender: Contender) -> tuple[float, float]:
        cpu, wall = time.process_time(), time.perf_counter()
        train_step(models[contender.prepare], work, contender.layout)
        return 1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)

    runs = {name: partial(milliseconds, contender) for name, contender in named.items()}
    taken = {name: np.array(times) for name, times in in_turns(runs, repetitions).items()}
    for name, contender in named.items():
        yield {
            **case.record(),
            "layout": name,
            "max_tokens": contender.max_tokens,
            "completions": len(work.completions),
            **measured[name],
            "fewer_tokens": measured[first]["tokens"] / measured[name]["tokens"],
            "unit": "ms of CPU time",
            **spread(taken[name][:, 0]),
            "wall_median": float(np.median(taken[name][:, 1])),
            "repetitions": repetitions,
            **spread(taken[first][:, 0] / taken[name][:, 0], "faster_"),
            "wall_faster_median": float(np.median(taken[first][:, 1] / taken[name][:, 1])),
            "peak_mib": memory[name],
            "less_memory": memory[first] / memory[name],
        }
