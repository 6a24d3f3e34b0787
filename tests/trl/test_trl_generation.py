"""Generation in which a prompt is read once: the completions that transformers' ``generate`` gives, with less read."""

from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from tiny_runs import SHORT, length_reward, problems
from transformers import AutoModelForCausalLM, GenerationConfig, MambaConfig, MambaForCausalLM

import dppo.trl.generation as generation
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.trl.generation import prompts_read_once

PROMPTS = [[0, 0, 5, 6, 7], [3, 4, 5, 6, 7], [0, 9, 8, 7, 6]]
"""Of two to five tokens, padded on the left; 0 pads."""
CONFIG = GenerationConfig(max_new_tokens=8, do_sample=True, top_k=0, top_p=1.0, pad_token_id=0, eos_token_id=1)


@pytest.fixture
def model(tiny_path):
    return AutoModelForCausalLM.from_pretrained(tiny_path, dtype=torch.float64)


def batch(*copies):
    ids = torch.tensor([prompt for prompt, count in zip(PROMPTS, copies, strict=True) for _ in range(count)])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def trainer_of(model, kind=DistributedType.NO):
    accelerator = SimpleNamespace(unwrap_model=Accelerator(cpu=True).unwrap_model, distributed_type=kind)
    return SimpleNamespace(model=model, accelerator=accelerator)


def generated(model, inputs, config=CONFIG, shared=True, **trainer):
    """What is generated with a seed, and (rows, tokens) of each forward pass."""
    passes = []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: passes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    torch.manual_seed(0)
    try:
        if not shared:
            return model.generate(**inputs, generation_config=config), passes
        with prompts_read_once(trainer_of(model, **trainer)):
            return model.generate(**inputs, generation_config=config), passes
    finally:
        hook.remove()


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


def without_keys():
    torch.manual_seed(0)
    return MambaForCausalLM(MambaConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2, state_size=4))


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
    model = without_keys() if "keys" in case else model
    given = {"inputs": batch(4, 4, 4), "config": CONFIG, "kind": DistributedType.NO} | LEFT_ALONE[case]
    wanted, whole = generated(model, given["inputs"], given["config"], shared=False)
    found, passes = generated(model, **given)
    assert torch.equal(found, wanted) and passes == whole and "generate" not in vars(model)


def test_the_trainer_reads_each_prompt_once(tiny_path, tmp_path):
    trainer = DPPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny_path),
        reward_funcs=length_reward,
        train_dataset=problems(8),
        args=DPPOConfig(output_dir=str(tmp_path), per_device_train_batch_size=16, **(SHORT | {"max_steps": 1})),
    )
    read = []
    trainer.model.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(len(kwargs["input_ids"])) if kwargs.get("use_cache") else None,
        with_kwargs=True,
    )
    trainer.train()
    assert read[0] == 4 and set(read[1:]) == {16}
    assert "generate" not in vars(trainer.model)
