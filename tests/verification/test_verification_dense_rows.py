"""Rows beside padding on the subject's model: equal where they must be, told apart where rows are wrong."""

import copy
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AttentionInterface, Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from dppo.packing import SEGMENT_SDPA
from dppo.packing.attention import ROWS, rows_attention, unsupported
from dppo.packing.kernels import Kernel
from dppo.verification import checks, parity
from dppo.verification.checks import row_checks
from dppo.verification.controls import wrong_kernels

SIZE = dict(vocab_size=40, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)


def verdicts(found):
    return {check.name.split(", on ")[0]: check.passed for check in found}


ALL = {
    "3 dense rows, equal to padding: log-probabilities": True,
    "3 dense rows, equal to padding: gradient": True,
    "3 dense rows, windows that they lack": True,
    "5 control: masks aligned at the top left": True,
    "5 control: a row taken for one sequence": True,
}


def with_adapters(model):
    model = get_peft_model(copy.deepcopy(model), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize("change", [lambda model: model, with_adapters], ids=["plain", "adapters"])
def test_rows_are_right_wrong_rows_are_found_out_and_the_model_is_left_as_it_was(change, subject):
    model = change(subject.model)
    config, modes = model.config.to_dict(), [module.training for module in model.modules()]
    own = {name for module in model.modules() for name in vars(module)}
    before, names = {n: p.clone() for n, p in model.state_dict().items()}, [n for n, _ in model.named_parameters()]
    state = torch.get_rng_state()
    found = list(row_checks(replace(subject, model=model, temperature=0.7)))
    assert verdicts(found) == ALL and all(check.name.endswith(", on the model") for check in found)
    right, *_, one_wrong, other_wrong = (check.figure for check in found)
    assert right < 1e-5 and min(one_wrong, other_wrong) > 1e3 * right
    assert torch.equal(torch.get_rng_state(), state)
    assert model.config.to_dict() == config and model.config._attn_implementation == "sdpa"
    assert [module.training for module in model.modules()] == modes
    assert {name for module in model.modules() for name in vars(module)} == own
    assert [n for n, _ in model.named_parameters()] == names
    assert all(torch.equal(p, before[n]) for n, p in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_model_that_rows_cannot_serve_is_not_checked_on_rows(subject):
    capped = Gemma2ForCausalLM(Gemma2Config(**SIZE, num_key_value_heads=2, head_dim=8))
    found = list(row_checks(replace(subject, model=capped)))
    assert verdicts(found) == ALL
    assert all(check.name.endswith(", on a tiny Qwen3") for check in found)
    assert unsupported(capped) == "it caps attention scores, which sdpa cannot" and not unsupported(subject.model)


def test_a_model_that_scales_its_logits(subject):
    config = GraniteConfig(**SIZE, num_key_value_heads=2, logits_scaling=2.0, attention_multiplier=0.4)
    torch.manual_seed(0)
    model = GraniteForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    assert verdicts(row_checks(replace(subject, model=model))) == ALL


def ignores_segments(module, query, key, value, mask, *, row_segments=None, row_kernel=None, **kwargs):
    mask = None if row_segments is not None else mask
    return sdpa_attention_forward(module, query, key, value, mask, **kwargs)


def detached(module, query, key, value, mask, *, row_segments=None, **kwargs):
    key = key if row_segments is None else key.detach()
    return rows_attention(module, query, key, value, mask, row_segments=row_segments, **kwargs)


@pytest.mark.parametrize(("attention", "value"), [(ignores_segments, False), (detached, True)])
def test_rows_that_are_broken_fail_and_a_broken_gradient_by_itself(subject, monkeypatch, attention, value):
    monkeypatch.setitem(AttentionInterface._global_mapping, ROWS, attention)
    assert list(verdicts(row_checks(subject)).values()) == [value, False, True, True, True]


def test_a_check_that_sees_nothing_fails_its_controls(subject, monkeypatch):
    right = dict.fromkeys(wrong_kernels(), Kernel(name="right", attend=SEGMENT_SDPA.attend))
    monkeypatch.setattr(checks, "wrong_kernels", lambda: right)
    assert list(verdicts(row_checks(subject)).values()) == [True, True, True, False, False]


def test_the_temperature_is_that_of_the_subject(subject, monkeypatch):
    cold = replace(subject, temperature=0.5)
    assert verdicts(row_checks(cold)) == ALL
    original = parity.add_scored_head
    monkeypatch.setattr(parity, "add_scored_head", lambda model, temperature: original(model))
    assert list(verdicts(row_checks(cold)).values()) == [False, False, True, True, True]


def test_windows_that_rows_are_not_told_of_fail(subject, monkeypatch):
    """Sequences of the check are too short to show them in a log-probability."""
    original = parity.check_rows
    monkeypatch.setattr(parity, "check_rows", lambda *args, **kw: replace(original(*args, **kw), windows_missing=2))
    assert list(verdicts(row_checks(subject)).values()) == [True, True, False, True, True]
