import pytest
import torch

from dppo.demo.model import build_model
from dppo.demo.tokenizer import build_tokenizer
from dppo.verification.subject import Sampling, frozen_subject


def nothing(prompt, tokens):
    """No completion is ever rewarded, as with an untrained model."""
    return torch.zeros(len(tokens))


@pytest.fixture(scope="session")
def subject():
    """Six prompts with four completions each of the untrained embedded model: seconds, not a trained policy."""
    prompts = [[1, 4 + p, 14, 5 + p, 16, 2] for p in range(6)]
    sampling = Sampling(generations=4, max_new_tokens=10)
    return frozen_subject(build_model(0), build_tokenizer(), prompts, nothing, sampling=sampling, title="untrained")
