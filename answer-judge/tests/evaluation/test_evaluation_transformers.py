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


def requests_of(engine, texts=TEXTS):
    return [Request(prompt, seed) for seed, prompt in enumerate(engine.encode(texts))]


def test_the_batch_does_not_matter(engine):
    requests = requests_of(engine, TEXTS * 3)
    together = engine.generate(requests, SAMPLING)
    assert engine.generate(requests[::-1], SAMPLING)[::-1] == together
    assert [engine.generate([request], SAMPLING)[0] for request in requests] == together
    assert len({found.text for found in together}) == 12, "other seeds, other completions"


def test_defaults_mode_and_global_generator_play_no_part_and_are_left(engine, tiny_model, tiny_tokenizer):
    model = copy.deepcopy(tiny_model).train()
    drawing = {"do_sample": True, "temperature": 0.01, "top_k": 1, "repetition_penalty": 5.0, "num_beams": 3}
    bounds = {"no_repeat_ngram_size": 1, "min_new_tokens": 9, "max_length": 3, "bad_words_ids": [[7]]}
    end = tiny_model.generation_config.eos_token_id
    model.generation_config = defaults = GenerationConfig(**drawing, **bounds, eos_token_id=end, pad_token_id=0)
    requests, before = requests_of(engine), torch.get_rng_state()
    assert of_model(model, tiny_tokenizer).generate(requests, SAMPLING) == engine.generate(requests, SAMPLING)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training and model.generation_config is defaults


def test_greedy_is_transformers_greedy_and_ends_where_it_does(tiny_model, tiny_tokenizer):
    model = copy.deepcopy(tiny_model)
    prompt = of_model(model, tiny_tokenizer).encode(["Solve."])[0]
    first = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=3, eos_token_id=None)[0, -3:]
    model.generation_config.eos_token_id = [int(first[2])]
    length = first.tolist().index(int(first[2])) + 1
    for most, tokens, finish in ((9, length, "stop"), (length - 1, length - 1, "length")):
        greedy = Sampling(temperature=0.0, max_new_tokens=most)
        (found,) = of_model(model, tiny_tokenizer).generate([Request(prompt, 3)], greedy)
        assert (found.tokens, found.finish) == (tokens, finish)
        assert found.text == tiny_tokenizer.decode(first[:tokens], skip_special_tokens=True)


def test_logits_that_are_not_numbers(tiny_model, tiny_tokenizer):
    model = copy.deepcopy(tiny_model)
    model.lm_head.weight.data[3] = float("nan")
    for temperature in (0.0, 1.0):
        with refused(EvaluationError, "logits", "--dtype float32"):
            of_model(model, tiny_tokenizer).generate([Request([5, 6], 0)], Sampling(temperature=temperature))


def test_folder_without_a_chat_template_gets_the_plain_one_and_says_so(tiny_folder, tmp_path, tiny_tokenizer):
    plain_folder = shutil.copytree(tiny_folder, tmp_path / "plain")
    (plain_folder / "chat_template.jinja").unlink()
    loaded = load_engine("transformers", ModelSpec(model=str(plain_folder)))
    assert loaded.facts["format"] == "plain" and "has no chat template: it reads" in loaded.notes[0]
    assert tiny_tokenizer.decode(loaded.encode(["1 + 1?"])[0]) == PLAIN.replace("{prompt}", "1 + 1?")
    with refused(ConfigError, "--chat_template_kwargs", "no chat template"):
        load_engine("transformers", ModelSpec(model=str(plain_folder), chat_options={"enable_thinking": False}))


def test_chat_options_reach_the_template_and_what_it_refuses_is_said(tiny_tokenizer, monkeypatch):
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.chat_template = "{{ 'slow' if thinking else 'fast' }}{{ messages[0]['content'] }}"
    assert tokenizer.decode(prompt_format(tokenizer).encode(["x"])[0]) == "fastx"
    slow = prompt_format(tokenizer, {"thinking": True})
    assert tokenizer.decode(slow.encode(["x"])[0]) == "slowx" and slow.facts["chat_options"] == {"thinking": True}
    tokenizer.chat_template = "{{ raise_exception('system first') }}"
    with refused(ConfigError, "chat template", "system first"):
        prompt_format(tokenizer).encode(["x"])

    def unknown(*given, **options):
        raise Exception("WordLevel error: Missing [UNK] token")

    monkeypatch.setattr(tokenizer, "apply_chat_template", unknown)
    with refused(ConfigError, "tokenizer", "encode", "[UNK]"):
        prompt_format(tokenizer).encode(["x"])


def test_models_that_are_not_there(tmp_path, tiny_model, tiny_tokenizer, tiny_folder):
    tiny_tokenizer.save_pretrained(tmp_path / "words")
    tiny_model.save_pretrained(tmp_path / "bare")  # transformers makes up a tokenizer: prompts would all be empty
    weights = shutil.copytree(tiny_folder, tmp_path / "pointer") / "model.safetensors"
    weights.write_text("version https://git-lfs.github.com")
    config = shutil.copytree(tiny_folder, tmp_path / "another") / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 99}))
    said = {name: [f"{name} cannot be loaded"] for name in ("words", "pointer", "another")}
    said |= {"none": ["no such folder"], "bare": ["bare has no tokenizer", "--tokenizer Qwen"]}
    for name, named in said.items():
        with refused(ConfigError, *named):
            load_engine("transformers", ModelSpec(model=str(tmp_path / name)))
    named = load_engine("transformers", ModelSpec(model=str(tmp_path / "bare"), tokenizer=str(tiny_folder)))
    assert named.facts["format"] == "chat template"
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
