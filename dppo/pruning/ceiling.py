"""Rates chosen by ``auto``: the largest gain that pruning can have, and its calibration by what was found.

With second moments V and costs c of the units, dropping some by probability costs variance and saves tokens. The best
probabilities, proportional to ``sqrt(V / c)``, save the factor ``E[V] E[c] / (E sqrt(V c))^2``: the ceiling.

Source: Neyman (1934); Cochran, Sampling Techniques (1977), on optimum allocation with costs; isotonic regression,
    Barlow et al., Statistical Inference under Order Restrictions (1972).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from dppo.errors import ConfigError
from dppo.moment_samples import MomentSamples
from dppo.rng import Purpose, generator
from dppo.typed import check_fields

KINDS, KIND_UNITS = 8, 16
"""Most kinds of units, by quantiles of the expectation, and the fewest units of each if there are more than two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Expected V to found V: a step function that never falls.

    After one visit a history still expects two thirds of the mean from a prompt that gave nothing, and most such
    prompts give nothing again. Means are weighted by one over the probability of being asked, so a rare success counts
    for all prompts that are like it, and no prompt is given up for its own record.
    """

    edge_K: Tensor
    """(K - 1,) float64 ascending, between neighbouring kinds."""
    value_K: Tensor
    """(K,) float64 ascending, V of each kind, >= 0."""

    def __call__(self, expected_N: Tensor) -> Tensor:
        """(N,) float64 V, >= 0, of units of which (N,) was expected."""
        return self.value_K[torch.searchsorted(self.edge_K, expected_N.double())]

    @classmethod
    def of(cls, samples: MomentSamples) -> "Calibration":
        """The calibration by at least one unit; each kind gets one more unit of the mean over all (Laplace's rule)."""
        expected_N, found_N, weight_N = (
            each_N.numpy() for each_N in (samples.expected_N, samples.found_N, samples.weight_N)
        )
        edge_K, kind_N = _kinds_of(expected_N)
        weight_K, total_K = (np.bincount(kind_N, each_N) for each_N in (weight_N, weight_N * found_N))
        one, mean = weight_N.mean(), total_K.sum() / weight_K.sum()
        value_K = _rising((weight_K + one)[None], (total_K + one * mean)[None])[0]
        return cls(edge_K=torch.from_numpy(edge_K), value_K=torch.from_numpy(value_K))


def by_others(samples: MomentSamples) -> Tensor:
    """(N,) float64 V of each of at least two units, calibrated by the other half of the units.

    With its own half, noise would look like signal, and a useless rate would be chosen. Halves are drawn with a fixed
    seed: equal samples give equal numbers, and no order of a dataset is in step with them.
    """
    half_N = torch.from_numpy(generator(0, Purpose.CHECK, len(samples)).permutation(len(samples)) % 2)
    value_N = torch.zeros(len(samples), dtype=torch.float64)
    for half in (0, 1):
        own_N = half_N == half
        value_N[own_N] = Calibration.of(samples.part(~own_N))(samples.expected_N[own_N])
    return value_N


def calibrated(weight_MN: np.ndarray, expected_N: np.ndarray, found_N: np.ndarray) -> np.ndarray:
    """(M, N) means of what was found, by expectation, which never fall: expectations that are right on average.

    Noise in an expectation makes units look more different than they are. If it predicts nothing, all units are equal.
    """
    if np.array_equal(expected_N, found_N):
        return np.broadcast_to(found_N, weight_MN.shape)
    kind_N = _kinds_of(expected_N)[1]
    belongs = (kind_N[:, None] == np.arange(kind_N.max() + 1)).astype(np.float64)
    return _rising(weight_MN @ belongs, weight_MN @ (belongs * found_N[:, None]))[:, kind_N]


def _kinds_of(expected_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(K - 1,) edges and (N,) the kind of each unit, by quantiles of what was expected; every kind has a unit.

    Edges are midway between neighbours, so that a rounding moves no unit into another kind.
    """
    kinds = max(2, min(KINDS, len(expected_N) // KIND_UNITS))
    edges = np.quantile(expected_N, np.arange(1, kinds) / kinds)
    _, kind_N = np.unique(np.searchsorted(edges, expected_N), return_inverse=True)
    ends = [(expected_N[kind_N == kind].min(), expected_N[kind_N == kind].max()) for kind in range(kind_N.max() + 1)]
    return np.array([(before[1] + after[0]) / 2 for before, after in pairwise(ends)]), kind_N


def _rising(weight: np.ndarray, total: np.ndarray) -> np.ndarray:
    """(M, K) isotonic means of kinds in their order, from weights and weighted totals (M, K).

    The value of a kind is the maximum over starts of the minimum over ends of block means.
    """
    weight, total = (np.pad(each.cumsum(1), ((0, 0), (1, 0))) for each in (weight, total))
    found = np.zeros((len(weight), weight.shape[1] - 1))
    for kind in range(found.shape[1]):
        run_weight = weight[:, None, kind + 1 :] - weight[:, : kind + 1, None]
        run_total = total[:, None, kind + 1 :] - total[:, : kind + 1, None]
        means = np.divide(run_total, run_weight, out=np.full_like(run_total, np.inf), where=run_weight > 0)
        found[:, kind] = means.min(2).max(1)
    return np.where(np.isfinite(found), np.maximum(found, 0.0), 0.0)  # of kinds that are not there


TAIL = 0.025
"""Share of resamples beyond each end of an interval."""
ONE_ERROR = 0.16
"""Share of resamples below the estimate less one standard error."""
LEAST_GAIN = 1.05
"""Smallest gain that a user would notice."""
GRID = 0.1
"""Distance between the rates that are looked at."""
FEWEST = 16
"""Units below which no ceiling is given."""


def selection_ceiling(value_N: Tensor, cost_N: Tensor, *, paid: float = 0.0) -> float:
    """``E[V] E[c] / (E sqrt(V c))^2``: cost for the same variance, everything kept over the best choice; at least 1.

    V (N,) >= 0 is the second moment of each unit's gradient as far as it is known before the draw, c (N,) > 0 the cost
    of keeping it, both in any unit. ``paid`` is a cost that no choice changes, in the unit of ``cost_N``. V of [0, 1]
    at equal costs gives 2; V in proportion to c, or of 0 everywhere, gives 1.
    """
    value, cost = value_N.double().numpy(), cost_N.double().numpy()
    ceiling = float(_ratios(np.ones((1, len(value))), value, cost)[0])
    # Of ``sum V / p`` the part beside ``paid`` is at least ``sum V``, the other (sum sqrt(V c))^2 / sum p c.
    return float((paid + cost.sum()) / (paid + cost.sum() / ceiling)) if paid else ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The largest gain that pruning some units can have, with its 95% interval."""

    value: float
    """``selection_ceiling`` of V as calibrated by what was found, >= 1."""
    low: float
    high: float
    units: int
    """Number of units: visits of prompts with a history, or completions with a gradient."""

    @classmethod
    def of(cls, value: float, resampled_M: np.ndarray, units: int) -> "Ceiling":
        """A value with the interval of its resamples (M,)."""
        low, high = np.quantile(resampled_M, (TAIL, 1 - TAIL))
        return cls(value=value, low=min(float(low), value), high=max(float(high), value), units=units)

    def __str__(self) -> str:
        return f"{self.value:.2f}x ({self.low:.2f} to {self.high:.2f})"


def ceiling_of(samples: MomentSamples) -> Ceiling:
    """The ceiling of some units and its interval, by the bootstrap over their groups.

    V and c are the mean of those found where as much was expected: ``calibrated``.
    """
    if not len(samples):
        raise ConfigError("ceiling_of has no units. Try ceiling_of(MomentSamples.known(value_N, tokens_N)).")
    return Ceiling.of(point_ceiling(samples), _calibrated_ratios(samples.resampled(), samples), len(samples))


def point_ceiling(samples: MomentSamples) -> float:
    """The value of ``ceiling_of`` alone, for metrics of every step."""
    return float(_calibrated_ratios(samples.weight_N.numpy()[None], samples)[0])


def gain_of(samples: MomentSamples, prob_N: Tensor) -> Ceiling:
    """Gain of probabilities (N,) that were set by the expectation, measured on the found moments."""
    terms = _terms(prob_N, samples.found_N, samples.cost_N)
    value = float(_gains(samples.weight_N.numpy()[None] @ terms, 0.0)[0])
    return Ceiling.of(value, _gains(samples.resampled_sums(terms), 0.0), len(samples))


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """Rule by which a stage chooses its rate; the stage's ``rate`` is then the largest."""

    least_gain: float = LEAST_GAIN
    """Smallest gain at the lower end of its interval, >= 1; pruning is off below it."""
    tail: float = TAIL
    """Share of resamples below that end, in (0, 0.5]."""
    enough: float = 0.95
    """Share of the best gain, in (0, 1], that the rate must have: the smallest such rate is taken."""
    fewest: int = 64
    """Units below which nothing is pruned, >= 1."""
    rollout_cost: float = 0.0
    """Cost of a generated token over that of a token trained on, >= 0, where rollouts are paid before the draw."""
    largest: float = 0.8
    """Largest rate that a run may choose if it gives none, in (0, 1)."""

    def __post_init__(self) -> None:
        ranges = {"least_gain": "[1, inf)", "tail": "(0, 0.5]", "enough": "(0, 1]", "fewest": "[1, inf)"}
        check_fields(self, "Auto(least_gain=1.05)", **ranges, rollout_cost="[0, inf)", largest="(0, 1)")


PROMPT_AUTO = Auto(least_gain=1.02, tail=ONE_ERROR, largest=0.5)
"""For prompts, which cost neither rollout nor update if dropped. If most groups have zero variance, a few dozen visits
decide and 95% intervals stay wide; up to half, a wrong choice costs little."""
PROMPT_FLOOR = 0.3
"""Lowest probability of a prompt at a chosen rate: a prompt without signal may gain one."""
COMPLETION_AUTO = Auto(fewest=FEWEST, rollout_cost=1.0, largest=0.9)
"""For completions and tokens, whose rollout is paid: until a run has measured its own costs
(``dppo.costs.TokenCosts``) a generated token counts as one that is trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A chosen rate with its gain."""

    rate: float = 0.0
    """Share to drop, in [0, 1); 0 leaves pruning off."""
    gain: float = 1.0
    """Best gain at any rate that was looked at, >= 1."""
    low: float = 1.0
    """Lower end of the interval of the gain at the smallest rate that has enough of it."""


def rates_to(largest: float) -> list[float]:
    """The rates that are looked at: ``GRID``, twice that, and so on up to ``largest``."""
    return [round(GRID * k, 6) for k in range(1, int(largest / GRID + 1e-6) + 1)]


def choose(auto: Auto, samples: MomentSamples, prob_at: Callable[[float], Tensor], largest: float) -> Choice:
    """The smallest rate that has nearly all that pruning can gain, 0 if that is not worth having.

    It depends on the samples alone: on no clock and no draw. So draws at the rate are unbiased if the samples were
    there before them. If units are ranked by the moments that count, variance times cost is convex in the tokens kept:
    no rate beyond the first fall of the gain is looked at. Under a rule of one's own a better rate may be missed.

    ``prob_at(rate) -> prob_N`` are the level's own probabilities (N,) in (0, 1], in the order of the samples; no rate
    above ``largest`` in [0, 1) is looked at.
    """
    if len(samples) < auto.fewest:
        return Choice()
    once_1N, paid_N = samples.weight_N.numpy()[None], auto.rollout_cost * samples.paid_N.numpy()
    terms, gains = {}, {0.0: 1.0}
    for rate in rates_to(largest):
        terms[rate] = _terms(prob_at(rate), samples.found_N, samples.cost_N)
        # Rounded: what ranks compare must not hang on the last bits of a sum.
        gains[rate] = round(float(_gains(once_1N @ terms[rate], once_1N @ paid_N)[0]), 6)
        if samples.exact and gains[rate] < max(gains.values()):
            break
    best = max(gains.values())
    rate = min(rate for rate, gain in gains.items() if gain >= 1 + auto.enough * (best - 1))
    if not rate:
        return Choice()
    again_M5 = samples.resampled_sums(np.column_stack([terms[rate], paid_N]))
    low = round(float(np.quantile(_gains(again_M5[:, :4], again_M5[:, 4]), auto.tail)), 6)
    return Choice(rate=rate if low >= auto.least_gain else 0.0, gain=best, low=low)


def _terms(prob_N: Tensor, value_N: Tensor, cost_N: Tensor) -> np.ndarray:
    """(N, 4) terms of the sums in a gain: V, V / p, c, p c."""
    spread_N = torch.where(value_N > 0, value_N.double() / prob_N, 0.0)
    return torch.stack([value_N.double(), spread_N, cost_N.double(), prob_N * cost_N.double()], 1).numpy()


def _gains(sum_M4: np.ndarray, paid: np.ndarray | float) -> np.ndarray:
    """(M,) ``[sum V (paid + sum c)] / [sum V / p (paid + sum p c)]``, from sums of terms and (M,) ``paid`` costs.

    This is the factor of cost that probabilities p save at equal variance. Below 1 pruning costs more than it saves.
    It is 1 if no unit has a gradient.
    """
    value, spread, cost, kept = sum_M4.T
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = value / spread * ((paid + cost) / (paid + kept))
    return np.where(value > 0, gain, 1.0)


def _ratios(weight_MN: np.ndarray, value: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """(M,) ``E[V] E[c] / (E sqrt(V c))^2`` under each weighting; value and cost are (N,) or (M, N)."""
    product = (weight_MN * value).sum(1) * (weight_MN * cost).sum(1)
    root = (weight_MN * np.sqrt(value * cost)).sum(1)
    return np.maximum(np.divide(product, root**2, out=np.ones_like(product), where=root > 0), 1.0)


def _calibrated_ratios(weight_MN: np.ndarray, samples: MomentSamples) -> np.ndarray:
    """(M,) ceilings, with V and c as they were found where as much was expected."""
    value = calibrated(weight_MN, samples.expected_N.numpy(), samples.found_N.numpy())
    return _ratios(weight_MN, value, calibrated(weight_MN, samples.expected_cost_N.numpy(), samples.cost_N.numpy()))
