"""The policy of the embedded task: what is saved, and that nothing incomplete is left behind."""

from unittest.mock import Mock

import pytest
import torch
from refusals import refused
from transformers import AutoModelForCausalLM, AutoTokenizer

from dppo.errors import ConfigError
from dppo.lab.demo.scratch import prepare_embedded
from dppo.verification.tiny_tokenizer import build_tokenizer, encode_questions


def test_the_embedded_policy_is_saved_with_its_tokenizer_and_is_a_function_of_the_seed(tmp_path):
    told = []
    for name in ("a", "b"):
        prepare_embedded(tmp_path / name, seed=5, steps=2, on_step=lambda done, loss: told.append(done))
    assert told == [0.5, 1.0] * 2
    models = [AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("a", "b")]
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    loaded, built = AutoTokenizer.from_pretrained(tmp_path / "a"), build_tokenizer()
    questions = ["3+5=?", "12-4+6=?"]
    assert encode_questions(loaded, questions) == encode_questions(built, questions)
    answer = "3+5=8;\\boxed{8}<eos>"
    assert loaded(answer)["input_ids"] == built(answer)["input_ids"]
    assert loaded.decode(loaded(answer)["input_ids"]) == answer


def test_nothing_half_made_is_left_and_nothing_is_overwritten(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        prepare_embedded(tmp_path / "start", seed=0, steps=1, on_step=Mock(side_effect=KeyboardInterrupt))
    assert not list(tmp_path.iterdir())
    (tmp_path / "start.unfinished").mkdir()  # left by a run that was killed outright
    (tmp_path / "start.unfinished" / "junk").touch()
    prepare_embedded(tmp_path / "start", seed=0, steps=1)
    assert [path.name for path in tmp_path.iterdir()] == ["start"] and not (tmp_path / "start" / "junk").exists()
    with refused(ConfigError, tmp_path / "start", "rm -r"):
        prepare_embedded(tmp_path / "start", seed=0, steps=1)
