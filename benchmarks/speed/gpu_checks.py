"""What must hold on a GPU before a time means anything: kernels against float32, layouts against padding."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from benchmarks.shared import Record
from benchmarks.speed.layouts import Layout, train_step
from benchmarks.speed.workload import Work, gradients, relative_difference
from dppo.packing.kernels import Kernel, candidates, probe
from dppo.packing.rows import Segments

SEGMENTS = Segments(length_S=(150, 130, 400, 1, 77, 129, 513, 33), trunk_S=(-1, -1, 0, 0, 0, 1, 1, -1))
"""Two prompts with branches longer, shorter and much shorter than they are, and a sequence that stands alone."""
WINDOWS = (None, 128)
LAYOUT_NOISE = 2.0
"""How many times further from the float32 gradient than padding in the same dtype a layout may be."""


def kernel_rows(
    device: torch.device, dtype: torch.dtype, heads: tuple[int, int], head_dim: int, kernels: list[Kernel] | None = None
) -> Iterator[Record]:
    """Whether each kernel agrees with float32 SDPA on segments longer than its blocks; None where it does not run."""
    for kernel in candidates(device, dtype) if kernels is None else kernels:
        problem = probe(kernel, device, dtype, head_dim, heads=heads, segments=SEGMENTS, windows=WINDOWS)
        passed = not problem if not problem or problem.startswith("its ") else None
        yield {"figure": "kernel", "kernel": kernel.name, "dtype": str(dtype), "passed": passed, "reason": problem}


def head_rows(build: Callable[[torch.dtype], nn.Module], work: Work, sampled: Work, layout: Layout) -> Iterator[Record]:
    """That a head which scores some tokens has the gradient of these alone: against all tokens with the others masked.

    Both in float32, so what differs is the head's path and not the precision.
    """
    wanted_model, model = build(torch.float32), build(torch.float32)
    for forward in layout(replace(sampled, keep_N=None)):
        keep_KT = pad_sequence([sampled.keep_N[i] for i in forward.index], batch_first=True)  # pyright: ignore
        logp_KT = forward.log_probs(wanted_model)
        masked_KT = logp_KT[:, : keep_KT.shape[1]] * keep_KT
        (-(masked_KT * sampled.weight_N[list(forward.index), None]).sum() / sampled.scored).backward()
    step = train_step(model, sampled, layout)
    difference = relative_difference(gradients(model), gradients(wanted_model))
    yield {
        "figure": "exactness",
        "layout": "sampled head",
        "dtype": str(torch.float32),
        "scored": int(step["scored"]),
        "gradient_difference": difference,
        "passed": int(step["scored"]) == sampled.scored < work.scored and difference <= 1e-5,
    }


def layout_rows(
    build: Callable[[torch.dtype], nn.Module], dtype: torch.dtype, work: Work, named: Mapping[str, Layout]
) -> Iterator[Record]:
    """How far each layout's gradient in ``dtype`` is from that of padding in float32.

    In half precision every layout rounds differently, so the measure is padding's own distance: a layout passes that
    is not much further away, and that scores every token.
    """
    first = next(iter(named.values()))
    exact = build(torch.float32)
    train_step(exact, work, first)
    wanted = gradients(exact)
    model = build(dtype)
    noise = 0.0
    for name, layout in named.items():
        model.zero_grad(set_to_none=True)
        scored = int(train_step(model, work, layout)["scored"])
        difference = relative_difference(gradients(model), wanted)
        noise = noise or difference
        passed = scored == work.scored and difference <= max(1e-5, LAYOUT_NOISE * noise)
        yield {
            "figure": "exactness",
            "layout": name,
            "dtype": str(dtype),
            "scored": scored,
            "gradient_difference": difference,
            "passed": passed,
        }
