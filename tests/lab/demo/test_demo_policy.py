"""The tiny policy and its tokenizer: a function of the seed, round trips, refusal of unknown characters."""

import pytest
import torch

from dppo.rng import generator
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import TOKENS, build_tokenizer, encode_questions
from dppo_lab.demo.task import FULL, demonstration, make_split

TOKENIZER = build_tokenizer()


def test_a_fresh_policy_is_close_to_uniform_and_has_tied_embeddings():
    model = build_model(0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 594_496
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model(torch.arange(28)[None]).logits.log_softmax(-1).exp().max() < 0.2


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(11)
    first = build_model(3).state_dict()
    torch.manual_seed(12)
    before = torch.random.get_rng_state()
    second, other = build_model(3).state_dict(), build_model(4).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_every_text_of_the_task_survives_a_round_trip():
    rng = generator(1)
    for problem in make_split(0).train:
        for text in (problem.question, demonstration(problem, FULL.teacher, rng)):
            assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_all_characters_survive_a_round_trip_and_a_box_is_one_token():
    text = "".join(TOKENS[4:]) + " ) (. , ?\n\n  " + r"\boxed{1}}"
    assert len(TOKENS) == len(TOKENIZER) == 28
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
    assert TOKENIZER.convert_ids_to_tokens(TOKENIZER.encode(r"\boxed{12}")) == ["\\boxed{", "1", "2", "}"]


@pytest.mark.parametrize("text", ["x", "5x", "\\box", "{"])
def test_an_unknown_character_raises(text):
    with pytest.raises(Exception, match="UNK"):
        TOKENIZER.encode(text)


def test_chat_template_wraps_turns():
    chat = [{"role": "user", "content": "1+2=?"}, {"role": "assistant", "content": r"\boxed{3}"}]
    whole = TOKENIZER.apply_chat_template(chat, tokenize=False)
    assert whole == r"<user>1+2=?<assistant>\boxed{3}<eos>"
    (prompt,) = encode_questions(TOKENIZER, ["1+2=?"])
    assert TOKENIZER.decode(prompt) == "<user>1+2=?<assistant>"
    completion = TOKENIZER.encode(r"\boxed{3}<eos>")
    assert prompt + completion == TOKENIZER.encode(whole)
    assert TOKENIZER.decode(completion, skip_special_tokens=True) == r"\boxed{3}"


def test_an_unknown_role_raises():
    with pytest.raises(Exception, match="roles are user and assistant"):
        TOKENIZER.apply_chat_template([{"role": "system", "content": "1"}], tokenize=False)
