"""Generation by transformers: repeatable, blind to the batch, and with nothing of the model's own defaults."""

import copy
import json
import shutil

import pytest
import torch
from refusals import refused
from transformers import AutoModelForCausalLM, GenerationConfig

from answer_judge.errors import ConfigError, EvaluationError
from answer_judge.evaluation import ModelSpec, Request, Sampling, load_engine
from answer_judge.evaluation.engines import fingerprint
from answer_judge.evaluation.prompts import PLAIN, prompt_format
from answer_judge.evaluation.transformers_engine import of_model

SAMPLING = Sampling(temperature=1.0, top_p=0.9, max_new_tokens=12)
TEXTS = ["What is 1 + 1?", "Solve.", "Please reason step by step: what is the sum of 12 and 30?", "é ∑ 你好"]


@pytest.fixture(scope="module")
def engine(tiny_model, tiny_tokenizer):
    return of_model(tiny_model, tiny_tokenizer)


def requests_of(engine, texts=TEXTS, seeds=None):
    prompts = engine.encode(texts)
    return [Request(prompt, seed) for prompt, seed in zip(prompts, seeds or range(len(prompts)), strict=True)]


def test_the_batch_does_not_matter(engine):
    requests = requests_of(engine, TEXTS * 3, list(range(12)))
    together = engine.generate(requests, SAMPLING)
    assert engine.generate(requests[::-1], SAMPLING)[::-1] == together
    assert [engine.generate([request], SAMPLING)[0] for request in requests] == together
    assert len({found.text for found in together}) == 12, "other seeds, other completions"


def test_no_global_generator_is_touched_and_the_mode_is_left(tiny_model, tiny_tokenizer):
    model = copy.deepcopy(tiny_model).train()
    before, defaults = torch.get_rng_state(), model.generation_config
    of_model(model, tiny_tokenizer).generate([Request([5, 6], 0)], SAMPLING)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training and model.generation_config is defaults


def test_defaults_of_the_model_play_no_part(engine, tiny_model, tiny_tokenizer):
    model = copy.deepcopy(tiny_model)
    drawing = {"do_sample": True, "temperature": 0.01, "top_k": 1, "repetition_penalty": 5.0, "num_beams": 3}
    bounds = {"no_repeat_ngram_size": 1, "min_new_tokens": 9, "max_length": 3, "bad_words_ids": [[7]]}
    end = tiny_model.generation_config.eos_token_id
    model.generation_config = GenerationConfig(**drawing, **bounds, eos_token_id=end, pad_token_id=0)
    requests = requests_of(engine)
    assert of_model(model, tiny_tokenizer).generate(requests, SAMPLING) == engine.generate(requests, SAMPLING)


def test_greedy_is_transformers_greedy(engine, tiny_model, tiny_tokenizer):
    prompt = engine.encode(TEXTS[:1])[0]
    greedy = Sampling(temperature=0.0, max_new_tokens=12)
    expected = tiny_model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=12)[0, len(prompt) :]
    text = tiny_tokenizer.decode(expected, skip_special_tokens=True)
    assert engine.generate([Request(prompt, 3)], greedy)[0].text == text


def test_ends_and_lengths(tiny_model, tiny_tokenizer):
    model = copy.deepcopy(tiny_model)
    prompt = of_model(model, tiny_tokenizer).encode(["Solve."])[0]
    first = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=3, eos_token_id=None)[0, -3:]
    model.generation_config.eos_token_id = [int(first[2])]
    greedy = Sampling(temperature=0.0, max_new_tokens=9)
    ended = of_model(model, tiny_tokenizer).generate([Request(prompt, 0)], greedy)[0]
    assert ended.finish == "stop" and ended.tokens == first.tolist().index(int(first[2])) + 1
    cut = of_model(model, tiny_tokenizer).generate(
        [Request(prompt, 0)], Sampling(temperature=0.0, max_new_tokens=ended.tokens - 1)
    )[0]
    assert cut.finish == "length" and cut.tokens == ended.tokens - 1


def test_logits_that_are_not_numbers(tiny_model, tiny_tokenizer):
    model = copy.deepcopy(tiny_model)
    model.lm_head.weight.data[3] = float("nan")
    for temperature in (0.0, 1.0):
        with refused(EvaluationError, "logits", "--dtype float32"):
            of_model(model, tiny_tokenizer).generate([Request([5, 6], 0)], Sampling(temperature=temperature))


@pytest.fixture
def plain_folder(tiny_folder, tmp_path):
    """The model without its chat template."""
    folder = tmp_path / "plain"
    shutil.copytree(tiny_folder, folder)
    (folder / "chat_template.jinja").unlink()
    return folder


def test_folder_without_a_chat_template_gets_the_plain_one_and_says_so(plain_folder, tiny_tokenizer):
    loaded = load_engine("transformers", ModelSpec(model=str(plain_folder)))
    assert loaded.facts["format"] == "plain" and "has no chat template: it reads" in loaded.notes[0]
    assert tiny_tokenizer.decode(loaded.encode(["1 + 1?"])[0]) == PLAIN.replace("{prompt}", "1 + 1?")
    with refused(ConfigError, "--chat_template_kwargs", "no chat template"):
        load_engine("transformers", ModelSpec(model=str(plain_folder), chat_options={"enable_thinking": False}))


def test_chat_options_reach_the_template_and_what_it_refuses_is_said(tiny_tokenizer, digits_tokenizer):
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.chat_template = "{{ 'slow' if thinking else 'fast' }}{{ messages[0]['content'] }}"
    assert tokenizer.decode(prompt_format(tokenizer).encode(["x"])[0]) == "fastx"
    slow = prompt_format(tokenizer, {"thinking": True})
    assert tokenizer.decode(slow.encode(["x"])[0]) == "slowx" and slow.facts["chat_options"] == {"thinking": True}
    tokenizer.chat_template = "{{ raise_exception('system first') }}"
    with refused(ConfigError, "chat template", "system first"):
        prompt_format(tokenizer).encode(["x"])
    with refused(ConfigError, "tokenizer", "encode"):
        prompt_format(digits_tokenizer).encode(["1+1?", "What?"])


def test_folder_without_a_tokenizer(tiny_model, tmp_path, tiny_folder):
    """transformers makes an empty tokenizer up for such a folder: prompts would all be empty."""
    tiny_model.save_pretrained(tmp_path / "bare")
    with refused(ConfigError, "bare has no tokenizer", "--tokenizer Qwen"):
        load_engine("transformers", ModelSpec(model=str(tmp_path / "bare")))
    named = load_engine("transformers", ModelSpec(model=str(tmp_path / "bare"), tokenizer=str(tiny_folder)))
    assert named.facts["format"] == "chat template"


def test_models_that_are_not_there(tmp_path, tiny_tokenizer, tiny_folder):
    with refused(ConfigError, "nothing/here", "no such folder"):
        load_engine("transformers", ModelSpec(model="nothing/here"))
    tiny_tokenizer.save_pretrained(tmp_path / "words")
    with pytest.raises(ConfigError, match=r"words cannot be loaded"):
        load_engine("transformers", ModelSpec(model=str(tmp_path / "words")))
    shutil.copytree(tiny_folder, tmp_path / "pointer")
    (tmp_path / "pointer" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    shutil.copytree(tiny_folder, tmp_path / "another")
    config = json.loads((tmp_path / "another" / "config.json").read_text())
    (tmp_path / "another" / "config.json").write_text(json.dumps(config | {"vocab_size": 99}))
    for name in ("pointer", "another"):
        with pytest.raises(ConfigError, match=f"{name} cannot be loaded"):
            load_engine("transformers", ModelSpec(model=str(tmp_path / name)))
    with refused(ConfigError, "--engine sglang", "transformers, vllm"):
        load_engine("sglang", ModelSpec(model="x"))
    with refused(ConfigError, "batch_size=0"):
        ModelSpec(model="x", batch_size=0)


def test_fingerprint_notices_further_training(tiny_folder, tmp_path):
    shutil.copytree(tiny_folder, tmp_path / "copy")
    (tmp_path / "copy" / "settings.json").write_text("{}")  # of an evaluation into the same folder
    assert fingerprint(str(tmp_path / "copy")) == fingerprint(str(tiny_folder))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "copy")
    for parameter in model.parameters():
        parameter.data.add_(1e-3)
    model.save_pretrained(tmp_path / "copy")
    assert fingerprint(str(tmp_path / "copy")) != fingerprint(str(tiny_folder))
    assert fingerprint("owner/name") is None
