import pytest
from transformers import Qwen3ForCausalLM

from benchmarks.learning.byte_tokenizer import train_tokenizer
from dppo.verification.tiny_model import build_model, model_config
from dppo.verification.tiny_tokenizer import EOS, PAD

LONGEST = 160


@pytest.fixture(scope="session")
def tiny_tokenizer():
    """A byte-level tokenizer with a chat template, which can encode any text."""
    return train_tokenizer(["What is 1 + 1? Please reason step by step. Problem: Solution: \\boxed{2}"] * 3)


@pytest.fixture(scope="session")
def tiny_model(tiny_tokenizer):
    """An untrained Qwen3 whose outputs are far from uniform, so that sampling has something to get wrong."""
    pad, end = (tiny_tokenizer.convert_tokens_to_ids(token) for token in (PAD, EOS))
    model = build_model(0, model_config(len(tiny_tokenizer), longest=LONGEST, pad=pad, end=end))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(8)
    return model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory, tiny_model: Qwen3ForCausalLM, tiny_tokenizer):
    """The same, saved."""
    path = tmp_path_factory.mktemp("tiny")
    tiny_model.save_pretrained(path)
    tiny_tokenizer.save_pretrained(path)
    return path
