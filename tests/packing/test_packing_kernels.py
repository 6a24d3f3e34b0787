"""Kernels are probed before use. The variable-length ones need CUDA: a stand-in computes each sequence by itself."""

import types

import pytest
import torch
from packing_varlen import pieces_of
from torch.nn import functional as F
from torch.nn.attention import varlen
from torch.nn.attention.flex_attention import flex_attention

from dppo.packing import cuda_kernels, kernels
from dppo.packing.cuda_kernels import flash_varlen
from dppo.packing.kernels import SEGMENT_SDPA, Kernel, kernels_for, probe, segment_sdpa
from dppo.packing.rows import Segments
from dppo.packing.two_calls import Pieces

CPU = torch.device("cpu")
CONFIG = types.SimpleNamespace(num_attention_heads=4, num_key_value_heads=2, head_dim=16)
TORCH_VARLEN = Kernel(name="torch varlen", attend=cuda_kernels.torch_varlen)
FORKED = Segments(length_S=(7, 1, 9, 4, 12), trunk_S=(-1, 0, 0, 0, -1))
ALONE = Segments(length_S=FORKED.length_S, trunk_S=(-1,) * 5)


def stand_in(aligned_right=True):
    """``varlen_attn`` as documented; ``aligned_right=False`` is its wrong twin, aligned at the top left."""

    def varlen_attn(q, k, v, cu_q, cu_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False):
        assert type(max_q) is type(max_k) is int
        assert q.is_contiguous() and k.is_contiguous() and v.is_contiguous()
        assert enable_gqa or q.shape[1] == k.shape[1]
        outputs = []
        for queries, keys in pieces_of(Pieces(cu_q, cu_k, max_q, max_k)):
            query, key, value = (x.transpose(0, 1)[None] for x in (q[queries], k[keys], v[keys]))
            key, value = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (key, value))
            past = key.shape[2] - query.shape[2] if aligned_right else 0
            ahead = torch.arange(key.shape[2]) - torch.arange(query.shape[2])[:, None] - past
            mask = ahead <= window_size[1]
            if window_size[0] >= 0:
                mask &= ahead >= -window_size[0]
            outputs.append(F.scaled_dot_product_attention(query, key, value, mask, scale=scale)[0].transpose(0, 1))
        return torch.cat(outputs)

    return varlen_attn


def query_key_value(segments):
    return [torch.randn(1, heads, segments.total, 16) for heads in (4, 2, 2)]


@pytest.mark.parametrize("heads, kv_heads, head_dim", [(4, 2, 16), (4, 4, 8), (6, 1, 10)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_torch_varlen_gets_what_it_documents(heads, kv_heads, head_dim, dtype, monkeypatch):
    monkeypatch.setattr(varlen, "varlen_attn", stand_in())
    assert probe(TORCH_VARLEN, CPU, dtype, head_dim, heads=(heads, kv_heads)) == ""
    monkeypatch.setattr(varlen, "varlen_attn", stand_in(aligned_right=False))
    assert "its output is off by" in probe(TORCH_VARLEN, CPU, dtype, head_dim, heads=(heads, kv_heads))


def test_a_varlen_without_grouped_heads_gets_one_for_every_query(monkeypatch):
    def of_2_11(q, k, v, cu_q, cu_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
        return stand_in()(q, k, v, cu_q, cu_k, max_q, max_k, scale=scale, window_size=window_size)

    monkeypatch.setattr(varlen, "varlen_attn", of_2_11)
    assert probe(TORCH_VARLEN, CPU, torch.float32, 16) == ""


def test_flash_attn_gets_what_it_documents(flash):
    def function(*given, softmax_scale, window_size, causal):
        assert causal
        return stand_in()(*given, scale=softmax_scale, window_size=window_size, enable_gqa=True)

    kernel = Kernel(name="flash", attend=flash_varlen(2))
    flash(flash_attn_varlen_func=function)
    assert probe(kernel, CPU, torch.float32, 16) == ""
    flash()  # a version without the function
    assert "flash_attn_varlen_func" in probe(kernel, CPU, torch.float32, 16)


def test_rows_without_a_trunk_are_not_gathered(monkeypatch):
    inputs = query_key_value(ALONE)
    monkeypatch.setattr(varlen, "varlen_attn", stand_in())
    monkeypatch.setattr(torch.Tensor, "index_select", lambda *_: pytest.fail("gathered"))
    found = cuda_kernels.torch_varlen(*inputs, ALONE, None, None)
    torch.testing.assert_close(found, segment_sdpa(*inputs, ALONE, None, None))


@pytest.mark.parametrize("window", [None, 5])
def test_the_block_mask_is_that_of_the_segments(window, monkeypatch):
    """Flex attention without its compiler, forward only: that is what a CPU has."""
    monkeypatch.setattr(cuda_kernels, "_compiled_flex", lambda: flex_attention)
    inputs = query_key_value(FORKED)
    with torch.no_grad():
        found = cuda_kernels.compiled_flex(*inputs, FORKED, None, window)
    torch.testing.assert_close(found, segment_sdpa(*inputs, FORKED, None, window))
    assert (found - segment_sdpa(*inputs, ALONE, None, window)).abs().max() > 0.1


def test_what_is_derived_in_inference_serves_training(monkeypatch):
    monkeypatch.setattr(varlen, "varlen_attn", stand_in())
    for attend in (cuda_kernels.torch_varlen, segment_sdpa):
        segments = Segments(length_S=FORKED.length_S, trunk_S=FORKED.trunk_S)
        query, key, value = query_key_value(segments)
        with torch.inference_mode():
            attend(query, key, value, segments, None, None)
        leaf = key.clone().requires_grad_()
        attend(query, leaf, value, segments, None, None).sum().backward()
        assert leaf.grad is not None


def raising(error):
    def attend(*_):
        raise error

    return attend


def wrong_beyond_the_first_block_of_keys(*inputs):
    """A probe of 33 tokens cannot see it."""
    found = segment_sdpa(*inputs)
    return found * (1 + (torch.arange(found.shape[2]) >= 64)[:, None])


PASSED_OVER = {
    "AssertionError": raising(AssertionError("only Hopper")),
    "AttributeError": raising(AttributeError("no such function")),
    "RuntimeError": raising(RuntimeError()),
    "its output is off": wrong_beyond_the_first_block_of_keys,
}


@pytest.mark.parametrize("reason", PASSED_OVER)
def test_a_kernel_that_fails_is_passed_over_and_the_reason_said(reason, monkeypatch):
    failing = Kernel(name="failing", attend=PASSED_OVER[reason])
    for others in ([SEGMENT_SDPA], [Kernel(name="next", attend=segment_sdpa), SEGMENT_SDPA]):
        monkeypatch.setattr(kernels, "candidates", lambda *_, others=others: iter([failing, *others]))
        first, *rest = kernels_for(CONFIG, CPU, torch.float32)
        assert first.name == others[0].name and f"not failing: {reason}" in first.reason and rest == others[1:]


def test_cuda_in_half_precision_tries_the_fast_ones_first():
    names = [kernel.name for kernel in kernels.candidates(torch.device("cuda"), torch.bfloat16)]
    two_calls = [f"{name} in two calls" for name in ("flash-attn 3", "torch varlen", "flash-attn 2")]
    assert names == [*two_calls, "torch varlen", "flash-attn varlen", "flex", "sdpa per segment"]
    assert [kernel.name for kernel in kernels.candidates(torch.device("cuda"), torch.float32)] == names[-1:]
