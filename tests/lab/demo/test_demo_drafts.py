"""Drafts change the speed of decoding alone: by enumeration, by frequencies, and by a full forward pass."""

import pytest
import torch
from scipy import stats
from transformers import Qwen3Config
from wrong_drafts import CHANCE, WRONG, draws, forward_logps

from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import TOKENS, build_tokenizer, encode_questions
from dppo_lab.demo import drafts as drafts_module
from dppo_lab.demo.cache import Cache
from dppo_lab.demo.decode import sample
from dppo_lab.demo.drafts import LastCompletions, sample_drafted

END = 1


def change(model, by):
    """The matrices times ``by``: sharper, and far from the untrained policy's near uniform tokens."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(by)
    return model.eval()


@pytest.fixture(scope="module")
def model():
    return change(build_model(0), 8)


@pytest.fixture(scope="module")
def older():
    """The same policy some steps earlier: near it, and not it."""
    policy = change(build_model(0), 8)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draws(7)) * 0.01)
    return policy


@pytest.fixture(scope="module")
def prompts():
    return [*encode_questions(build_tokenizer(), ["1+2=?", "3+4-5+6=?", "7+7+1-2+3=?"]), [1], [1, 5]]


@pytest.fixture(scope="module")
def tiny():
    """Five tokens, so that every completion of three can be written down."""
    config = Qwen3Config(
        vocab_size=5,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        pad_token_id=0,
        eos_token_id=END,
        bos_token_id=None,
        initializer_range=0.3,
    )
    return build_model(0, config).eval()


def spread(found, samples):
    """Completions by prompt, as tuples."""
    rows = [tuple(row) for row in found.token_lists]
    return [rows[start : start + samples] for start in range(0, len(rows), samples)]


# Whole completions

PROMPT, LONGEST = [2, 3], 3
TINY_DRAFTS = [[4, 4, 2], [4, 0, 3], [4, END], [0, 4, 4, 4, 4]]


def enumerated(model, temperature):
    """The probability of every completion, by full forward passes."""
    found, begun = {}, {(): 1.0}
    while begun:
        longer = {}
        for text, prob in begun.items():
            with torch.no_grad():
                logit_V = model(torch.tensor([PROMPT + list(text)])).logits[0, -1].double()
            prob_V = (logit_V / temperature).softmax(0)
            for token in range(5):
                into = found if token == END or len(text) + 1 == LONGEST else longer
                into[*text, token] = prob * float(prob_V[token])
        begun = longer
    return found


def chance_of_completions(model, drafts, temperature=1.0, samples=20_000):
    """p-value of whole completions against their enumerated probabilities, rare ones together.

    A second prompt without drafts makes texts of the batch unequal.
    """
    settings = {"samples": samples, "max_new_tokens": LONGEST, "temperature": temperature}
    made = sample_drafted(model, [PROMPT, [4]], [drafts, []], draws(11), **settings)
    prob = enumerated(model, temperature)
    assert sum(prob.values()) == pytest.approx(1, abs=1e-5) and len(prob) == 4 * 4 * 5 + 4 + 1
    texts = spread(made, samples)[0]
    assert set(texts) <= prob.keys()
    common = [text for text, each in prob.items() if each * samples > 10]
    seen = [texts.count(text) for text in common]
    expected = [prob[text] * samples for text in common]
    seen, expected = [*seen, samples - sum(seen)], [*expected, samples - sum(expected)]
    return stats.chisquare(seen, [each * samples / sum(expected) for each in expected]).pvalue


@pytest.mark.parametrize(("count", "temperature"), [(1, 0.7), (4, 1.0)])
def test_completions_have_their_enumerated_probabilities(tiny, count, temperature):
    assert chance_of_completions(tiny, TINY_DRAFTS[:count], temperature) > CHANCE


@pytest.mark.parametrize("wrong", WRONG)
def test_completions_under_a_wrong_rule_are_caught(tiny, wrong, monkeypatch):
    monkeypatch.setattr(drafts_module, "accept_or_resample", wrong)
    assert chance_of_completions(tiny, TINY_DRAFTS[:1]) < CHANCE


def test_keys_and_values_of_another_branch_would_be_caught(tiny, monkeypatch):
    """A tree that is read as one text: what a node sees is then more than its own beginning."""
    monkeypatch.setattr(drafts_module, "_stops", lambda children: [len(children)] * len(children))
    assert chance_of_completions(tiny, TINY_DRAFTS) < CHANCE


def test_log_probabilities_are_those_of_a_full_forward(model, older, prompts):
    settings = {"samples": 4, "max_new_tokens": 24, "temperature": 0.7}
    drafts = spread(sample(older, prompts, draws(1), **settings), 4)
    drafts[1], drafts[3] = [], [(9,) * 40, (9,) * 3]
    made = sample_drafted(model, prompts, drafts, draws(2), **settings)
    accepted = 0
    for row, completion in enumerate(made.token_lists):
        expected = forward_logps(model, prompts[row // 4], completion, 0.7)
        torch.testing.assert_close(made.logp_NT[row, : len(completion)], expected, atol=1e-4, rtol=0)
        accepted += any(tuple(completion[:2]) == tuple(draft[:2]) for draft in drafts[row // 4])
    assert 0 < accepted < len(made.length_N)
    assert (made.logp_NT[~made.mask_NT] == 0).all() and (made.token_NT[~made.mask_NT] == 0).all()


def test_without_drafts_it_is_plain_sampling(model, prompts):
    settings = {"samples": 3, "max_new_tokens": 16}
    plain = sample(model, prompts, draws(5), **settings)
    assert plain.length_N.min() > 1, "plain sampling keeps an ended row for a while, and draws for it"
    made = sample_drafted(model, prompts, [[] for _ in prompts], draws(5), **settings)
    assert torch.equal(made.token_NT, plain.token_NT) and torch.equal(made.length_N, plain.length_N)
    torch.testing.assert_close(made.logp_NT, plain.logp_NT, atol=1e-4, rtol=0)


def variants(text, end):
    """Drafts that are too long, wrong, go on behind an end of sequence, or are several."""
    half = len(text) // 2
    return [
        [text + [7] * 50],
        [[*text[:half], (text[half] + 1) % 28, *text[half:]]],
        [[*text[:half], end, 5, 5]],
        [text, text[:half], [*text[:half], 8, 8], [6]],
    ]


@pytest.mark.parametrize("number", range(4))
def test_the_most_likely_tokens_are_the_same_whatever_the_draft(model, prompts, number):
    end = TOKENS.index("<eos>")
    plain = sample(model, prompts, None, max_new_tokens=20, temperature=0)
    drafts = [variants(text, end)[number] for text in plain.token_lists]
    made = sample_drafted(model, prompts, drafts, None, max_new_tokens=20, temperature=0)
    assert torch.equal(made.token_NT, plain.token_NT) and torch.equal(made.length_N, plain.length_N)
    torch.testing.assert_close(made.logp_NT, plain.logp_NT, atol=1e-4, rtol=0)


def test_the_model_reads_less_with_a_good_draft(model, prompts, monkeypatch):
    read, forward = [], Cache.forward
    monkeypatch.setattr(Cache, "forward", lambda self, *given: read.append(given[0].numel()) or forward(self, *given))
    plain = sample(model, prompts, None, samples=4, max_new_tokens=20, temperature=0)
    alone = (len(read), sum(read))
    read.clear()
    drafts = [[row] for row in plain.token_lists[::4]]
    sample_drafted(model, prompts, drafts, None, samples=4, max_new_tokens=20, temperature=0)
    assert len(read) == 1 and sum(read) < alone[1] / 2 and alone[0] > 15


def test_the_last_completions_are_the_next_drafts(model, prompts, monkeypatch):
    given, plain = [], drafts_module.sample_drafted
    monkeypatch.setattr(
        drafts_module,
        "sample_drafted",
        lambda m, p, d, *rest, **named: given.append(d) or plain(m, p, d, *rest, **named),
    )
    decoder = LastCompletions()
    first = decoder(model, prompts[:2], draws(), samples=2, max_new_tokens=8)
    second = decoder(model, [prompts[1], prompts[2], prompts[1]], draws(1), samples=1, max_new_tokens=8)
    decoder(model, prompts[:3], draws(), max_new_tokens=8)
    rows, later = first.token_lists, second.token_lists
    assert given[0] == [[], []] and given[1] == [rows[2:], [], rows[2:]]
    assert given[2] == [rows[:2], [later[0], later[2]], [later[1]]], "of the last time, of all places in a batch"
