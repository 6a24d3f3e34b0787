"""The vLLM engine against a stand-in for the library: what it is given, and what is made of its replies."""

import json
import shutil
import sys
from types import ModuleType, SimpleNamespace

import pytest
from refusals import refused

from answer_judge.errors import ConfigError, EvaluationError
from answer_judge.evaluation import ModelSpec, Request, Sampling, load_engine


@pytest.fixture
def library(monkeypatch):
    """A module ``vllm`` with the parts that are used, which remembers what it was given."""
    module = ModuleType("vllm")
    seen = {}

    def completion(i):
        ended = "length" if i else "stop"
        return SimpleNamespace(text=f"\\boxed{{{i}}}", token_ids=[1] * (i + 1), finish_reason=ended)

    class LLM:
        def __init__(self, **options):
            seen["llm"] = options
            self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=512))

        def generate(self, prompts, sampling_params, use_tqdm):
            seen["prompts"], seen["params"], seen["tqdm"] = prompts, sampling_params, use_tqdm
            return [SimpleNamespace(outputs=[completion(i)]) for i in range(len(prompts))]

    module.LLM, module.SamplingParams, module.__version__ = LLM, lambda **options: options, "0.22.0"
    monkeypatch.setitem(sys.modules, "vllm", module)
    return seen


def test_every_request_has_a_seed_and_no_default_applies(library, tiny_folder, tiny_tokenizer):
    spec = ModelSpec(model=str(tiny_folder), dtype="bfloat16", engine_options={"tensor_parallel_size": 2})
    engine = load_engine("vllm", spec)
    assert library["llm"]["tensor_parallel_size"] == 2 and library["llm"]["dtype"] == "bfloat16"
    assert engine.longest == 512 and engine.facts["vllm"] == "0.22.0" and engine.facts["format"] == "chat template"
    found = engine.generate([Request([5, 6], 11), Request([7], 2**61)], Sampling(temperature=0.7, top_p=0.8))
    assert [(g.text, g.tokens, g.finish) for g in found] == [("\\boxed{0}", 1, "stop"), ("\\boxed{1}", 2, "length")]
    assert library["prompts"] == [{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [7]}]
    first, second = library["params"]
    assert (first["seed"], second["seed"], first["n"]) == (11, 2**61, 1)
    expected = {"temperature": 0.7, "top_p": 0.8, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert {**expected, "max_tokens": 2048}.items() <= first.items()
    assert first["stop_token_ids"] == [tiny_tokenizer.eos_token_id] and first["stop"] is None


@pytest.mark.parametrize("saved", ["float32", "bfloat16"])
def test_auto_is_what_the_model_was_saved_as(library, tiny_folder, tmp_path, saved):
    """vLLM's own ``auto`` would be bfloat16 for both."""
    shutil.copytree(tiny_folder, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"dtype": saved}))
    load_engine("vllm", ModelSpec(model=str(tmp_path / "model")))
    assert library["llm"]["dtype"] == saved


def test_versions_and_models_that_it_cannot_load_are_refused(library, tiny_folder, tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise ValueError("no such architecture\nand more")

    shutil.copytree(tiny_folder, tmp_path / "adapter")
    (tmp_path / "adapter" / "config.json").rename(tmp_path / "adapter" / "adapter_config.json")
    with refused(ConfigError, tmp_path / "adapter", "without its model", "merge_and_unload"):
        load_engine("vllm", ModelSpec(model=str(tmp_path / "adapter")))
    engine = load_engine("vllm", ModelSpec(model=str(tiny_folder)))
    monkeypatch.setattr(sys.modules["vllm"].LLM, "generate", refuse)
    with refused(EvaluationError, "vLLM", "no such architecture", "goes on"):
        engine.generate([Request([5, 6], 11)], Sampling())
    monkeypatch.setattr(sys.modules["vllm"], "LLM", refuse)
    with refused(ConfigError, "vLLM", "ValueError", "no such architecture and more"):
        load_engine("vllm", ModelSpec(model=str(tiny_folder)))
    for version in ("0.21.3", "0.31.0"):
        monkeypatch.setattr(sys.modules["vllm"], "__version__", version)
        with refused(ConfigError, version, "pip install 'vllm>=0.22,<0.31'"):
            load_engine("vllm", ModelSpec(model=str(tiny_folder)))
