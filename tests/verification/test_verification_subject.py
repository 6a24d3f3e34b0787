"""The subject: rewards that are its own or say that they are not, and what a history of earlier rollouts holds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused

from dppo.errors import ConfigError
from dppo.lab.subject import SubjectSampling, frozen_subject, generate, random_rewards, remembered
from dppo.methods import METHODS
from dppo.pruning import PromptHistory, advantage_with_length, advantage_with_uncertainty


def test_a_subject_without_rewards_says_that_they_are_random(subject):
    assert "drawn at random" in subject.describe()
    assert subject.reward_PG.std(1).gt(0).sum() >= 4
    shape = subject.reward_PG[:, None].expand(-1, 2, -1).shape
    assert random_rewards(shape, 0).equal(random_rewards(shape, 0))
    assert not random_rewards(shape, 0).equal(random_rewards(shape, 1))


def test_a_subject_keeps_real_rewards_and_needs_two_of_everything(subject):
    def made(prompts, reward, sampling):
        return frozen_subject(subject.model, subject.tokenizer, prompts, reward, sampling=sampling, title="made")

    def odd_sums(prompt, tokens):
        return torch.tensor([[float(sum(row) % 2)] for row in tokens])

    again = made(list(subject.prompt_tokens), odd_sums, SubjectSampling(generations=4, max_new_tokens=10))
    assert again.notes == ()
    assert again.completion_tokens == subject.completion_tokens, "the same seed"
    assert len(again.earlier_tokens) == 24 and again.earlier_tokens != again.completion_tokens, "others, from before"
    assert again.reward_PG.flatten().tolist() == [float(sum(row) % 2) for row in again.completion_tokens]
    with refused(ConfigError, "2"):
        made([[1, 2]], lambda *_: torch.zeros(16, 1), SubjectSampling())


DPPO = METHODS["dppo"]
ROOTED = replace(DPPO.completions, score=lambda completions: advantage_with_uncertainty(completions).sqrt())
REMEMBERED = {name: METHODS[name] for name in ("a_star_po", "dppo_a_star_po")}
REMEMBERED["score of your own"] = replace(DPPO, completions=ROOTED)


@pytest.mark.parametrize("method", REMEMBERED.values(), ids=REMEMBERED)
def test_values_and_a_score_of_your_own_are_remembered(subject, method):
    """Values are there before training; the wrong twin knows none, and ended ``dppo verify`` after its checks."""
    assert bool((remembered(subject, method).signal_P > 0).any())


def test_completions_are_sampled_from_the_policy_whatever_its_folder_says(subject, monkeypatch):
    """The wrong twin takes ``min_p`` from the model's ``generation_config``: one completion, over and over."""
    monkeypatch.setattr(subject.model.generation_config, "min_p", 0.999)
    made = generate(subject.model, subject.tokenizer, list(subject.prompt_tokens[:1]), 16, SubjectSampling())
    assert subject.model.generation_config.min_p == 0.999 and len({tuple(each) for each in made}) > 4


def test_cuts_and_temperature_0_take_the_most_likely_token(subject):
    """The wrong twin samples, and torch's own generator stands where it stood."""
    before = torch.random.get_rng_state()
    given = ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-6}, {})
    greedy, top, nucleus, sampled = (
        generate(subject.model, subject.tokenizer, list(subject.prompt_tokens), 1, SubjectSampling(**cut))
        for cut in given
    )
    assert greedy == top == nucleus != sampled and torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("score", [advantage_with_length, advantage_with_uncertainty], ids=["length", "uncertainty"])
def test_what_is_remembered_is_the_size_of_the_earlier_gradients(subject, score):
    """By hand: the root of the group's sum of ``(A * norm / tokens)^2``, from one forward pass per completion."""
    square_P = torch.zeros(6, dtype=torch.float64)
    reward_PG = subject.earlier_rewards.reward_NF.view(6, 4)
    for row, tokens in enumerate(subject.earlier_tokens):
        group_G = reward_PG[row // 4]
        advantage = (reward_PG[row // 4, row % 4] - group_G.mean()) / (group_G.std() + 1e-4)
        sequence = torch.tensor([subject.prompt_tokens[row // 4] + tokens])
        with torch.no_grad():
            probs = subject.model(input_ids=sequence).logits[0].float().softmax(-1)
        start = sequence.shape[1] - len(tokens) - 1
        unsure = [1 - float(probs[start + place, token]) for place, token in enumerate(tokens)]
        norm = math.sqrt(len(tokens) if score is advantage_with_length else sum(u * u for u in unsure))
        square_P[row // 4] += float(advantage * norm / len(tokens)) ** 2
    assert (square_P > 0).sum() >= 4
    tokens_N = torch.tensor([len(tokens) for tokens in subject.earlier_tokens])
    history = PromptHistory(np.arange(6, dtype=np.uint64))
    history.update(torch.arange(6), subject.earlier_rewards, square_P.sqrt(), tokens_N, 0)
    wanted = history.candidates(torch.arange(6), 1)
    found = remembered(subject, replace(DPPO, completions=replace(DPPO.completions, score=score)))
    assert torch.allclose(found.signal_P, wanted.signal_P, rtol=1e-5)
    assert torch.allclose(found.tokens_P, wanted.tokens_P) and bool(found.seen_P.all())
