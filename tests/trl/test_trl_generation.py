"""Generation in which a prompt is read once: the completions that transformers' ``generate`` gives, with less read."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from transformers import AutoModelForCausalLM, GenerationConfig, MambaConfig, MambaForCausalLM, Qwen3ForCausalLM
from trl_gradients import dppo_run

import dppo.trl.generation as generation
from dppo.trl.generation import prompts_read_once

PROMPTS = [[0, 0, 5, 6, 7], [3, 4, 5, 6, 7], [0, 9, 8, 7, 6]]
"""Prompts of two to five tokens, padded on the left by 0."""
CONFIG = GenerationConfig(max_new_tokens=8, do_sample=True, top_k=0, top_p=1.0, pad_token_id=0, eos_token_id=1)


@pytest.fixture
def model(tiny_path):
    return AutoModelForCausalLM.from_pretrained(tiny_path, dtype=torch.float64)


def batch(*copies):
    ids = torch.tensor([prompt for prompt, count in zip(PROMPTS, copies, strict=True) for _ in range(count)])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def generated(model, inputs, config=CONFIG, kind=DistributedType.NO, shared=True):
    """What is generated with a seed, and (rows, tokens) of each forward pass."""
    accelerator = SimpleNamespace(unwrap_model=Accelerator(cpu=True).unwrap_model, distributed_type=kind)
    trainer, passes = SimpleNamespace(model=model, accelerator=accelerator), []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: passes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    torch.manual_seed(0)
    with prompts_read_once(trainer) if shared else nullcontext():
        found = model.generate(**inputs, generation_config=config)
    hook.remove()
    return found, passes


@pytest.mark.parametrize("copies", [(4, 4, 4), (1, 5, 2), (1, 1, 2)])
def test_completions_are_those_of_generate_and_prompts_are_read_once(model, copies):
    wanted, whole = generated(model, batch(*copies), shared=False)
    found, passes = generated(model, batch(*copies))
    assert torch.equal(found, wanted)
    assert whole[0] == (sum(copies), 5)
    assert passes[:2] == [(3, 4), (sum(copies), 1)] and len(passes) == len(whole) + 1


def test_keys_of_another_prompt_would_be_seen(model, monkeypatch):
    """The wrong twin: keys and values repeated as if all groups were of one size."""
    right = generation._repeated

    def equal_groups(ids, mask):
        first, prompt = right(ids, mask)
        return first, torch.arange(len(prompt)) * len(first) // len(prompt)

    monkeypatch.setattr(generation, "_repeated", equal_groups)
    wanted, _ = generated(model, batch(1, 5, 2), shared=False)
    found, _ = generated(model, batch(1, 5, 2))
    assert found.shape != wanted.shape or not torch.equal(found, wanted)


LEFT_ALONE = {
    "no two equal": {"inputs": batch(1, 1, 1)},
    "one token": {"inputs": {"input_ids": torch.full((4, 1), 5), "attention_mask": torch.ones(4, 1).long()}},
    "several sequences": {"config": GenerationConfig(**CONFIG.to_diff_dict(), num_return_sequences=2)},
    "another cache": {"config": GenerationConfig(**CONFIG.to_diff_dict(), cache_implementation="static")},
    "sharded": {"kind": DistributedType.FSDP},
    "a model without keys": {},
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_where_nothing_is_shared_generate_is_called_as_it_is(case, model):
    if "keys" in case:
        model = MambaForCausalLM(MambaConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2, state_size=4))
    given = {"inputs": batch(4, 4, 4)} | LEFT_ALONE[case]
    wanted, whole = generated(model, **given, shared=False)
    found, passes = generated(model, **given)
    assert torch.equal(found, wanted) and passes == whole and "generate" not in vars(model)


def test_the_trainer_reads_each_prompt_once(tiny_path, tmp_path, monkeypatch):
    read, forward = [], Qwen3ForCausalLM.forward

    def watched(self, *args, **kwargs):
        if kwargs.get("use_cache"):
            read.append(len(kwargs["input_ids"]))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Qwen3ForCausalLM, "forward", watched)
    _, trainer = dppo_run(tiny_path, tmp_path, rollout=None, per_device_train_batch_size=16)
    assert read[0] == 4 and set(read[1:]) == {16} and "generate" not in vars(trainer.model)
