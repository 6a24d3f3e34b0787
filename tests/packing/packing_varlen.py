"""Stand-ins for variable-length kernels, in any precision: both passes written out as flash kernels document them."""

import torch

from dppo.packing.two_calls import Call, Pieces


def scores(query, key, causal, scale):
    """(H, queries, keys) scaled scores of one piece, -inf where a causal mask hides the key."""
    found = scale * torch.einsum("qhd,khd->hqk", query, key)
    if causal:
        hidden = torch.ones(found.shape[1:], dtype=torch.bool).triu(1 + found.shape[2] - found.shape[1])
        found = found.masked_fill(hidden, -torch.inf)
    return found


def pieces_of(pieces):
    """Slices of queries and of keys."""
    assert pieces.cu_seqlens_q.dtype == pieces.cu_seqlens_k.dtype == torch.int32
    queries, keys = pieces.cu_seqlens_q.tolist(), pieces.cu_seqlens_k.tolist()
    for a, b, c, d in zip(queries, queries[1:], keys, keys[1:], strict=False):
        assert b - a <= pieces.max_seqlen_q and d - c <= pieces.max_seqlen_k
        yield slice(a, b), slice(c, d)


class Exact:
    """Right in both passes, with sums in float32 or more; remembers what it was given."""

    def __init__(self):
        self.calls = []

    def forward(self, query, key, value, call):
        pieces, causal, scale = call
        self.calls.append((query, key, value, causal))
        assert query.is_contiguous() and key.is_contiguous() and value.is_contiguous()
        repeat, exact = query.shape[1] // key.shape[1], torch.promote_types(query.dtype, torch.float32)
        output, lse = torch.empty_like(query), query.new_empty(query.shape[1], len(query), dtype=exact)
        for q, k in pieces_of(pieces):
            every_key, every_value = (x[k].to(exact).repeat_interleave(repeat, 1) for x in (key, value))
            piece = scores(query[q].to(exact), every_key, causal, scale)
            lse[:, q] = piece.logsumexp(-1)
            output[q] = torch.einsum("hqk,khd->qhd", piece.softmax(-1), every_value).to(output.dtype)
        return output, lse

    def backward(self, grad, saved, call):
        (query, key, value, output, lse), (pieces, causal, scale) = saved, call
        assert all(x.is_contiguous() for x in (grad, *saved))
        repeat, found = query.shape[1] // key.shape[1], [torch.empty_like(x) for x in (query, key, value)]
        for q, k in pieces_of(pieces):
            every_key, every_value = (x[k].to(lse.dtype).repeat_interleave(repeat, 1) for x in (key, value))
            queries, grads, outputs = (x[q].to(lse.dtype) for x in (query, grad, output))
            share = (scores(queries, every_key, causal, scale) - lse[:, q, None]).exp()
            mean = (grads * outputs).sum(-1).T[..., None]
            slope = scale * share * (torch.einsum("qhd,khd->hqk", grads, every_value) - mean)
            dk, dv = torch.einsum("hqk,qhd->khd", slope, queries), torch.einsum("hqk,qhd->khd", share, grads)
            parts = (
                torch.einsum("hqk,khd->qhd", slope, every_key),
                *(x.unflatten(1, (-1, repeat)).sum(2) for x in (dk, dv)),
            )
            for into, place, part in zip(found, (q, k, k), parts, strict=True):
                into[place] = part.to(into.dtype)
        return found


class OwnSums(Exact):
    """The wrong twin: its backward takes output and log-sum-exp of its own call, as a kernel's autograd does."""

    def backward(self, grad, saved, call):
        inputs = saved[:3]
        return super().backward(grad, (*inputs, *self.forward(*inputs, call)), call)


EXACT = Exact()


# Functions of torch, flash-attn 2 and flash-attn 3, with the parameters that they need or are given here.


def aten_forward(
    query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *, scale
):
    assert dropout_p == 0 and not return_debug_mask
    call = Call(Pieces(cum_seq_q, cum_seq_k, max_q, max_k), is_causal, scale)
    return *EXACT.forward(query, key, value, call), None, None, None


def aten_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, rng_state,
    unused, *, scale,
):  # fmt: skip
    assert dropout_p == 0 and rng_state.shape == (2,)
    call = Call(Pieces(cum_seq_q, cum_seq_k, max_q, max_k), is_causal, scale)
    return EXACT.backward(grad_out, (query, key, value, out, logsumexp), call)


def flash2_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal):
    assert dropout_p == 0
    pieces = Pieces(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return *EXACT.forward(q, k, v, Call(pieces, causal, softmax_scale)), None, None


def flash2_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
    softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, deterministic,
):  # fmt: skip
    assert dropout_p == 0 and window_size_left == window_size_right == -1 and not softcap and alibi_slopes is None
    pieces = Pieces(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    found = EXACT.backward(dout, (q, k, v, out, softmax_lse), Call(pieces, causal, softmax_scale))
    for into, gradient in zip((dq, dk, dv), found, strict=True):
        into.copy_(gradient)


def flash3_forward(q, k, v, *, softmax_scale, causal, **pieces):
    return *EXACT.forward(q, k, v, Call(Pieces(**pieces), causal, softmax_scale)), None, None


def flash3_backward(dout, q, k, v, out, softmax_lse, *, dq, dk, dv, softmax_scale, is_causal, **pieces):
    options = (0.0, softmax_scale, is_causal, -1, -1, 0.0, None, False)
    flash2_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, *Pieces(**pieces), *options)
