"""Every outcome of a draw, with its chance: expectations as finite sums in float64.

The code under test runs unchanged, with a random generator that goes through every choice.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise, permutations
from math import factorial
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from dppo.errors import DesignError
from dppo.pruning import POISSON, SYSTEMATIC, Design, PromptPruning, Pruning, TokenDraw, TokenPruning

Result = TypeVar("Result")
AnyPruning = TypeVar("AnyPruning")
Outcomes = list[tuple[Tensor, float]]
"""Pairs of (keep_N, chance) whose chances sum to 1."""

BY_COINS = ("pivotal", "poisson", "deterministic")
"""Designs that compare uniform numbers with thresholds, or draw nothing."""


class Tape:
    """A random generator that follows a path of choices, then takes the first way and collects the others."""

    def __init__(self, path: tuple[int, ...] = ()) -> None:
        self.path, self.chance = path, 1.0
        self.taken: list[int] = []
        self.untried: list[tuple[int, ...]] = []

    def choose(self, chances: Sequence[float]) -> int:
        """The index of one of several ways; a way of chance 0 is never taken."""
        place = len(self.taken)
        if place < len(self.path):
            way = self.path[place]
        else:
            way, *others = (index for index, chance in enumerate(chances) if chance > 0)
            self.untried += [(*self.taken, other) for other in others]
        self.taken.append(way)
        self.chance *= chances[way]
        return way

    def random(self, size: int) -> np.ndarray:
        """As ``numpy.random.Generator.random(size)``; its numbers can only be compared with thresholds."""
        return np.array([Coin(self) for _ in range(size)], dtype=object)

    def __getattr__(self, name: str) -> NoReturn:
        raise DesignError(f"rng.{name} cannot be enumerated. Draw by rng.random(n) < prob_N.numpy(), and nothing else.")


class Coin:
    """A uniform number in [0, 1) that can only be compared with a threshold."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def __lt__(self, threshold: float) -> bool:
        chance = min(max(float(threshold), 0.0), 1.0)
        return self.tape.choose([chance, 1 - chance]) == 0

    def __ge__(self, threshold: float) -> bool:
        return not self < threshold


def every_way(run: Callable[[Tape], Result]) -> Iterator[tuple[Result, float]]:
    """(result, chance) of ``run(tape)`` for every path of choices; the tape must be its only randomness."""
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        tape = Tape(waiting.pop())
        result = run(tape)
        waiting.extend(tape.untried)
        yield result, tape.chance


def _on_a_line(design: Design, prob_N: Tensor, score_N: Tensor) -> Iterator[tuple[Tensor, float]]:
    """Systematic draws: every order of the open rows; between two ends of rows every start gives the same draw."""
    open_prob = [p for p in prob_N.tolist() if 0 < p < 1]
    for order in permutations(range(len(open_prob))):
        ends = np.cumsum([open_prob[row] for row in order]) % 1.0
        for low, high in pairwise(sorted({0.0, 1.0, *ends.tolist()})):
            rng: Any = SimpleNamespace(
                permutation=lambda size, order=order: np.array(order, int), random=lambda start=(low + high) / 2: start
            )
            yield design.draw(prob_N, score_N, rng), (high - low) / factorial(len(order))


def outcomes(design: Design, prob_N: Tensor, score_N: Tensor | None = None) -> Outcomes:
    """Every set of units that one draw can keep, with its chance; scores are 0 by default."""
    score_N = torch.zeros_like(prob_N) if score_N is None else score_N
    if design.name in BY_COINS:
        found = every_way(lambda tape: design.draw(prob_N, score_N, cast(np.random.Generator, tape)))
    elif design.name == SYSTEMATIC.name:
        found = _on_a_line(design, prob_N, score_N)
    else:
        raise DesignError(f"design={design.name!r} cannot be enumerated, only {', '.join(BY_COINS)} and systematic can")
    chances: defaultdict[tuple[bool, ...], float] = defaultdict(float)
    for keep_N, chance in found:
        chances[tuple(keep_N.tolist())] += chance
    return [(torch.tensor(mask, dtype=torch.bool), chance) for mask, chance in chances.items()]


def enumerated(pruning: AnyPruning) -> AnyPruning:
    """The same pruning, to be drawn from with a ``Tape``: each draw chooses among all outcomes of its design."""
    if isinstance(pruning, TokenPruning) and pruning.active:
        return cast(AnyPruning, EveryToken(**{each.name: getattr(pruning, each.name) for each in fields(TokenPruning)}))
    if not isinstance(pruning, Pruning | PromptPruning):  # it draws no random numbers
        return pruning
    design = pruning.design
    if design.unbiased and design.name not in BY_COINS:
        design = POISSON  # too many outcomes, or unknown ones: independent draws have the same probabilities
    known: dict[tuple[float, ...], Outcomes] = {}

    def draw(prob_N: Tensor, score_N: Tensor, rng: np.random.Generator) -> Tensor:
        key = (*prob_N.tolist(), *score_N.tolist())
        found = known[key] = known.get(key) or outcomes(design, prob_N, score_N)
        return found[cast(Tape, rng).choose([chance for _, chance in found])][0]

    return replace(pruning, design=replace(design, draw=draw))


class EveryToken(TokenPruning):
    """Token pruning to be drawn from with a ``Tape``.

    All completions share one uniform number for their cuts, and all tokens another for the head. The gradient is linear
    in the weights of tokens, so its mean is that of any draw with the same probabilities.
    """

    def draw(self, moment_NT: Tensor, span_NT: Tensor, rng: np.random.Generator) -> TokenDraw:
        reach_NT, head_NT = self.probabilities(moment_NT, span_NT)
        head_NT = span_NT.double() if head_NT is None else head_NT
        keep_NT = span_NT
        for each_NT in (reach_NT, head_NT):
            pieces = list(pairwise(sorted({0.0, 1.0, *each_NT[span_NT].tolist()})))
            low, high = pieces[cast(Tape, rng).choose([high - low for low, high in pieces])]
            keep_NT = keep_NT & (each_NT > (low + high) / 2)
        return TokenDraw.of(keep_NT, reach_NT, reach_NT * head_NT)
