"""How tokens are drawn: settings, and the seed of each completion."""

import hashlib
from dataclasses import dataclass

import numpy as np

from answer_judge.errors import raise_problems

STREAM = 8
"""First number of every key: evaluations share no random numbers with a training run of the same seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings of draws; a model's own defaults play no part. ``ConfigError``: a setting out of range."""

    temperature: float = 0.6
    """Divides the logits, >= 0; 0 takes the most likely token."""
    top_p: float = 0.95
    """The most likely tokens that together have this probability are kept, in (0, 1]."""
    top_k: int = 0
    """So many of the most likely tokens are kept; 0 keeps all."""
    max_new_tokens: int = 2048
    """Longest completion, in tokens, >= 1."""

    def __post_init__(self) -> None:
        wrong = []
        if not 0 <= self.temperature < float("inf"):
            wrong.append(f"temperature={self.temperature:g} must be >= 0. Try --temperature 0.6")
        if not 0 < self.top_p <= 1:
            wrong.append(f"top_p={self.top_p:g} must be in (0, 1]. Try --top_p 0.95")
        if self.top_k < 0:
            wrong.append(f"top_k={self.top_k} must be >= 0. Try --top_k 20, or leave it out for all tokens")
        if self.max_new_tokens < 1:
            wrong.append(f"max_new_tokens={self.max_new_tokens} must be at least 1. Try --max_new_tokens 2048")
        raise_problems("sampling", wrong)


def generator(seed: int, *key: int) -> np.random.Generator:
    """A numpy generator for integers >= 0: equal arguments give equal numbers on every machine."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *key])))


def sample_seed(seed: int, problem_key: int, sample: int) -> int:
    """The seed of one completion, in [0, 2**62); ``problem_key`` is ``text_key`` of benchmark and problem."""
    return int(generator(seed, STREAM, 0, problem_key, sample).integers(2**62))


def text_key(text: str) -> int:
    """64 bits of a hash of a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
