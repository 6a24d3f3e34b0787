"""What groups of equal rewards hold of a gradient: figures by hand, and true gradients of a tiny model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.learning.silent import figures, measured
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer, encode_questions
from dppo_lab.runs.subject import RolloutParts
from dppo_lab.subject import SubjectSampling


def test_without_any_gradient_there_are_no_shares():
    found = figures(np.zeros((2, 2, 3)), np.array([True, True]))
    assert found == {"silent": 1.0, "square_share": None, "mean_share": None, "kl_share": None}


def test_shares_by_hand():
    """Groups (3, 4) + 0 and 0 + (0, 2): squares 25 and 4, sums (3, 6); policy 5, KL 2."""
    gradient = np.array([[[3.0, 4.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 2.0]]])
    found = figures(gradient, np.array([False, True]))
    assert found == {
        "silent": 0.5,
        "square_share": pytest.approx(4 / 29),
        "mean_share": pytest.approx(4 / 45),
        "kl_share": pytest.approx(2 / 5),
    }


@pytest.fixture
def parts():
    tokenizer = build_tokenizer()
    prompts = encode_questions(tokenizer, ["1+1=?", "2+3=?"])
    return RolloutParts(
        model=build_model(3),
        tokenizer=tokenizer,
        prompts=prompts,
        scorer=lambda prompt, tokens: torch.tensor([[float(index == 0 and sum(ids) % 2)] for index, ids in
                                                    zip(prompt, tokens, strict=True)]),
        weights=[1.0],
        sampling=SubjectSampling(generations=4, max_new_tokens=9),
    )  # fmt: skip


def test_at_the_reference_the_term_is_flat_and_away_from_it_silent_groups_have_a_gradient(parts):
    same = measured(parts, replace(parts, model=build_model(3)), 0.04)
    assert same["kl"] == pytest.approx(0, abs=1e-6) and same["kl_share"] < 1e-4 and same["square_share"] < 1e-8
    moved = measured(parts, replace(parts, model=build_model(4)), 0.04)
    assert moved["silent"] >= 0.5 and moved["kl"] > 1e-3 and moved["square_share"] > 1e-6
    # k3 is linear in beta: half of it is half of the term's share.
    assert measured(parts, replace(parts, model=build_model(4)), 0.02)["kl_share"] == pytest.approx(
        moved["kl_share"] / 2, rel=1e-4
    )
