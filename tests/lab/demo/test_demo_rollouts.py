"""Rollouts for TRL by the decoder: their random numbers and their log-probabilities."""

from types import SimpleNamespace

import pytest
import torch
from refusals import refused

from dppo.errors import ConfigError
from dppo.lab.demo.rollouts import EmbeddedRollouts
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer

PROMPTS = [[{"role": "user", "content": question}] for question in ("1+2=?", "3+4-5=?") for _ in range(3)]


@pytest.fixture(scope="module")
def model():
    return build_model(0).train()


def trainer_of(model, *, step=0, rank=0, **changes):
    args = {"seed": 5, "temperature": 0.8, "max_completion_length": 6, "top_p": 1.0, "top_k": 0, "min_p": None}
    return SimpleNamespace(
        args=SimpleNamespace(**{**args, "repetition_penalty": 1.0, **changes}),
        model=model,
        accelerator=SimpleNamespace(unwrap_model=lambda wrapped: wrapped, process_index=rank),
        state=SimpleNamespace(global_step=step),
        processing_class=build_tokenizer(),
        num_generations=3,
        num_generations_eval=3,
    )


def test_a_function_of_seed_step_round_and_rank_and_of_nothing_else(model):
    first = EmbeddedRollouts()(PROMPTS, trainer_of(model))
    torch.rand(7)
    state = torch.random.get_rng_state()
    again = EmbeddedRollouts()
    assert again(PROMPTS, trainer_of(model)) == first
    assert torch.equal(torch.random.get_rng_state(), state)
    others = [
        again(PROMPTS, trainer_of(model)),  # the second round of the same step
        again(PROMPTS, trainer_of(model, step=1)),
        EmbeddedRollouts()(PROMPTS, trainer_of(model, rank=1)),
        EmbeddedRollouts()(PROMPTS, trainer_of(model, seed=6)),
    ]
    made = [tuple(map(tuple, output["completion_ids"])) for output in (first, *others)]
    assert len(set(made)) == 5
    assert again(PROMPTS, trainer_of(model)) == first, "a new step starts with round 0"
    evaluated = build_model(0).eval()
    made = [EmbeddedRollouts()(PROMPTS, trainer_of(evaluated, step=step)) for step in (0, 3)]
    assert made[0] == made[1], "evaluations draw the same at every step"


def test_settings_and_models_that_the_decoder_does_not_compute(model):
    with refused(ConfigError, "top_p=0.9", "top_p: 1.0", "top_k=20", "temperature=0"):
        EmbeddedRollouts()(PROMPTS, trainer_of(model, top_p=0.9, top_k=20, temperature=0.0))
    with refused(ConfigError, "rollout_func", "Linear"):
        EmbeddedRollouts()(PROMPTS, trainer_of(torch.nn.Linear(2, 2)))
