"""Completions and candidates on which prunings are enumerated."""

import torch

from dppo.types import Candidates, Completions

EXACT = 1e-12
ADVANTAGE = torch.tensor([1.5, -0.5, -0.5, 0.0, 2.0], dtype=torch.float64)
COMPLETIONS = Completions(
    advantage_N=ADVANTAGE,
    tokens_N=torch.tensor([5, 1, 8, 3, 2]),
    group_N=torch.tensor([0, 0, 0, 1, 1]),
    live_N=ADVANTAGE != 0,
)
CANDIDATES = Candidates(
    row_P=torch.arange(5),
    signal_P=torch.tensor([0.1, 2.0, 1.0, 0.5, 0.4], dtype=torch.float64),
    tokens_P=torch.tensor([9.0, 5.0, 10.0, 20.0, 8.0], dtype=torch.float64),
    seen_P=torch.tensor([True, True, True, False, True]),
)
