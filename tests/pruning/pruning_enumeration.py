"""Exact distributions of draws: ``every_draw`` cuts the space of their random numbers into boxes of equal results.

It halves the distance between two numbers with different results until next to nothing is left. The chance of a
result is the volume of its boxes.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, permutations
from math import factorial, prod

import numpy as np
import torch
from torch import Tensor

TOP = 1 - 2.0**-53
"""The largest number that a generator gives."""
CHECKS = 20
"""Random points at which the boxes are held against the draw."""


class Numbers:
    """Stands in for a generator: gives the uniform numbers and the order it was made with, and 0 after that."""

    def __init__(self, numbers: tuple[float, ...] = (), order: tuple[int, ...] | None = None) -> None:
        self.numbers, self.order, self.used, self.permuted = numbers, order, 0, 0

    def random(self, size=None):
        count = 1 if size is None else int(np.prod(size))
        given = self.numbers[self.used : self.used + count]
        self.used += count
        filled = [*given, *[0.0] * (count - len(given))]
        return filled[0] if size is None else np.array(filled).reshape(size)

    def permutation(self, size: int) -> np.ndarray:
        self.permuted = size
        return np.array(range(size) if self.order is None else self.order, int)


@dataclass(frozen=True)
class Box:
    """Random numbers that all give the same result."""

    result: Hashable
    sides: tuple[tuple[float, float], ...]
    order: tuple[int, ...]

    @property
    def chance(self) -> float:
        return prod(high - low for low, high in self.sides) / factorial(len(self.order))

    def rng(self) -> Numbers:
        """Numbers from the middle of it."""
        return Numbers(tuple((low + high) / 2 for low, high in self.sides), self.order)


def every_draw(run: Callable[[Numbers], Hashable]) -> list[Box]:
    """All boxes of ``run(rng)``, whose results must be comparable: tuples of numbers."""
    first = Numbers()
    run(first)
    count = first.used

    def ends(order, known: tuple[float, ...]) -> list[Hashable]:
        """Results with the numbers that are not settled yet all at the bottom, and all at the top."""
        rest = count - len(known)
        return [run(Numbers((*known, *[end] * rest), order)) for end in ((0.0, TOP) if rest else (0.0,))]

    def changes(order, known, low, at_low, high, at_high) -> Iterator[float]:
        if at_low == at_high:
            return
        middle = (low + high) / 2
        if high - low < 1e-15 or middle in (low, high):
            yield high
            return
        at_middle = ends(order, (*known, middle))
        yield from changes(order, known, low, at_low, middle, at_middle)
        yield from changes(order, known, middle, at_middle, high, at_high)

    def cut(order, sides) -> Iterator[Box]:
        known = tuple((low + high) / 2 for low, high in sides)
        if len(sides) == count:
            yield Box(run(Numbers(known, order)), sides, order)
            return
        probes = [0.0, 0.3, 0.7, TOP]
        found = [ends(order, (*known, probe)) for probe in probes]
        where = [
            change
            for (low, at_low), (high, at_high) in pairwise(zip(probes, found, strict=True))
            for change in changes(order, known, low, at_low, high, at_high)
        ]
        for side in pairwise([0.0, *where, 1.0]):
            yield from cut(order, (*sides, side))

    boxes = [box for order in permutations(range(first.permuted)) for box in cut(order, ())]
    rng = np.random.default_rng(0)
    for _ in range(CHECKS):
        point, order = tuple(rng.random(count).tolist()), boxes[rng.integers(len(boxes))].order
        (found,) = (
            box.result
            for box in boxes
            if box.order == order and all(a <= x < b for x, (a, b) in zip(point, box.sides, strict=True))
        )
        assert found == run(Numbers(point, order)), "a box was missed"
    return boxes


@cache
def _boxes(draw, prob: tuple[float, ...], score: tuple[float, ...]) -> list[Box]:
    prob_N, score_N = (torch.tensor(each, dtype=torch.float64) for each in (prob, score))
    return every_draw(lambda rng: tuple(draw(prob_N, score_N, rng).tolist()))


def boxes_of(design, prob: Tensor, score: Tensor) -> list[Box]:
    """All boxes of one draw of a design."""
    return _boxes(design.draw, tuple(prob.tolist()), tuple(score.tolist()))


def boxes_of_level(pruning, rows) -> list[Box]:
    """All boxes of ``pruning.draw(rows, rng)``: those of its design, with the probabilities that it is asked for."""
    asked = []

    def spy(prob, score, rng):
        asked.append((prob, score))
        return pruning.design.draw(prob, score, rng)

    replace(pruning, design=replace(pruning.design, draw=spy)).draw(rows, np.random.default_rng(0))
    return boxes_of(pruning.design, *asked[0]) if asked else [Box((), (), ())]


def mean_weight(pruning, rows, of_draw=lambda draw: draw.weight_N) -> Tensor:
    """(N,) exact mean of the weights, or of something else of a draw, over every real draw of ``pruning``."""
    boxes = boxes_of_level(pruning, rows)
    return torch.stack([box.chance * of_draw(pruning.draw(rows, box.rng())) for box in boxes]).sum(0)
