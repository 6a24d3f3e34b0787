"""Kernels for attention over the segments of a row, and the choice among them.

A branch attends to its trunk and, causally, to itself. With fewer queries than keys the causal mask is aligned at the
*bottom right*: query ``i`` of ``n`` sees key ``j`` of ``t`` if ``j <= i + (t - n)``. Nested tensors and SDPA's
``is_causal`` align at the top left, which is silently wrong here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dppo.errors import ConfigError, first_line
from dppo.packing.cuda_kernels import CUDA_KERNELS
from dppo.packing.rows import Attend, Segments, once_per_row


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A way to compute attention over segments."""

    name: str
    attend: Attend
    reason: str = ""
    """The reason for its choice, for the printed line."""


def segment_sdpa(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """Attention by one SDPA call per segment: any device, any dtype, exact."""
    output_S = []
    for q, k, v in by_segment(query, key, value, segments):
        length, seen = q.shape[2], k.shape[2]
        reach = window if window is not None and seen > window else None
        causal = seen == length and length > 1 and reach is None
        mask = None
        if not causal and (length > 1 or reach is not None):  # a corner of the triangle, aligned at the bottom right
            mask = _triangle(segments, reach, query.device)[seen - length : seen, :seen]
        output_S.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale))
    return torch.cat(output_S, 2)


def by_segment(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each segment its queries, and the keys and values of its trunk and of itself, repeated to H heads.

    One ``split`` cuts all: the backward of a slice per segment makes a tensor of the row's length each time.
    """
    repeat = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeat, 1) if repeat > 1 else x for x in (k, v))
    q_S, k_S, v_S = (x.split(list(segments.length_S), 2) for x in (q, k, v))
    for s, trunk in enumerate(segments.trunk_S):
        if trunk < 0:
            yield q_S[s], k_S[s], v_S[s]
        else:
            yield q_S[s], torch.cat([k_S[trunk], k_S[s]], 2), torch.cat([v_S[trunk], v_S[s]], 2)


@once_per_row
def _triangle(segments: Segments, window: int | None, device: torch.device) -> Tensor:
    """(longest, longest) bool, True where attended: all masks of a row are parts of it."""
    longest = max(past + n for past, n in zip(segments.past_S, segments.length_S, strict=True))
    triangle = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
    return triangle if window is None else triangle.triu(1 - window)


SEGMENT_SDPA = Kernel(name="sdpa per segment", attend=segment_sdpa, reason="works on any device and dtype")


def candidates(device: torch.device, dtype: torch.dtype) -> Iterator[Kernel]:
    """Kernels to try on ``device`` with ``dtype``, best first; ``SEGMENT_SDPA`` is the last of every list."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        yield from (Kernel(name=name, attend=attend) for name, attend in CUDA_KERNELS.items())
    yield SEGMENT_SDPA


def choose_kernel(
    device: torch.device, dtype: torch.dtype, head_dim: int, *, heads: tuple[int, int] = (4, 2)
) -> Kernel:
    """The first kernel that agrees with plain SDPA on this device, with the reason.

    Raises:
        ConfigError: none does.
    """
    passed_over = []
    for kernel in candidates(device, dtype):
        plain = kernel is SEGMENT_SDPA  # the others are compared with it
        problem = probe(kernel, device, dtype, head_dim, heads=heads)
        if not problem and not plain:
            problem = probe(kernel, device, dtype, head_dim, heads=heads, segments=LONGER, windows=(None, 100))
        if not problem:
            alone = plain and not passed_over
            reason = f"{device.type} and {str(dtype).removeprefix('torch.')}" if alone else "agrees with plain sdpa"
            return replace(kernel, reason="; ".join([*passed_over, reason]))
        passed_over.append(f"not {kernel.name}: {problem}")
    raise ConfigError(
        f"no attention kernel works on {device} with {dtype}: {'; '.join(passed_over)}. Set layout: padded."
    )


def kernels_for(config: Any, device: torch.device, dtype: torch.dtype) -> tuple[Kernel, ...]:
    """The kernel for a model with this configuration, and those to try if it fails on shapes that were not probed."""
    heads = int(config.num_attention_heads)
    grouped = (heads, int(getattr(config, "num_key_value_heads", None) or heads))
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    kernel = choose_kernel(device, dtype, head_dim, heads=grouped)
    _, *others = dropwhile(lambda found: found.name != kernel.name, candidates(device, dtype))
    return (kernel, *others)


def first_passing(
    kernels: Sequence[Kernel], problem_of: Callable[[Kernel], str], anywhere: Callable[[bool], bool]
) -> tuple[Kernel | None, str]:
    """The first kernel without a problem on any rank; or None, and the problems of all.

    ``problem_of`` gives "" for no problem. ``anywhere`` is True if its argument is True on some rank: all call it.
    """
    problems: list[str] = []
    for kernel in kernels:
        problem = problem_of(kernel)
        if not anywhere(bool(problem)):
            return (replace(kernel, reason=f"not {'; not '.join(problems)}") if problems else kernel), ""
        problems.append(f"{kernel.name}: {problem or 'passed here, but not on every rank'}")
    return None, "; ".join(problems)


PROBED = Segments(length_S=(7, 5, 1, 9, 4, 3, 8, 12), trunk_S=(-1, -1, 0, 0, 0, 1, 1, -1))
"""Two trunks with branches of several lengths, and a sequence that stands alone."""
LONGER = Segments(length_S=(150, 90, 1, 200, 70, 80, 130, 300), trunk_S=(-1, -1, 0, 0, 0, 1, 1, -1))
"""The same with segments of several blocks of keys: kernels take 64 or 128 keys at a time."""


def probe(
    kernel: Kernel,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    *,
    heads: tuple[int, int] = (4, 2),
    segments: Segments = PROBED,
    windows: tuple[int | None, ...] = (None, 5),
) -> str:
    """The problem of ``kernel`` here, or "" if its output and gradients are those of float32 SDPA."""
    make = torch.Generator(device="cpu").manual_seed(0)
    shapes = [(1, count, segments.total, head_dim) for count in (heads[0], heads[1], heads[1], heads[0])]
    *inputs, upstream = (torch.randn(shape, generator=make).to(device, dtype) for shape in shapes)
    exact, tolerance = torch.promote_types(dtype, torch.float32), 4 * torch.finfo(dtype).eps
    for window in windows:
        try:
            found = _with_gradients(kernel.attend, inputs, upstream, segments, window)
        except Exception as error:  # a kernel that does not run here may raise anything
            return f"{type(error).__name__}: {first_line(error)}"
        wanted = _with_gradients(segment_sdpa, [x.to(exact) for x in inputs], upstream.to(exact), segments, window)
        for name, got, want in zip(("output", "dq", "dk", "dv"), found, wanted, strict=True):
            off = float((got.to(exact) - want).norm() / want.norm())
            if not off < tolerance:
                return f"its {name} is off by {off:.1e} (tolerance {tolerance:.0e}, window {window})"
    return ""


def _with_gradients(
    attend: Attend, inputs: list[Tensor], upstream: Tensor, segments: Segments, window: int | None
) -> tuple[Tensor, ...]:
    """Output, and gradients of query, key and value."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    with torch.enable_grad():
        output = attend(leaves[0], leaves[1], leaves[2], segments, None, window)
        return (output.detach(), *torch.autograd.grad(output, leaves, upstream))
