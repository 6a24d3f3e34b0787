"""Random generators as a function of seed, step and purpose: every rank and a resumed run draw the same numbers."""

from collections.abc import Callable
from enum import IntEnum

import numpy as np
import torch

from dppo.errors import ConfigError


class Purpose(IntEnum):
    """Purposes of streams of random numbers. Never renumber: the values decide the draws of every run."""

    PROMPT_ORDER = 1
    PROMPT_DRAW = 2
    COMPLETION_DRAW = 3
    DEAL = 4
    TASK = 5
    WARM_UP = 6
    ROLLOUT = 7
    EVALUATION = 8
    CHECK = 9
    MODEL = 10
    PROMPT_SKIP = 11
    PROJECTION = 12
    ROW_DRAW = 13
    TOKEN_DRAW = 14


def generator(seed: int, *key: int) -> np.random.Generator:
    """A numpy generator for ``(seed, *key)``: equal arguments give equal numbers on every machine.

    ``seed`` >= 0 is the run's. The key is a ``Purpose``, then further integers >= 0, such as a step: with the purpose
    first no two purposes share numbers. Zeros at the end of a short key are lost: ``(CHECK, 0)`` is ``(CHECK,)``.
    """
    if key and not isinstance(key[0], Purpose):
        raise ConfigError(f"the key {key} must begin with a Purpose. Write generator(0, Purpose.CHECK, 3).")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *map(int, key)])))


def torch_generator(seed: int, *key: int, device: str | torch.device = "cpu") -> torch.Generator:
    """A torch generator for tensors on ``device``, with the arguments of ``generator``."""
    return torch.Generator(device).manual_seed(int(generator(seed, *key).integers(2**62)))


Streams = Callable[..., np.random.Generator]
"""``streams(purpose, *key)``: the generator of a step for a ``Purpose`` and further integers."""


def step_streams(seed: int, step: int) -> Streams:
    """The random numbers of one step of a run, the same on every rank and after a resume."""
    return lambda purpose, *key: generator(seed, purpose, step, *key)
