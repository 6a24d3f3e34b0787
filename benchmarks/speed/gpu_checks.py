"""What must hold on a GPU before a time means anything: kernels against float32, layouts against padding."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from benchmarks.shared import Record
from benchmarks.speed.layouts import Layout, train_step
from benchmarks.speed.workload import Work, gradients, relative_difference
from dppo.packing.kernels import Attend, Kernel, candidates
from dppo.packing.rows import Segments

KERNEL_TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5, torch.float64: 1e-12}
"""Largest relative difference to float32 attention, of the output and of each gradient."""
SEGMENTS = Segments(length_S=(150, 400, 1, 77, 130, 129, 513, 33), trunk_S=(-1, 0, 0, 0, -1, 4, 4, -1))
"""Two prompts with branches longer, shorter and much shorter than they are, and a sequence that stands alone."""
WINDOWS = (None, 128)
LAYOUT_NOISE = 2.0
"""How many times further from the float32 gradient than padding in the same dtype a layout may be."""


def exact_attention(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """Attention over segments from its definition: matrix product, mask of positions, softmax. Args as ``Attend``."""
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    starts = [sum(segments.length_S[:s]) for s in range(len(segments.length_S))]
    outputs = []
    for start, length, trunk in zip(starts, segments.length_S, segments.trunk_S, strict=True):
        own = list(range(start, start + length))
        before = [] if trunk < 0 else list(range(starts[trunk], starts[trunk] + segments.length_S[trunk]))
        seen = torch.tensor(before + own, device=query.device)
        key_position = torch.arange(len(seen), device=query.device)
        behind = key_position[len(before) :, None] - key_position[None]
        visible = (behind >= 0) & (behind < (len(seen) if window is None else window))
        score = query[:, :, own] @ key[:, :, seen].transpose(-1, -2) * factor
        outputs.append(score.masked_fill(~visible, float("-inf")).softmax(-1) @ value[:, :, seen])
    return torch.cat(outputs, 2)


def kernel_rows(
    device: torch.device, dtype: torch.dtype, heads: tuple[int, int], head_dim: int, kernels: list[Kernel] | None = None
) -> Iterator[Record]:
    """How far each kernel's output and gradients are from float32 attention, without and with a sliding window."""
    make = torch.Generator().manual_seed(0)
    shapes = [(1, count, SEGMENTS.total, head_dim) for count in (heads[0], heads[1], heads[1], heads[0])]
    tensors = [torch.randn(shape, generator=make).to(device, dtype) for shape in shapes]
    for window in WINDOWS:
        wanted = _output_and_gradients(exact_attention, [x.float() for x in tensors], window)
        for kernel in candidates(device, dtype) if kernels is None else kernels:
            row = {"figure": "kernel", "kernel": kernel.name, "window": window, "dtype": str(dtype)}
            errors: dict[str, float | None] = dict.fromkeys(("output", "dq", "dk", "dv"))
            try:
                found = _output_and_gradients(kernel.attend, tensors, window)
            except Exception as error:  # the table says why a kernel does not run here
                yield {**row, **errors, "passed": None, "reason": f"{type(error).__name__}: {error}"[:200]}
                continue
            for name, got, want in zip(errors, found, wanted, strict=True):
                errors[name] = relative_difference([got], [want])
            passed = all(error is not None and error <= KERNEL_TOLERANCE[dtype] for error in errors.values())
            yield {**row, **errors, "passed": passed, "reason": ""}


def _output_and_gradients(attend: Attend, tensors: list[Tensor], window: int | None) -> list[Tensor]:
    query, key, value = (x.detach().clone().requires_grad_() for x in tensors[:3])
    output = attend(query, key, value, SEGMENTS, None, window)
    return [output.detach(), *torch.autograd.grad(output, (query, key, value), tensors[3])]


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
