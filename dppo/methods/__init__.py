"""Methods: losses, normalisers and pruning put together as values, one file per paper, with their bias stated."""

from dppo.methods.dppo import on_top_of
from dppo.methods.method import ALL_PROMPTS, NO_PRUNING, Method, Part, in_words
from dppo.methods.registry import METHODS

__all__ = ["ALL_PROMPTS", "METHODS", "NO_PRUNING", "Method", "Part", "in_words", "on_top_of"]
