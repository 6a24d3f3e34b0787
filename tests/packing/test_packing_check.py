"""The self-check passes right rows on any machine and fails wrong ones, with large logits and in half precision too."""

from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest
import torch
from packing_models import SIZE, blank, build, prepare_rows, random_model
from packing_wrong import WRONG_IN_GRADIENT, WRONG_IN_VALUE, WRONG_IN_WINDOW, WRONG_ROWS
from transformers import ModernBertDecoderConfig, Qwen2MoeConfig

from dppo.packing import check
from dppo.packing.attention import use_rows
from dppo.packing.check import LOGP_FLOOR, check_head, check_rows
from dppo.packing.head import add_scored_head
from dppo.packing.kernels import SEGMENT_SDPA, Kernel, segment_sdpa
from dppo.packing.rows import build_row
from dppo.verification.tiny_model import build_model

BF16, FP16 = torch.bfloat16, torch.float16


@dataclass(frozen=True)
class Case:
    """A model, what it computes in, and how large its logits are."""

    name: str
    dtype: torch.dtype = torch.float32
    scale: float = 1.0
    """Factor of the head's weight. At 400 logits are thousands, and half precision rounds them by tens of nats."""
    temperature: float = 1.0
    autocast: bool = False
    head: torch.dtype | None = None

    def model(self):
        model = build_model(0) if self.name == "demo" else build(self.name)
        model = model.to(self.dtype)
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(self.scale)
        use_rows(model)
        add_scored_head(model, temperature=self.temperature, dtype=self.head)
        return model

    def check(self, model, attend=segment_sdpa):
        with self.context():
            return check_rows(model, temperature=self.temperature, kernel=Kernel(name="on trial", attend=attend))

    def context(self):
        return torch.autocast("cpu", BF16) if self.autocast else nullcontext()


ORDINARY = {
    "float32": Case("qwen3"),
    "float32, random weights": Case("demo"),
    "bfloat16": Case("qwen3", BF16),
    "bfloat16, float32 head": Case("llama", BF16, head=torch.float32),
    "float16": Case("llama", FP16),
    "autocast": Case("qwen3", autocast=True),
}
LARGE = {
    "float32, cold": Case("qwen3", temperature=0.01),
    "float32, large": Case("llama", scale=400),
    "float32, huge": Case("qwen3", scale=40_000),
    "bfloat16, large": Case("qwen3", BF16, scale=400),
    "bfloat16, large, float32 head": Case("llama", BF16, scale=400, head=torch.float32),
    "autocast, large": Case("qwen3", scale=400, autocast=True),
}
CASES = pytest.mark.parametrize("case", [*ORDINARY.values(), *LARGE.values()], ids=[*ORDINARY, *LARGE])


def rounded_again(query, key, value, segments, scale, window):
    """Right attention on another machine: every number of the output one rounding up or down."""
    output = segment_sdpa(query, key, value, segments, scale, window)
    direction = torch.randint(0, 2, output.shape, generator=torch.Generator().manual_seed(7)).to(output) * 2 - 1
    return output + output * direction * torch.finfo(output.dtype).eps / 2


@CASES
def test_right_rows_and_heads_pass_here_and_on_other_machines_and_wrong_layouts_fail(case, monkeypatch):
    """Large logits have a twin: fixed bounds, 1e-4 nats in float32 and 0.1 in half precision, refuse right rows."""
    model = case.model()
    assert case.check(model).passed
    with case.context():
        assert check_head(model, temperature=case.temperature).passed
    found = case.check(model, rounded_again)
    fixed = replace(found, logp_tolerance=LOGP_FLOOR if case.dtype == torch.float32 and not case.autocast else 0.1)
    assert found.passed and (case not in LARGE.values() or not fixed.passed)
    passed = [name for name, attend in WRONG_IN_VALUE.items() if case.check(model, attend).passed]
    for name, change in WRONG_ROWS.items():
        with monkeypatch.context() as patch:
            patch.setattr(check, "build_row", lambda *of_row, change=change: change(build_row(*of_row)))
            passed += [name] if case.check(model).passed else []
    assert passed == []
    with torch.no_grad():  # by log-probabilities alone
        assert case.check(model).passed and case.check(model).gradient_difference is None
        assert not any(case.check(model, attend).passed for attend in WRONG_IN_VALUE.values())


@pytest.mark.parametrize("dtype", [torch.float32, BF16, FP16], ids=str)
def test_a_head_that_is_more_than_linear_is_found_in_half_precision_too(dtype):
    """The twin: rows against padding by the same head, which agree, both wrong."""
    ends = dict(bos_token_id=2, eos_token_id=1, cls_token_id=2, sep_token_id=1)
    model = random_model(ModernBertDecoderConfig(**SIZE | ends)).to(dtype)
    add_scored_head(model)
    found = check_head(model, temperature=1.0)
    assert not found.passed and found.logp_difference > 1
    assert not replace(found, logp_difference=float("nan")).passed


def test_another_temperature_is_found():
    assert not check_head(Case("qwen3", BF16, temperature=0.7).model(), temperature=1.0).passed


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
@pytest.mark.parametrize("scale", [1, 400])
def test_wrong_windows_fail(scale, dtype):
    case = Case("gemma3", dtype, scale=scale)
    model = case.model()
    assert case.check(model).passed
    assert [name for name, attend in WRONG_IN_WINDOW.items() if case.check(model, attend).passed] == []


def test_a_window_that_is_in_the_mask_alone_fails():
    """Qwen2-MoE hands no window to attention, and the check's sequences are shorter than the window."""
    experts = dict(moe_intermediate_size=16, shared_expert_intermediate_size=16, num_experts=2, num_experts_per_tok=1)
    sliding = dict(use_sliding_window=True, sliding_window=24, layer_types=["sliding_attention", "full_attention"])
    model = random_model(Qwen2MoeConfig(**SIZE, **experts, **sliding))
    prepare_rows(model)
    found = check_rows(model, temperature=1.0, kernel=SEGMENT_SDPA)
    assert found.logp_difference < 1e-3 and found.windows_missing == 1  # the metrics alone would pass
    assert not found.passed and "1 sliding windows do not reach attention" in str(found)


@pytest.mark.parametrize("case", [*ORDINARY.values(), LARGE["float32, huge"]], ids=[*ORDINARY, "float32, huge"])
def test_wrong_gradients_fail_where_values_are_right(case):
    """Half precision with huge logits is left out: one rounding turns the gradient by as much (docs/log.md)."""
    model = case.model()
    for attend in WRONG_IN_GRADIENT.values():
        found = case.check(model, attend)
        assert found.logp_difference <= found.logp_tolerance and not found.passed


def test_a_check_that_could_not_fail_does_not_pass(monkeypatch):
    """The check is blind if rounding moves as much as a mistake; the twin has no control and passes anything."""
    case = Case("qwen3")
    model = case.model()
    monkeypatch.setattr(check, "_rounding", lambda model: 0.5)
    found = [case.check(model, attend) for attend in (segment_sdpa, WRONG_IN_VALUE["the next token is seen"])]
    assert all(one.blind and not one.passed for one in found)
    assert "rounding hides mistakes: another prompt changes" in str(found[0])
    assert all(replace(one, logp_control=torch.inf).passed for one in found)


def test_products_in_float32_that_torch_may_round_are_told():
    case, before = Case("qwen3"), torch.get_float32_matmul_precision()
    model = case.model()
    plain = case.check(model)
    try:
        torch.set_float32_matmul_precision("medium")
        told, wrong = case.check(model), case.check(model, WRONG_IN_VALUE["the next token is seen"])
    finally:
        torch.set_float32_matmul_precision(before)
    assert plain.passed and told.passed and not wrong.passed
    assert told.logp_tolerance > 1e3 * plain.logp_tolerance


def test_a_head_in_float32_leaves_the_model_in_half_precision():
    """As TRL's ``cast_lm_head_to_fp32`` does: what the model computes in is not what its head computes in."""
    case, model = Case("qwen3", BF16), build("qwen3").to(BF16)
    model.get_output_embeddings().float()
    prepare_rows(model)
    found = case.check(model, rounded_again)
    assert found.passed and found.logp_difference > 10 * LOGP_FLOOR


def test_the_model_keeps_no_trace():
    case = Case("qwen3")
    model = case.model().train()
    before = case.check(model)
    assert model.training and not any(module._forward_hooks for module in model.modules())
    assert case.check(model) == before, "its roundings are the same each time"


def test_depth_does_not_outgrow_the_tolerance():
    torch.manual_seed(0)
    case, model = Case("qwen3", BF16), blank("qwen3", num_hidden_layers=28, initializer_range=0.125).to(BF16)
    prepare_rows(model)
    assert case.check(model, rounded_again).passed
    assert not case.check(model, WRONG_IN_VALUE["the next token is seen"]).passed
