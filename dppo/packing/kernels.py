"""Attention over the segments of a row: what computes it, and how that is chosen.

A branch attends to its trunk and, causally, to itself. With fewer queries than keys the causal mask is aligned at the
*bottom right*: query ``i`` of ``n`` sees key ``j`` of ``t`` where ``j <= i + (t - n)``. Nested tensors and SDPA's
``is_causal`` align at the top left, which is silently wrong here, so every kernel is compared with plain SDPA before
it is used: outputs and gradients.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import dropwhile

import torch
from torch import Tensor
from torch.nn import functional as F

from dppo.errors import ConfigError
from dppo.packing.cuda_kernels import compiled_flex, flash3_varlen, flash_varlen, torch_varlen
from dppo.packing.rows import Segments
from dppo.packing.two_calls import in_two_calls
from dppo.packing.varlen_kernels import Flash2, Flash3, TorchVarlen

Attend = Callable[[Tensor, Tensor, Tensor, Segments, float | None, int | None], Tensor]
"""From query (1, H, T, D), key and value (1, Hkv, T, D), segments, scale (None: 1/sqrt(D)) and sliding window (tokens,
None: all) to (1, H, T, D). Hkv divides H."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A way to compute attention over segments."""

    name: str
    attend: Attend
    reason: str = ""
    """Why it was chosen, in words."""


def segment_sdpa(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """Attention by one SDPA call per segment: any device, any dtype, exact."""
    output_S = []
    for own_query, seen_key, seen_value in by_segment(query, key, value, segments):
        length, seen = own_query.shape[2], seen_key.shape[2]
        windowed = window is not None and seen > window
        causal = seen == length and length > 1 and not windowed
        mask = None if causal else _mask(segments, length, seen, window if windowed else None, query.device)
        output_S.append(
            F.scaled_dot_product_attention(
                own_query, seen_key, seen_value, attn_mask=mask, is_causal=causal, scale=scale
            )
        )
    return torch.cat(output_S, 2)


def by_segment(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each segment its queries, and the keys and values of its trunk and of itself, a head for each query's.

    Segments are cut with one ``split``: its backward is one operation, while that of a slice per segment makes a
    tensor of the row's length each time, which is quadratic in the row.
    """
    repeat = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeat, 1) if repeat > 1 else x for x in (key, value))
    query_S, key_S, value_S = (x.split(list(segments.length_S), 2) for x in (query, key, value))
    for s, trunk in enumerate(segments.trunk_S):
        if trunk < 0:
            yield query_S[s], key_S[s], value_S[s]
        else:
            yield query_S[s], torch.cat([key_S[trunk], key_S[s]], 2), torch.cat([value_S[trunk], value_S[s]], 2)


def _mask(segments: Segments, length: int, seen: int, window: int | None, device: torch.device) -> Tensor | None:
    """(length, seen) bool, True where attended, aligned at the bottom right; None where everything is.

    All masks of a row are corners of one triangle.
    """
    if length == 1 and window is None:
        return None
    longest = max(past + n for past, n in zip(segments.past_S, segments.length_S, strict=True))
    key = ("triangle", device, window)
    if key not in segments.memory:
        with torch.inference_mode(False):  # what is made under it could not be saved for a backward pass
            triangle = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
            segments.memory[key] = triangle if window is None else triangle.triu(1 - window)
    return segments.memory[key][seen - length : seen, :seen]


SEGMENT_SDPA = Kernel(name="sdpa per segment", attend=segment_sdpa, reason="works on any device and dtype")


def candidates(device: torch.device, dtype: torch.dtype) -> Iterator[Kernel]:
    """Kernels to try on ``device`` with ``dtype``, best first; ``SEGMENT_SDPA`` is the last of every list."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        yield Kernel(name="flash-attn 3 in two calls", attend=in_two_calls(Flash3(), flash3_varlen))
        yield Kernel(name="torch varlen in two calls", attend=in_two_calls(TorchVarlen(), torch_varlen))
        yield Kernel(name="flash-attn 2 in two calls", attend=in_two_calls(Flash2(), flash_varlen))
        yield Kernel(name="torch varlen", attend=torch_varlen)
        yield Kernel(name="flash-attn varlen", attend=flash_varlen)
        yield Kernel(name="flex", attend=compiled_flex)
    yield SEGMENT_SDPA


def choose_kernel(
    device: torch.device, dtype: torch.dtype, head_dim: int, *, heads: tuple[int, int] = (4, 2)
) -> Kernel:
    """The first kernel that agrees with plain SDPA on this device, with the reason in words."""
    passed_over = []
    for kernel in candidates(device, dtype):
        problem = probe(kernel, device, dtype, head_dim, heads=heads)
        if not problem and kernel is not SEGMENT_SDPA:  # which is what others are compared with
            problem = probe(kernel, device, dtype, head_dim, heads=heads, segments=LONGER, windows=(None, 100))
        if not problem:
            if kernel is SEGMENT_SDPA and not passed_over:
                return replace(kernel, reason=f"{device.type} and {str(dtype).removeprefix('torch.')}")
            return replace(kernel, reason="; ".join([*passed_over, "agrees with plain sdpa"]))
        passed_over.append(f"not {kernel.name}: {problem}")
    raise ConfigError(
        f"no attention kernel works on {device} with {dtype}: {'; '.join(passed_over)}. Set layout: padded."
    )


def kernels_after(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> tuple[Kernel, ...]:
    """Kernels to turn to, in order, where ``kernel`` fails on a model with shapes that were not probed."""
    following = dropwhile(lambda found: found.name != kernel.name, candidates(device, dtype))
    return tuple(following)[1:]


PROBED = Segments(length_S=(7, 5, 1, 9, 4, 3, 8, 12), trunk_S=(-1, -1, 0, 0, 0, 1, 1, -1))
"""Two trunks with branches of several lengths, and a sequence that stands alone."""
LONGER = Segments(length_S=(150, 90, 1, 200, 70, 80, 130, 300), trunk_S=(-1, -1, 0, 0, 0, 1, 1, -1))
"""The same over several blocks of keys, of which kernels take 64 or 128 at a time."""


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
    """What is wrong with ``kernel`` here, or "" if its output and gradients are those of float32 SDPA."""
    make = torch.Generator(device="cpu").manual_seed(0)

    def normal(count: int) -> Tensor:
        return torch.randn(1, count, segments.total, head_dim, generator=make).to(device, dtype)

    query, key, value, upstream = normal(heads[0]), normal(heads[1]), normal(heads[1]), normal(heads[0])
    tolerance = 4 * torch.finfo(dtype).eps
    for window in windows:
        try:
            found = _with_gradients(kernel.attend, (query, key, value), upstream, segments, window)
        except Exception as error:  # kernels say in every way there is that they do not run here
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
        exact = torch.promote_types(dtype, torch.float32)
        inputs = (query.to(exact), key.to(exact), value.to(exact))
        wanted = _with_gradients(segment_sdpa, inputs, upstream.to(exact), segments, window)
        for name, got, want in zip(("output", "dq", "dk", "dv"), found, wanted, strict=True):
            off = float((got.to(exact) - want).norm() / want.norm())
            if not off < tolerance:
                return f"its {name} is off by {off:.1e} (tolerance {tolerance:.0e}, window {window})"
    return ""


def _with_gradients(
    attend: Attend, inputs: tuple[Tensor, Tensor, Tensor], upstream: Tensor, segments: Segments, window: int | None
) -> tuple[Tensor, ...]:
    """Output and the gradients of query, key and value, for a given gradient of the output."""
    query, key, value = (x.detach().requires_grad_() for x in inputs)
    with torch.enable_grad():
        output = attend(query, key, value, segments, None, window)
        return (output.detach(), *torch.autograd.grad(output, (query, key, value), upstream))
