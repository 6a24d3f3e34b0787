"""Methods: an objective and a pruning scheme put together as a value, one file per paper, with their bias stated."""

from dppo.methods.method import ALL_PROMPTS, ALL_TOKENS, NO_PRUNING, Method, Objective, Part, Scheme, combined
from dppo.methods.registry import METHODS, OBJECTIVES, ROW_METHODS, SCHEMES
from dppo.methods.rows import RowMethod, RowScore

__all__ = ["ALL_PROMPTS", "ALL_TOKENS", "METHODS", "NO_PRUNING", "OBJECTIVES", "ROW_METHODS", "SCHEMES", "Method"]
__all__ += ["Objective", "Part", "RowMethod", "RowScore", "Scheme", "combined"]
