"""Exact distributions of draws, by running the real code once for every outcome of its random numbers.

A draw compares uniforms with thresholds. Here the uniforms are coins: each comparison goes both ways, with the
chance its threshold gives, so an expectation is a finite sum without sampling noise.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise, permutations, product
from math import factorial

import numpy as np
import torch
from torch import Tensor


class Coin:
    """A uniform random number that is only ever asked whether it is below a threshold."""

    def __init__(self, tape: "Tape") -> None:
        self.tape = tape

    def __lt__(self, threshold: float) -> bool:
        return self.tape.toss(min(max(float(threshold), 0.0), 1.0))


class Coins(list):
    """What ``rng.random(n)`` gives: usable as a list of numbers or compared with an array at once."""

    def tolist(self) -> list:
        return list(self)

    def __lt__(self, thresholds: np.ndarray) -> np.ndarray:
        return np.array([coin < threshold for coin, threshold in zip(self, thresholds, strict=True)], bool)


class Tape:
    """Stands in for a generator: replays ``prefix`` of outcomes, then answers True and notes the other way."""

    def __init__(self, prefix: tuple[bool, ...]) -> None:
        self.prefix, self.outcomes, self.untried, self.chance = prefix, [], [], 1.0

    def random(self, size: int) -> Coins:
        return Coins(Coin(self) for _ in range(size))

    def toss(self, chance: float) -> bool:
        place = len(self.outcomes)
        outcome = self.prefix[place] if place < len(self.prefix) else chance > 0
        if place >= len(self.prefix) and 0 < chance < 1:
            self.untried.append((*self.outcomes, False))
        self.outcomes.append(outcome)
        self.chance *= chance if outcome else 1 - chance
        return outcome


class Line:
    """Stands in for the generator of a systematic draw: a given permutation and a given start."""

    def __init__(self, order: tuple[int, ...], start: float) -> None:
        self.order, self.start = order, start

    def permutation(self, size: int) -> np.ndarray:
        assert size == len(self.order)
        return np.array(self.order, int)

    def random(self) -> float:
        return self.start


def every_coin(run: Callable[[Tape], object]) -> Iterator[tuple[object, float]]:
    """(result, chance) of ``run(rng)`` for every way its coins can fall."""
    waiting: list[tuple[bool, ...]] = [()]
    while waiting:
        tape = Tape(waiting.pop())
        result = run(tape)
        waiting.extend(tape.untried)
        yield result, tape.chance


def every_line(run: Callable[[Line], object], open_prob: list[float]) -> Iterator[tuple[object, float]]:
    """(result, chance) of a systematic draw for every order of its open rows and every distinct start."""
    for order in permutations(range(len(open_prob))):
        ends = np.cumsum([open_prob[row] for row in order]) % 1.0
        cuts = sorted({0.0, 1.0, *ends.tolist()})
        for low, high in pairwise(cuts):
            yield run(Line(order, (low + high) / 2)), (high - low) / factorial(len(open_prob))


def outcomes(design_name: str, run: Callable, prob: Tensor) -> Iterator[tuple[object, float]]:
    """(result, chance) over all randomness of ``run(rng)``, which draws once from ``prob`` with the named design."""
    if design_name == "systematic":
        return every_line(run, [p for p in prob.tolist() if 0 < p < 1])
    return every_coin(run)


def distribution(design, prob: Tensor, score: Tensor | None = None) -> list[tuple[Tensor, float]]:
    """[(keep_N, chance)] of one draw of ``design``; equal selections may appear several times."""
    score = torch.zeros_like(prob) if score is None else score
    return list(outcomes(design.name, lambda rng: design.draw(prob, score, rng), prob))


def expectation(pairs: list[tuple[Tensor, float]], value: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean of ``value(keep_N)`` over the outcomes."""
    return torch.stack([chance * value(keep) for keep, chance in pairs]).sum(0)


def all_masks(prob: Tensor) -> list[tuple[Tensor, float]]:
    """[(keep_N, chance)] of independent draws, straight from the definition: all 2 ** N masks."""
    masks = [torch.tensor(mask, dtype=torch.bool) for mask in product([False, True], repeat=len(prob))]
    return [(mask, torch.where(mask, prob, 1 - prob).prod().item()) for mask in masks]


def duels(prob: list[float]) -> dict[tuple[bool, ...], Fraction]:
    """Exact distribution of the ordered pivotal method in rational numbers, written from its definition.

    The first two rows that are neither 0 nor 1 fight: with a + b < 1 one of them falls to 0 and the other takes
    a + b, row one surviving with chance a / (a + b); else one rises to 1 and the other takes a + b - 1, row one
    rising with chance (1 - b) / (2 - a - b). Repeated until at most one is left, which is settled by its own chance.
    """
    result: dict[tuple[bool, ...], Fraction] = {}

    def fight(state: tuple[Fraction, ...], chance: Fraction) -> None:
        if not chance:
            return
        undecided = [row for row, p in enumerate(state) if 0 < p < 1]
        if not undecided:
            mask = tuple(p == 1 for p in state)
            result[mask] = result.get(mask, Fraction(0)) + chance
            return
        first = undecided[0]
        if len(undecided) == 1:
            ends = [({first: Fraction(1)}, state[first]), ({first: Fraction(0)}, 1 - state[first])]
        else:
            second = undecided[1]
            a, b = state[first], state[second]
            if a + b < 1:
                one = a / (a + b)
                ends = [({first: a + b, second: Fraction(0)}, one), ({first: Fraction(0), second: a + b}, 1 - one)]
            else:
                one = (1 - b) / (2 - a - b)
                rest = a + b - 1
                ends = [({first: Fraction(1), second: rest}, one), ({first: rest, second: Fraction(1)}, 1 - one)]
        for change, share in ends:
            fight(tuple(change.get(row, p) for row, p in enumerate(state)), chance * share)

    fight(tuple(Fraction(p) for p in prob), Fraction(1))
    return result
