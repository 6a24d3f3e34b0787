"""The variance of each rule and score on a subject, beside the best possible, and the most that pruning can save."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dppo.lab.subject import remembered, signals
from dppo.methods import Method
from dppo.pruning import (
    MomentSamples,
    Pruning,
    Selection,
    absolute_advantage,
    advantage_with_length,
    advantage_with_uncertainty,
    ceiling_of,
    proportional,
    threshold,
    uniform,
    uniform_score,
)
from dppo.pruning.ceiling import FEWEST
from dppo.pruning.designs import effective_sample_size
from dppo.rng import Purpose, generator
from dppo.types import Completions, Draw
from dppo.verification.controls import top_of_live
from dppo.verification.draws import full_batch
from dppo.verification.subject import Subject

DRAWS = 400
"""Draws per entry of the table, >= 2."""
KEEPS = (0.75, 0.5, 0.25)
"""Expected shares of the completions with a gradient that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceRow:
    """Added variance of one rule and score on a subject, at one share kept."""

    normaliser: str
    rule: str
    score: str
    keep: float
    """Expected share of the completions with a gradient that is kept, in (0, 1)."""
    added_variance: float | None = None
    """``E|g_hat - g|^2 / |g|^2`` over draws. This and the fields below are None if the rule cannot keep so few."""
    added_variance_error: float | None = None
    """Its standard error."""
    effective_rows: float | None = None
    """Mean of ``(sum w)^2 / sum w^2`` over draws, in completions."""
    largest_weight: float | None = None
    biased: bool = False
    """True if the squared error includes a bias, which more draws do not average out."""


def entries(method: Method, norm_N: Tensor) -> dict[tuple[str, str], Selection]:
    """Selections of the paper, of the field and ours by the names of rule and score, at any rate.

    The method gives the floor and the kind of scores (of token sums or token means); ``norm_N`` are the true norms.
    """
    scores = {
        "abs(A)": absolute_advantage,
        "abs(A) sqrt(length)": advantage_with_length,
        "abs(A) s": advantage_with_uncertainty,
        "oracle": lambda completions: norm_N,
    }
    floor = getattr(method.completions, "floor", Pruning().floor)
    found: dict[tuple[str, str], Selection] = {}
    for rule, scored in ((uniform, {"none": uniform_score}), (threshold, scores), (proportional, scores)):
        for name, score in scored.items():
            found[rule.__name__, name] = Pruning(score=score, rule=rule, floor=floor)
    return found | {("top k (CPPO)", "abs(A)"): top_of_live(absolute_advantage, 0.0)}


def variance_table(
    subject: Subject, methods: Sequence[Method], *, draws: int = DRAWS, seed: int = 0
) -> tuple[VarianceRow, ...]:
    """Every selection at every share kept, for each method's normaliser; normalisers of one kind only once.

    Methods give advantages, loss, normaliser and floor; their own pruning is not used.
    """
    rows = []
    for method in {m.normaliser.per_sequence: m for m in reversed(methods)}.values():
        full_N = full_batch(subject, method)
        norm_N = (full_N.square() * subject.gram_NN.diagonal()).sqrt()
        completions = subject.completions(method)
        for (rule, score), pruning in entries(method, norm_N).items():
            for keep in KEEPS:
                chosen = at_share(pruning, completions, keep)
                figures = {} if chosen is None else figures_of(subject, method, chosen, draws, seed)
                labels = {"normaliser": method.normaliser.name, "rule": rule, "score": score, "keep": keep}
                rows.append(VarianceRow(**labels, **figures))
    return tuple(rows)


def at_share(pruning: Selection, completions: Completions, keep: float) -> Selection | None:
    """The selection at the rate that keeps a share of the completions with a gradient; None if no rate keeps as few.

    The rate of the threshold rule applies only to rows below the mean, so it must be higher to drop the same share.
    """
    wanted = keep * int(completions.live_N.sum())

    def at(rate: float) -> Selection:
        if isinstance(pruning, Pruning):  # its own floor, but at most the share that is kept
            return replace(pruning, rate=rate, floor=min(pruning.floor, 1 - rate))
        return pruning.at_rate(rate)

    def kept(rate: float) -> float:
        return float(at(rate).draw(completions, generator(0, Purpose.CHECK)).prob_N.sum())

    low, high = 1 - keep, 1 - 1e-3
    if kept(low) <= wanted * (1 + 1e-9):
        high = low
    elif kept(high) > wanted:
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) > wanted else (low, middle)
    return at(high)


def figures_of(subject: Subject, method: Method, pruning: Selection, draws: int, seed: int) -> dict[str, Any]:
    """The numbers of a row, from many draws."""
    completions, full_N = subject.completions(method), full_batch(subject, method)
    rngs = (generator(seed, Purpose.CHECK, index) for index in range(draws))
    weight_MN = torch.stack([pruning.draw(completions, rng).weight_N for rng in rngs])
    error_MN = (weight_MN - 1) * full_N
    square_M = ((error_MN @ subject.gram_NN) * error_MN).sum(1) / float(full_N @ subject.gram_NN @ full_N)
    return {
        "added_variance": float(square_M.mean()),
        "added_variance_error": float(square_M.std()) / math.sqrt(draws),
        "effective_rows": sum(map(effective_sample_size, weight_MN)) / draws,
        "largest_weight": float(weight_MN.max()),
        "biased": bool(pruning.bias),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingRow:
    """The ceiling of one level."""

    level: str
    """``prompts`` or ``completions``."""
    value: float
    """Largest factor that can be saved, >= 1: of rollout and update for prompts, of the update for completions."""
    low: float
    """Lower end of the 95% interval."""
    high: float
    units: int
    """Number of visits of prompts with a history, or of completions with a gradient."""
    free: float | None = None
    """Share of the completions without a gradient, in [0, 1], which are skipped at no cost; None for prompts."""

    def __str__(self) -> str:
        said = f"pruning {self.level} can save at most {self.value:.2f}x ({self.low:.2f} to {self.high:.2f})"
        if self.free is None:
            return f"{said} of rollout and update"
        return f"{said} of the update, beside the {self.free:.0%} without a gradient, which are free"


def pilot_ceilings(subject: Subject, method: Method) -> tuple[CeilingRow, ...]:
    """The ceilings of both levels on a subject, by the method's advantages and score; a level of few units is left out.

    For prompts, the first rollout is the history and the second one is the visit.
    """
    rows = []
    everything, tokens_N = Draw.whole(subject.candidates.seen_P), subject.tokens_N
    signal_P = signals(method, subject.rolled_out(), subject.context)
    visits = MomentSamples.of_visits(remembered(subject, method), everything, subject.rewards, signal_P, tokens_N)
    if len(visits) >= FEWEST:
        rows.append(CeilingRow(level="prompts", **asdict(ceiling_of(visits))))
    completions = subject.completions(method)
    if int(completions.live_N.sum()) >= FEWEST:
        free = 1 - completions.live_N.double().mean().item()
        found = ceiling_of(Pruning(score=method.score).samples(completions))
        rows.append(CeilingRow(level="completions", free=free, **asdict(found)))
    return tuple(rows)
