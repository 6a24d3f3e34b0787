"""Exact distributions of draws: ``every_draw`` cuts the space of their random numbers into boxes of equal results.

It halves the distance between two numbers with different results until next to nothing is left. The chance of a
result is the volume of its boxes.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
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


_KNOWN: dict[Hashable, list[Box]] = {}


def boxes_of(design, prob: Tensor, score: Tensor) -> list[Box]:
    """All boxes of one draw of a design."""
    key = (design.draw, *prob.tolist(), *score.tolist())
    if key not in _KNOWN:
        _KNOWN[key] = every_draw(lambda rng: tuple(design.draw(prob, score, rng).tolist()))
    return _KNOWN[key]


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


def distribution(design, prob: Tensor, score: Tensor | None = None) -> list[tuple[Tensor, float]]:
    """[(keep_N, chance)] of one draw of ``design``."""
    score = torch.zeros_like(prob) if score is None else score
    chance: dict[Hashable, float] = {}
    for box in boxes_of(design, prob, score):
        chance[box.result] = chance.get(box.result, 0.0) + box.chance
    return [(torch.tensor(mask, dtype=torch.bool), part) for mask, part in chance.items()]


def expectation(pairs: list[tuple[Tensor, float]], value: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean of ``value(keep_N)`` over the outcomes."""
    return torch.stack([chance * value(keep) for keep, chance in pairs]).sum(0)
