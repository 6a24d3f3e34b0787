"""Features of prompts are those of a forward pass of each prompt alone."""

import numpy as np
import pytest
import torch
from refusals import refused

from dppo.errors import ConfigError
from dppo.packing.attention import use_rows
from dppo.packing.head import add_scored_head
from dppo.rng import Purpose, generator
from dppo.verification.tiny_model import build_model
from dppo_lab.demo.policy_features import policy_features

PROMPTS = [[1, 4, 14, 5, 2], [1, 9, 2], [1, 4, 14, 5, 16, 7, 15, 2], [1]]


@pytest.fixture(scope="module")
def model():
    return build_model(0).eval()


@torch.no_grad()
def one_by_one(model, prompts):
    """(P, 1 + width) mean log-probability and last hidden state, without padding."""
    found = []
    for prompt in prompts:
        output = model(input_ids=torch.tensor([prompt]), output_hidden_states=True)
        logp = output.logits[0].double().log_softmax(1)
        scored = [logp[place, token] for place, token in enumerate(prompt[1:])]
        mean = torch.stack(scored).mean() if scored else torch.tensor(0.0)
        found.append(torch.cat([mean[None].double(), output.hidden_states[-1][0, -1].double()]))
    return torch.stack(found).numpy()


def test_every_prompt_is_read_by_itself(model):
    found, alone = policy_features(model, PROMPTS, seed=3, dimensions=6), one_by_one(model, PROMPTS)
    projection = generator(3, Purpose.PROJECTION).normal(size=(128, 6)) / np.sqrt(128)
    np.testing.assert_allclose(found[:, 0], alone[:, 0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(found[:, 1:], alone[:, 1:] @ projection, rtol=0, atol=1e-4)
    # The wrong twin reads the last column, which is padding for all but the longest.
    last = one_by_one(model, [prompt + [0] * (8 - len(prompt)) for prompt in PROMPTS])
    assert np.abs(last[:, 1:] @ projection - found[:, 1:])[[0, 1, 3]].max(1).min() > 0.01


def test_the_projection_is_that_of_the_seed_and_rows_do_not_matter(model):
    found = policy_features(model, PROMPTS, seed=3)
    assert found.shape == (4, 9) and np.array_equal(found, policy_features(model, PROMPTS, seed=3))
    other = policy_features(model, PROMPTS, seed=4)
    assert np.array_equal(found[:, 0], other[:, 0]) and np.abs(found[:, 1:] - other[:, 1:]).min() > 0
    patched = build_model(0).eval()
    use_rows(patched)
    add_scored_head(patched)
    np.testing.assert_allclose(policy_features(patched, PROMPTS, seed=3), found, rtol=0, atol=1e-4)
    assert policy_features(model, PROMPTS, seed=3, dimensions=0).shape == (4, 1)


def test_prompts_without_tokens_are_refused(model):
    for prompts in ([], [[1], []]):
        with refused(ConfigError, "prompts"):
            policy_features(model, prompts, seed=0)
    with refused(ConfigError, "dimensions=-1"):
        policy_features(model, PROMPTS, seed=0, dimensions=-1)
