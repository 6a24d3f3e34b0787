"""One step of each trainer, and rows beside padding: equal where they must be, different where the code is wrong."""

import copy
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AttentionInterface, Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from dppo.packing import SEGMENT_SDPA
from dppo.packing.attention import ROWS, rows_attention, unsupported
from dppo.packing.check import check_rows
from dppo.packing.head import add_scored_head
from dppo.packing.kernels import Kernel
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.verification import checks, parity
from dppo.verification.checks import row_checks
from dppo.verification.controls import wrong_kernels

SIZE = dict(vocab_size=40, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
ALL = {
    "3 dense rows, equal to padding: log-probabilities": True,
    "3 dense rows, equal to padding: gradient": True,
    "3 dense rows, windows that they lack": True,
    "5 control: masks aligned at the top left": True,
    "5 control: a row taken for one sequence": True,
}


def verdicts(found):
    return {check.name.split(", on ")[0]: check.passed for check in found}


def with_adapters(model):
    model = get_peft_model(copy.deepcopy(model), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    return model


def state_of(model):
    """All that a check of a model must leave as it was, but for its weights."""
    modules = list(model.modules())
    attributes = {name for module in modules for name in vars(module)}
    names, config = [name for name, _ in model.named_parameters()], model.config.to_dict()
    attention, random = model.config._attn_implementation, torch.get_rng_state().tolist()
    return attributes, names, config, attention, [module.training for module in modules], random


@pytest.mark.parametrize("change", [lambda model: model, with_adapters], ids=["plain", "adapters"])
def test_rows_are_right_wrong_rows_are_found_out_and_the_model_is_left_as_it_was(change, subject):
    model = change(subject.model)
    before, weights = state_of(model), {n: p.clone() for n, p in model.state_dict().items()}
    found = list(row_checks(replace(subject, model=model, temperature=0.7)))
    assert verdicts(found) == ALL and all(check.name.endswith(", on the model") for check in found)
    right, *_, one_wrong, other_wrong = (check.figure for check in found)
    assert right < 1e-5 and min(one_wrong, other_wrong) > 1e3 * right
    assert state_of(model) == before and model.config._attn_implementation == "sdpa"
    assert all(torch.equal(p, weights[n]) for n, p in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_model_that_rows_cannot_serve_is_not_checked_on_rows(subject):
    capped = Gemma2ForCausalLM(Gemma2Config(**SIZE, num_key_value_heads=2, head_dim=8))
    found = list(row_checks(replace(subject, model=capped)))
    assert verdicts(found) == ALL and all(check.name.endswith(", on a tiny Qwen3") for check in found)
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


def untold_of_windows(*args, **options):
    """Sequences of the check are too short to show them in a log-probability."""
    return replace(check_rows(*args, **options), windows_missing=2)


def attending(function):
    return patch.dict(AttentionInterface._global_mapping, {ROWS: function})


RIGHT = dict.fromkeys(wrong_kernels(), Kernel(name="right", attend=SEGMENT_SDPA.attend))
WRONG = {
    "a row as one sequence": (attending(ignores_segments), [False, False, True, True, True]),
    "a gradient alone": (attending(detached), [True, False, True, True, True]),
    "controls that are right": (patch.object(checks, "wrong_kernels", lambda: RIGHT), [True, True, True, False, False]),
    "temperature 1": (
        patch.object(parity, "add_scored_head", lambda model, temperature: add_scored_head(model)),
        [False, False, True, True, True],
    ),
    "windows": (patch.object(parity, "check_rows", untold_of_windows), [True, True, False, True, True]),
}


@pytest.mark.parametrize(("twin", "passed"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_fails_its_own_check(twin, passed, subject):
    with twin:
        assert list(verdicts(row_checks(replace(subject, temperature=0.5))).values()) == passed


def test_the_gradient_is_the_weighted_sum_no_weight_of_the_model_moves_and_nothing_is_printed(capfd):
    script, state = parity.tiny_script(prompts=3), torch.get_rng_state()
    before = {name: value.clone() for name, value in script.model.state_dict().items()}
    step = parity.one_step(DPPOTrainer, DPPOConfig, script, completion_prune_rate=0.5, **parity.LOSSES["grpo"])
    assert capfd.readouterr() == ("", "")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in step.trainer.model.state_dict().items())
    assert parity.relative_difference(step.gradient, parity.weighted_sum_of_completions(step)) < 1e-5


def test_gradients_of_other_parameters_are_not_equal():
    one = {"a": torch.ones(2)}
    assert parity.relative_difference(one, {"b": torch.ones(2)}) == float("inf")
    assert parity.relative_difference({}, {}) == float("inf")
    assert parity.relative_difference({"a": torch.tensor([1.0, 2.0])}, one) == pytest.approx(0.5**0.5)


def test_the_script_of_a_subject_is_its_own_rollouts_where_rewards_differ_most(subject, monkeypatch):
    script, spread = parity.script_of(subject, prompts=2), subject.reward_PG.std(1)
    chosen = [subject.prompt_tokens.index(tokens) for tokens in script.prompt_tokens]
    assert spread[chosen].min() >= spread.sort().values[-2]
    assert torch.equal(script.reward_PG, subject.reward_PG[chosen])
    assert [*script.completion_tokens] == [subject.completion_tokens[4 * row :][:4] for row in chosen]
    monkeypatch.setattr(parity, "SMALL", 1000)
    assert parity.script_of(subject).title == "a tiny Qwen3"
