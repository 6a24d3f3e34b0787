"""Accuracy, its interval, and the shares of difficulty."""

import math

import pytest
import torch

from dppo.demo import evaluate
from dppo.demo.decode import Rollout
from dppo.demo.evaluate import accuracy, difficulty_shares, mean_with_interval
from dppo.demo.task import make_split
from dppo.demo.tokenizer import build_tokenizer

TOKENIZER = build_tokenizer()


def test_accuracy_puts_every_sample_at_its_problem_whatever_the_batches(monkeypatch):
    """A stand-in for the decoder answers sample ``g`` of a problem rightly if and only if ``g`` is below its level."""
    problems = make_split(0, train=30, held_out=0).train
    by_prompt = {f"<user>{problem.question}<assistant>": problem for problem in problems}

    def scripted(model, prompts, generator, *, samples, max_new_tokens, temperature):
        found = [by_prompt[TOKENIZER.decode(prompt)] for prompt in prompts]
        texts = [f"\\boxed{{{p.answer + (g >= p.level)}}}<eos>" for p in found for g in range(samples)]
        ids = [TOKENIZER.encode(text) for text in texts]
        width = max(map(len, ids))
        return Rollout(
            token_NT=torch.tensor([row + [0] * (width - len(row)) for row in ids]),
            length_N=torch.tensor([len(row) for row in ids]),
            logp_NT=torch.zeros(len(ids), width),
        )

    monkeypatch.setattr(evaluate, "sample", scripted)
    expected = [[sample < problem.level for sample in range(6)] for problem in problems]
    for rows in (1, 50, 1000):
        monkeypatch.setattr(evaluate, "BATCH_ROWS", rows)
        assert accuracy(None, TOKENIZER, problems, 6, torch.Generator()).tolist() == expected


def test_interval_by_hand():
    # Means per problem 0, 1/2, 1/2, 1: mean 1/2, standard deviation sqrt(1/6), standard error sqrt(1/24).
    success = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.bool)
    half = 1.96 / math.sqrt(24)
    assert mean_with_interval(success) == pytest.approx((0.5, 0.5 - half, 0.5 + half))
    assert mean_with_interval(torch.ones(3, 2)) == (1.0, 1.0, 1.0)
    assert mean_with_interval(torch.ones(1, 2)) == (1.0, 0.0, 1.0)


def test_interval_does_not_shrink_when_a_problem_is_merely_sampled_more():
    one = torch.tensor([[0], [1], [1], [0], [1.0]])
    assert mean_with_interval(one.repeat(1, 32)) == pytest.approx(mean_with_interval(one))
    wrong = 1.96 * one.repeat(1, 32).flatten().std().item() / math.sqrt(5 * 32)  # samples taken for problems
    assert wrong < 0.3 * (mean_with_interval(one)[0] - mean_with_interval(one)[1])


def test_interval_covers_the_truth_about_95_times_in_100():
    rng = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(1000):
        chance = torch.rand(100, 1, generator=rng)  # true mean 1/2
        _, low, high = mean_with_interval(torch.rand(100, 4, generator=rng) < chance)
        covered += low <= 0.5 <= high
    assert 925 <= covered <= 970


def test_difficulty_shares_count_both_ends_inclusively():
    assert difficulty_shares(torch.tensor([0.0, 0.1, 0.11, 0.5, 0.89, 0.9, 1.0, 1.0])) == pytest.approx(
        (3 / 8, 3 / 8, 2 / 8)
    )
