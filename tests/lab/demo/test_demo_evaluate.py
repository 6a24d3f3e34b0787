"""Accuracy, and the shares of difficulty."""

import pytest
import torch

from dppo.verification.tiny_tokenizer import build_tokenizer
from dppo_lab.demo import evaluate
from dppo_lab.demo.decode import Rollout
from dppo_lab.demo.evaluate import accuracy, difficulty_shares
from dppo_lab.demo.task import make_split

TOKENIZER = build_tokenizer()


def test_accuracy_puts_every_sample_at_its_problem_whatever_the_batches(monkeypatch):
    """A stand-in for the decoder answers sample ``g`` of a problem rightly if and only if ``g`` is below its level."""
    problems = make_split(0, train=30, held_out=0).train
    by_prompt = {f"<user>{problem.question}<assistant>": problem for problem in problems}

    def scripted(model, prompts, generator, *, samples, max_new_tokens):
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


def test_difficulty_shares_count_both_ends_inclusively():
    assert difficulty_shares(torch.tensor([0.0, 0.1, 0.11, 0.5, 0.89, 0.9, 1.0, 1.0])) == pytest.approx(
        (3 / 8, 3 / 8, 2 / 8)
    )
