"""Methods: losses, normalisers and pruning put together as values, with their bias stated."""

from dppo.methods.method import PER_TOKEN_SCORES, Method
from dppo.methods.presets import (
    CPPO,
    DAPO_LOSS,
    DPPO,
    DPPO_DETERMINISTIC,
    DPPO_THRESHOLD,
    DR_GRPO,
    GRPO,
    GSPO,
    METHODS,
)

__all__ = [
    "CPPO",
    "DAPO_LOSS",
    "DPPO",
    "DPPO_DETERMINISTIC",
    "DPPO_THRESHOLD",
    "DR_GRPO",
    "GRPO",
    "GSPO",
    "METHODS",
    "PER_TOKEN_SCORES",
    "Method",
]
