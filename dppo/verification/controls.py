"""Controls, which the checks must find wrong: methods and cuts that are biased on any rollouts, and wrong layouts."""

from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dppo.methods import METHODS, Method
from dppo.methods.ranking import Ranking
from dppo.packing import Kernel, Segments
from dppo.packing.kernels import by_segment, segment_sdpa
from dppo.pruning import DETERMINISTIC, UNWEIGHTED, PromptPruning, Pruning, Score, TokenPruning, best_cuts, uniform
from dppo.pruning.designs import neighbours
from dppo.types import Completions, Draw, scattered


class TopOfLive(Ranking):
    """A ranking among completions with a gradient alone."""

    def draw(self, completions: Completions, rng: np.random.Generator) -> Draw:
        unit_R = neighbours(completions)
        draw = super().draw(completions.take(unit_R), rng)
        return scattered(draw, unit_R, len(completions.live_N))


def top_of_live(score: Score, rate: float) -> TopOfLive:
    """CPPO's rule among completions with a gradient: the largest scores of each prompt, and a mean over them."""
    own = {field.name: getattr(METHODS["cppo"].completions, field.name) for field in fields(TopOfLive)}
    return TopOfLive(**own | {"score": score, "rate": rate})


def _up_to_the_largest(moment_NT: Tensor, span_NT: Tensor, rate: float, floor: float) -> Tensor:
    return ((torch.arange(span_NT.shape[1]) <= moment_NT.argmax(1, keepdim=True)) & span_NT).double()


def _without_floor(moment_NT: Tensor, span_NT: Tensor, rate: float, floor: float) -> Tensor:
    reach_NT = best_cuts(moment_NT, span_NT, rate, floor)
    return torch.where(reach_NT > 0.5, reach_NT, 0.0)


def wrong_cuts(rate: float) -> dict[str, TokenPruning]:
    """Biased cuts, by name: at the token of the largest moment, which depends on later tokens, and without a floor."""
    rules = {"cuts by what is sampled later": _up_to_the_largest, "cuts without a floor": _without_floor}
    return {name: TokenPruning(rate=rate, cut_rule=rule) for name, rule in rules.items()}


def wrong_methods(right: Method, right_prompts: Method, rate: float) -> dict[str, Method]:
    """Biased methods, by name, made from one that prunes completions and one that prunes prompts at this rate.

    The latter needs an exact normaliser: a ratio of two sums would hide a common factor of all weights.
    """
    half = Pruning(rate=rate, score=right.score, rule=uniform)
    return {
        "CPPO's rule": replace(right, completions=top_of_live(right.score, rate)),
        "the deterministic rule": replace(right, completions=replace(half, design=DETERMINISTIC)),
        "completion weights forgotten": replace(right, completions=replace(half, weighting=UNWEIGHTED)),
        "prompt weights forgotten": replace(
            right_prompts, prompts=PromptPruning(rate=rate, rule=uniform, weighting=UNWEIGHTED)
        ),
    }


def wrong_kernels() -> dict[str, Kernel]:
    """Kernels with a likely mistake, by its description."""
    return {
        "masks aligned at the top left": Kernel(name="top left", attend=_top_left),
        "a row taken for one sequence": Kernel(name="one sequence", attend=_one_sequence),
    }


def _top_left(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """``is_causal`` with fewer queries than keys: the first query attends to the first key only."""
    parts = by_segment(query, key, value, segments)
    return torch.cat([F.scaled_dot_product_attention(*part, is_causal=True, scale=scale) for part in parts], 2)


def _one_sequence(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """Every token attends to all tokens before it, those of other completions too."""
    return segment_sdpa(query, key, value, Segments(length_S=(segments.total,), trunk_S=(-1,)), scale, None)
