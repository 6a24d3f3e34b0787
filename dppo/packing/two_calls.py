"""Attention over rows in two calls of a variable-length kernel, without copies of keys.

Call A is causal, of every segment on itself. Call B is not causal, of the branches of each trunk on that trunk. A
branch's output is the mean of both, weighted by their sums of exponentials:

    lse = log(exp(lse_A) + exp(lse_B)),    out = exp(lse_A - lse) out_A + exp(lse_B - lse) out_B

Both backward calls are given the merged output and log-sum-exp, so their gradients add up to the exact one. A kernel's
own autograd would ignore the gradient through the log-sum-exp.

Source: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context" (2023); the
    backward is Algorithm 2 of Dao, "FlashAttention-2" (2023).
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dppo.errors import ShapeError
from dppo.packing.rows import Attend, Segments, once_per_row


class Pieces(NamedTuple):
    """Consecutive queries and the consecutive keys that they see, by the argument names of flash-attn."""

    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    """(N + 1,) int32 cumulative queries, and cumulative keys, each beginning with 0."""
    max_seqlen_q: int
    max_seqlen_k: int

    @classmethod
    def of_counts(cls, queries: Sequence[int], keys: Sequence[int], device: torch.device) -> "Pieces":
        ends = [torch.tensor([0, *n]).cumsum(0).to(device, torch.int32, non_blocking=True) for n in (queries, keys)]
        return cls(ends[0], ends[1], max(queries, default=0), max(keys, default=0))


class Call(NamedTuple):
    """One call of a kernel, whose scores are multiplied by ``scale``."""

    pieces: Pieces
    causal: bool
    scale: float


class Varlen(Protocol):
    """A variable-length attention kernel with both of its passes.

    ``forward`` gives the output, and the natural log-sum-exp of the scaled scores of each query. ``backward`` gives the
    gradients of query, key and value; ``saved`` is these three, and the output and log-sum-exp to use.

    Queries and outputs are (T, H, D), keys and values (K, Hkv, D), log-sum-exps (H, T) float32 or more. A causal call
    has as many queries as keys in each piece.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> tuple[Tensor, Tensor]: ...

    def backward(self, grad: Tensor, saved: Sequence[Tensor], call: Call) -> Sequence[Tensor]: ...


class Calls(NamedTuple):
    """The two calls of one row."""

    shared: slice
    """All trunks, with which the row begins: the keys of call B."""
    forked: slice
    """All branches, which come next: the queries of call B."""
    own: Pieces
    """Call A: every segment on itself."""
    across: Pieces
    """Call B: the branches of each trunk on it."""


@once_per_row
def two_calls(segments: Segments, device: torch.device) -> Calls:
    """The calls for ``segments`` on ``device``.

    Raises:
        ShapeError: segments do not lie as trunks, then branches in the order of their trunks, then others.
    """
    length, parents = segments.length_S, [trunk for trunk in segments.trunk_S if trunk >= 0]
    first = len(set(parents))
    last = first + len(parents)
    if set(parents) != set(range(first)) or list(segments.trunk_S[first:last]) != sorted(parents):
        raise ShapeError(
            f"trunk_S={segments.trunk_S!s:.60}: a row in two calls lies as trunks, branches in the order of their "
            "trunks, then segments of their own. Build it with build_row."
        )
    pairs = zip(parents, length[first:last], strict=True)
    forked = [sum(tokens for _, tokens in same) for _, same in groupby(pairs, lambda pair: pair[0])]
    trunks = sum(length[:first])
    return Calls(
        shared=slice(0, trunks),
        forked=slice(trunks, trunks + sum(forked)),
        own=Pieces.of_counts(length, length, device),
        across=Pieces.of_counts(forked, length[:first], device),
    )


class _TwoCalls(torch.autograd.Function):
    """(T, H, D) attention of a row in which prompts are shared."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, kernel: Varlen, calls: Calls, scale: float) -> Tensor:
        output, lse = kernel.forward(q, k, v, Call(calls.own, True, scale))
        there, here = calls.shared, calls.forked
        other = kernel.forward(q[here], k[there], v[there], Call(calls.across, False, scale))
        output[here], lse[:, here] = merged(output[here], lse[:, here], *other)
        ctx.save_for_backward(q, k, v, output, lse)
        ctx.kernel, ctx.calls, ctx.scale = kernel, calls, scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        saved = q, k, v, output, lse = ctx.saved_tensors  # read once: with checkpointing a second time is an error
        kernel, calls, scale = ctx.kernel, ctx.calls, ctx.scale
        there, here, grad = calls.shared, calls.forked, grad.contiguous()
        dq, dk, dv = kernel.backward(grad, saved, Call(calls.own, True, scale))
        part = q[here], k[there], v[there], output[here], lse[:, here].contiguous()
        more_q, more_k, more_v = kernel.backward(grad[here], part, Call(calls.across, False, scale))
        dq[here] += more_q
        dk[there] += more_k
        dv[there] += more_v
        return dq, dk, dv, None, None, None


def merged(output: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Output (T, H, D) and log-sum-exp (H, T) of the same queries over two disjoint sets of keys."""
    both = torch.logaddexp(lse, other_lse)
    share, rest = ((each - both).exp().T[..., None] for each in (lse, other_lse))
    return (share * output + rest * other).to(output.dtype), both


def in_two_calls(kernel: Varlen, gathering: Attend) -> Attend:
    """Attention in two calls of ``kernel``, or in one of ``gathering`` if two calls do not serve.

    They do not serve a sliding window, which cuts through trunks, and a row in which no prompt is shared.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scale: float | None, window: int | None) -> Tensor:
        if window is not None or max(segments.trunk_S) < 0:
            return gathering(q, k, v, segments, scale, window)
        q, k, v = (x[0].transpose(0, 1).contiguous() for x in (q, k, v))
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        output: Any = _TwoCalls.apply(q, k, v, kernel, two_calls(segments, q.device), scale)
        return output.transpose(0, 1)[None]

    return attend
