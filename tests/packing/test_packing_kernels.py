"""Kernels are probed before use. The variable-length ones need CUDA: a stand-in computes each sequence by itself."""

import types

import pytest
import torch
from packing_models import SIZE, build, prepare_rows
from packing_varlen import pieces_of
from torch.nn import functional as F
from torch.nn.attention import varlen
from torch.nn.attention.flex_attention import flex_attention
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

from dppo.packing import cuda_kernels, kernels
from dppo.packing.attention import leave_rows, use_rows
from dppo.packing.check import check_rows
from dppo.packing.cuda_kernels import flash_varlen
from dppo.packing.kernels import SEGMENT_SDPA, Kernel, choose_kernel, kernels_for, probe, segment_sdpa
from dppo.packing.rows import Segments
from dppo.packing.two_calls import Pieces

CPU = torch.device("cpu")
CONFIG = types.SimpleNamespace(num_attention_heads=4, num_key_value_heads=2, head_dim=16)
SHAPES = [(4, 2, 16), (4, 4, 8), (6, 1, 10)]


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


@pytest.mark.parametrize("heads, kv_heads, head_dim", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_torch_varlen_gets_what_it_documents(heads, kv_heads, head_dim, dtype, monkeypatch):
    kernel = Kernel(name="torch varlen", attend=cuda_kernels.torch_varlen)
    monkeypatch.setattr(varlen, "varlen_attn", stand_in())
    assert probe(kernel, CPU, dtype, head_dim, heads=(heads, kv_heads)) == ""
    monkeypatch.setattr(varlen, "varlen_attn", stand_in(aligned_right=False))
    assert "its output is off by" in probe(kernel, CPU, dtype, head_dim, heads=(heads, kv_heads))


def test_a_varlen_without_grouped_heads_gets_one_for_every_query(monkeypatch):
    now = stand_in()

    def of_2_11(q, k, v, cu_q, cu_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
        return now(q, k, v, cu_q, cu_k, max_q, max_k, scale=scale, window_size=window_size)

    monkeypatch.setattr(varlen, "varlen_attn", of_2_11)
    assert probe(Kernel(name="torch varlen", attend=cuda_kernels.torch_varlen), CPU, torch.float32, 16) == ""


def test_flash_attn_gets_what_it_documents(flash):
    def function(q, k, v, cu_q, cu_k, max_q, max_k, *, softmax_scale, window_size, causal):
        assert causal
        return stand_in()(
            q, k, v, cu_q, cu_k, max_q, max_k, scale=softmax_scale, window_size=window_size, enable_gqa=True
        )

    flash(flash_attn_varlen_func=function)
    assert probe(Kernel(name="flash", attend=flash_varlen(2)), CPU, torch.float32, 16) == ""
    flash()  # a version without the function
    assert "flash_attn_varlen_func" in probe(Kernel(name="flash", attend=flash_varlen(2)), CPU, torch.float32, 16)


def test_rows_without_a_trunk_are_not_gathered(monkeypatch):
    segments = Segments(length_S=(5, 3), trunk_S=(-1, -1))
    query, key, value = (torch.randn(1, heads, 8, 16) for heads in (4, 2, 2))
    monkeypatch.setattr(varlen, "varlen_attn", stand_in())
    monkeypatch.setattr(torch.Tensor, "index_select", lambda *_: pytest.fail("gathered"))
    found = cuda_kernels.torch_varlen(query, key, value, segments, None, None)
    torch.testing.assert_close(found, segment_sdpa(query, key, value, segments, None, None))


@pytest.mark.parametrize("window", [None, 5])
def test_the_block_mask_is_that_of_the_segments(window, monkeypatch):
    """Flex attention without its compiler, forward only: that is what a CPU has."""
    monkeypatch.setattr(cuda_kernels, "_compiled_flex", lambda: flex_attention)
    segments = Segments(length_S=(7, 1, 9, 4, 12), trunk_S=(-1, 0, 0, 0, -1))
    query, key, value = (torch.randn(1, heads, segments.total, 16) for heads in (4, 2, 2))
    with torch.no_grad():
        found = cuda_kernels.compiled_flex(query, key, value, segments, None, window)
    torch.testing.assert_close(found, segment_sdpa(query, key, value, segments, None, window))
    unrelated = Segments(length_S=segments.length_S, trunk_S=(-1,) * 5)
    assert (found - segment_sdpa(query, key, value, unrelated, None, window)).abs().max() > 0.1


def test_what_is_derived_in_inference_serves_training(monkeypatch):
    monkeypatch.setattr(varlen, "varlen_attn", stand_in())
    segments = Segments(length_S=(7, 3, 9), trunk_S=(-1, 0, 0))
    query, key, value = (torch.randn(1, 2, segments.total, 8) for _ in range(3))
    for attend in (cuda_kernels.torch_varlen, segment_sdpa):
        with torch.inference_mode():
            attend(query, key, value, segments, None, None)
        leaf = key.clone().requires_grad_()
        attend(query, leaf, value, segments, None, None).sum().backward()
        assert leaf.grad is not None


def broken(error):
    def attend(*_):
        raise error

    return Kernel(name="broken", attend=attend)


@pytest.mark.parametrize("error", [AssertionError("only Hopper"), AttributeError("no such function"), RuntimeError()])
def test_a_kernel_that_raises_is_passed_over_and_the_reason_said(error, monkeypatch):
    monkeypatch.setattr(kernels, "candidates", lambda device, dtype: iter([broken(error), SEGMENT_SDPA]))
    chosen = choose_kernel(CPU, torch.float32, 16)
    assert chosen.name == SEGMENT_SDPA.name and f"not broken: {type(error).__name__}" in chosen.reason
    assert kernels_for(CONFIG, CPU, torch.float32) == (chosen,)
    others = [broken(error), Kernel(name="next", attend=segment_sdpa), SEGMENT_SDPA]
    monkeypatch.setattr(kernels, "candidates", lambda device, dtype: iter(others))
    first, *rest = kernels_for(CONFIG, CPU, torch.float32)
    assert first.name == "next" and rest == [SEGMENT_SDPA]


def test_a_kernel_that_is_wrong_beyond_its_first_block_of_keys_is_passed_over(monkeypatch):
    """A probe of 33 tokens cannot see it."""

    def attend(query, key, value, segments, scale, window):
        found = SEGMENT_SDPA.attend(query, key, value, segments, scale, window)
        return found * (1 + (torch.arange(found.shape[2]) >= 64)[:, None])

    monkeypatch.setattr(kernels, "candidates", lambda *_: iter([Kernel(name="tiled", attend=attend), SEGMENT_SDPA]))
    chosen = choose_kernel(CPU, torch.float32, 16)
    assert chosen.name == SEGMENT_SDPA.name and "not tiled: its output is off" in chosen.reason


def test_cuda_in_half_precision_tries_the_fast_ones_first():
    names = [kernel.name for kernel in kernels.candidates(torch.device("cuda"), torch.bfloat16)]
    two_calls = [f"{name} in two calls" for name in ("flash-attn 3", "torch varlen", "flash-attn 2")]
    assert names == [*two_calls, "torch varlen", "flash-attn varlen", "flex", "sdpa per segment"]
    assert [kernel.name for kernel in kernels.candidates(torch.device("cuda"), torch.float32)] == names[-1:]


def test_a_window_that_is_in_the_mask_alone_fails_the_check():
    """Qwen2-MoE hands no window to attention, and the check's sequences are shorter than the window."""
    experts = dict(moe_intermediate_size=16, shared_expert_intermediate_size=16, num_experts=2, num_experts_per_tok=1)
    sliding = dict(use_sliding_window=True, sliding_window=24, layer_types=["sliding_attention", "full_attention"])
    model = Qwen2MoeForCausalLM(Qwen2MoeConfig(**SIZE, **experts, **sliding))
    prepare_rows(model)
    found = check_rows(model, temperature=1.0, kernel=SEGMENT_SDPA)
    assert found.logp_difference < 1e-4 and found.windows_missing == 1  # the metrics alone would pass
    assert not found.passed and "1 sliding windows do not reach attention" in str(found)


def test_a_model_gets_its_attention_back_however_often_rows_were_used():
    model = build("qwen3")
    model.set_attn_implementation("eager")
    use_rows(model)
    use_rows(model)
    leave_rows(model)
    leave_rows(model)
    assert model.config._attn_implementation == "eager"
