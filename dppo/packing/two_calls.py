"""Attention over rows in two calls of a variable-length kernel, without copies of keys.

Rows lie as all trunks, then all branches. Call A is causal, of every segment on itself. Call B is not causal, of the
branches of each trunk on that trunk. A branch's output is the mean of both, weighted by their sums of exponentials:

    lse = log(exp(lse_A) + exp(lse_B)),    out = exp(lse_A - lse) out_A + exp(lse_B - lse) out_B

The kernel's own backward makes probabilities of scores by a log-sum-exp that it is given. Both calls are given the
merged output and log-sum-exp, as ring attention does, so their gradients add up to the exact one. A kernel's own
autograd would take those of its single call: it ignores the gradient through the log-sum-exp.

Source: the merging of blocks is that of Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for
Near-Infinite Context" (2023); the backward is Algorithm 2 of Dao, "FlashAttention-2" (2023).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dppo.errors import ShapeError
from dppo.packing.rows import Segments


class Pieces(NamedTuple):
    """Which consecutive queries see which consecutive keys, as variable-length kernels want it."""

    query_ends: Tensor
    """(N + 1,) int32 cumulative queries, beginning with 0."""
    key_ends: Tensor
    """(N + 1,) int32 cumulative keys, beginning with 0."""
    most_queries: int
    most_keys: int


class Varlen(Protocol):
    """A variable-length attention kernel with both of its passes.

    Queries and outputs are (T, H, D), keys and values (K, Hkv, D), log-sum-exps (H, T) float32 or more. A causal call
    has as many queries as keys in each piece.
    """

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, pieces: Pieces, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Output, and the natural log-sum-exp of the scaled scores of each query."""
        ...

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        lse: Tensor,
        pieces: Pieces,
        *,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value, with probabilities by the ``output`` and ``lse`` given."""
        ...


@dataclass(frozen=True)
class Calls:
    """The two calls of one row."""

    trunks: int
    """Tokens of all trunks, with which the row begins."""
    branches: int
    """Tokens of all branches, which come next."""
    own: Pieces
    """Every segment on itself."""
    across: Pieces
    """The branches of each trunk on it."""

    @property
    def shared(self) -> slice:
        """The keys of call B."""
        return slice(0, self.trunks)

    @property
    def forked(self) -> slice:
        """The queries of call B."""
        return slice(self.trunks, self.trunks + self.branches)


@torch.inference_mode(False)  # tensors made under it could not be saved for a backward pass
def two_calls(segments: Segments, device: torch.device) -> Calls:
    """The calls for ``segments`` on ``device``; made once per row.

    Raises:
        ShapeError: segments do not lie as trunks, then branches in the order of their trunks, then others.
    """
    if (found := segments.memory.get(("two calls", device))) is not None:
        return found
    length, parents = segments.length_S, [trunk for trunk in segments.trunk_S if trunk >= 0]
    trunks = sorted(set(parents))
    first = len(trunks)
    if trunks != list(range(first)) or list(segments.trunk_S[first : first + len(parents)]) != sorted(parents):
        raise ShapeError(
            f"trunk_S={segments.trunk_S!s:.60}: a row in two calls lies as trunks, branches in the order of their "
            "trunks, then segments of their own. Build it with build_row."
        )
    branches = length[first : first + len(parents)]
    forked = [sum(n for _, n in same) for _, same in groupby(zip(parents, branches, strict=True), lambda pair: pair[0])]
    calls = Calls(
        sum(length[:first]), sum(branches), _pieces(length, length, device), _pieces(forked, length[:first], device)
    )
    segments.memory["two calls", device] = calls
    return calls


def _pieces(queries: Sequence[int], keys: Sequence[int], device: torch.device) -> Pieces:
    ends = [
        torch.tensor([0, *counts]).cumsum(0).to(device, torch.int32, non_blocking=True) for counts in (queries, keys)
    ]
    return Pieces(ends[0], ends[1], max(queries, default=0), max(keys, default=0))


class _TwoCalls(torch.autograd.Function):
    """(T, H, D) attention of a row in which prompts are shared."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, kernel: Varlen, calls: Calls, scale: float
    ) -> Tensor:
        output, lse = kernel.forward(query, key, value, calls.own, causal=True, scale=scale)
        there, here = calls.shared, calls.forked
        seen, seen_lse = kernel.forward(query[here], key[there], value[there], calls.across, causal=False, scale=scale)
        output[here], lse[:, here] = merged(output[here], lse[:, here], seen, seen_lse)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.kernel, ctx.calls, ctx.scale = kernel, calls, scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, output, lse = ctx.saved_tensors
        kernel, calls, scale = ctx.kernel, ctx.calls, ctx.scale
        there, here, grad = calls.shared, calls.forked, grad.contiguous()
        dq, dk, dv = kernel.backward(grad, query, key, value, output, lse, calls.own, causal=True, scale=scale)
        more_q, more_k, more_v = kernel.backward(
            grad[here], query[here], key[there], value[there], output[here], lse[:, here].contiguous(), calls.across,
            causal=False, scale=scale,
        )  # fmt: skip
        dq[here] += more_q
        dk[there] += more_k
        dv[there] += more_v
        return dq, dk, dv, None, None, None


def merged(output: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Output (T, H, D) and log-sum-exp (H, T) of the same queries over two disjoint sets of keys."""
    both = torch.logaddexp(lse, other_lse)
    share, rest = ((each - both).exp().T[..., None] for each in (lse, other_lse))
    return (share * output + rest * other).to(output.dtype), both


def in_two_calls(kernel: Varlen, gathering: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Attention as of ``kernels.Attend``: two calls of ``kernel``, or one of ``gathering`` if they do not serve.

    That is a sliding window, which cuts through trunks, and a row in which no prompt is shared.
    """

    def attend(
        query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
    ) -> Tensor:
        if window is not None or max(segments.trunk_S) < 0:
            return gathering(query, key, value, segments, scale, window)
        query, key, value = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        output: Any = _TwoCalls.apply(query, key, value, kernel, two_calls(segments, query.device), scale)
        return output.transpose(0, 1)[None]

    return attend
