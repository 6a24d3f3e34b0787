"""Completions and candidates on which prunings are enumerated."""

import torch
from arrays import candidates_of, tensor

from dppo.types import Completions

EXACT = 1e-12
ADVANTAGE = tensor([1.5, -0.5, -0.5, 0.0, 2.0])
COMPLETIONS = Completions(
    advantage_N=ADVANTAGE,
    tokens_N=torch.tensor([5, 1, 8, 3, 2]),
    group_N=torch.tensor([0, 0, 0, 1, 1]),
    live_N=ADVANTAGE != 0,
)
CANDIDATES = candidates_of([0.1, 2.0, 1.0, 0.5, 0.4], tokens=[9, 5, 10, 20, 8], seen=[True, True, True, False, True])
