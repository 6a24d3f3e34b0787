"""Methods: losses, normalisers and pruning put together as values, one file per paper, with their bias stated."""

from dppo.methods.dppo import on_top_of
from dppo.methods.method import ALL_PROMPTS, ALL_TOKENS, NO_PRUNING, Method, Part
from dppo.methods.registry import METHODS, ROW_METHODS
from dppo.methods.rows import RowMethod, RowScore

__all__ = [
    "ALL_PROMPTS",
    "ALL_TOKENS",
    "METHODS",
    "NO_PRUNING",
    "ROW_METHODS",
    "Method",
    "Part",
    "RowMethod",
    "RowScore",
    "on_top_of",
]
