"""The tiny policy and its tokenizer: a function of the seed, round trips, refusal of unknown characters."""

import pytest
import torch

from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import TOKENS, build_tokenizer

TOKENIZER = build_tokenizer()


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(11)
    first = build_model(3).state_dict()
    torch.manual_seed(12)
    before = torch.random.get_rng_state()
    second, other = build_model(3).state_dict(), build_model(4).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_all_characters_survive_a_round_trip_and_a_box_is_one_token():
    text = "".join(TOKENS[4:]) + " ) (. , ?\n\n  " + r"\boxed{1}}"
    assert len(TOKENS) == len(TOKENIZER) == 28
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
    with pytest.raises(Exception, match="UNK"):
        TOKENIZER.encode("5x")
    assert TOKENIZER.convert_ids_to_tokens(TOKENIZER.encode(r"\boxed{12}")) == ["\\boxed{", "1", "2", "}"]
