"""Time to a target where some runs end before they reach it: curves, restricted means, ratios with bounds.

A run that ends without reaching the target is *censored*: it is only known that it needed more than it had. It is
neither left out nor counted as if it had needed nothing, or exactly what it had.

The speedup of a method is the baseline's amount over the method's, seed by seed. Where a run is censored the ratio of
its seed is only known to lie between two ends:

| missed the target | at least | at most |
|---|---|---|
| neither | the ratio | the ratio |
| the method | 0 | baseline's / all it had |
| the baseline | all it had / the method's | no end |
| both | 0 | no end |

``Ratio.median`` is the median over seeds of the lower ends: what was not observed counts against the method.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dppo_lab.comparison.curves import Reach
from dppo_lab.statistics import SeedInterval, finite, seed_ends

PerSeed = Mapping[int, Reach | None]
"""One contestant's runs; None where a run did not finish, or its seed has no target."""


def survival(found: Sequence[Reach], places: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The Kaplan-Meier curve: the share of seeds that are not at the target yet.

    At every run that reaches it the share falls by a factor, one over the number of runs still going just before. A
    censored run counts as going up to its end, runs that reach the target at the same amount included.

    ``found`` has one run per seed, at least one; ``places`` are (M, seeds) resamples of them, by default each run once.
    Gives (seeds,) amounts, ascending, and (M, seeds) shares in [0, 1] after each of them.

    Source: Kaplan and Meier (1958), Nonparametric Estimation from Incomplete Observations, JASA 53.
    """
    amount, reached = np.array([run.amount for run in found]), np.array([run.reached for run in found])
    places = np.arange(len(found))[None] if places is None else places
    order = np.lexsort((~reached, amount))
    count = (places[:, :, None] == order).sum(1)
    going = count[:, ::-1].cumsum(1)[:, ::-1]
    share = np.cumprod(1 - count * reached[order] / np.maximum(going, 1), axis=1)
    return amount[order], share


def median_amount(found: Sequence[Reach], places: np.ndarray | None = None) -> np.ndarray:
    """(M,) amounts at which half of the seeds have reached the target by the curve; inf where half never did.

    Where the share is one half over a stretch it is the middle of the stretch, as in the median of an even number.
    Arguments are as for ``survival``.
    """
    amount, share = survival(found, places)
    amount = np.append(amount, math.inf)
    share = np.pad(share, ((0, 0), (0, 1)), constant_values=-1.0)
    slack = 1e-9  # products of shares carry rounding
    return (amount[(share <= 0.5 + slack).argmax(1)] + amount[(share < 0.5 - slack).argmax(1)]) / 2


def median_interval(per_seed: PerSeed) -> SeedInterval:
    """The Kaplan-Meier median over seeds with a bootstrap interval; infinite where half of the seeds never got there.

    ``per_seed`` of the result is None for censored runs too.
    """
    found = [run for run in per_seed.values() if run is not None]
    values = {seed: run.amount if run and run.reached else None for seed, run in per_seed.items()}
    centre = float(median_amount(found)[0]) if found else None
    low, high = seed_ends(lambda places: median_amount(found, places), len(found))
    return SeedInterval(centre=centre, low=low, high=high, per_seed=values)


def common_horizon(found: Sequence[Reach]) -> float:
    """The smallest amount at which a run was censored: up to there every run is known.

    Where none was, the largest at which one reached the target; a mean up to there is not restricted.

    Source: Royston and Parmar (2013), Restricted mean survival time, BMC Medical Research Methodology 13:152.
    """
    censored = [run.amount for run in found if not run.reached]
    return min(censored) if censored else max(run.amount for run in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The baseline's amount to a target over a method's, over the seeds that have both runs."""

    median: float | None
    """Median of what the ratios are at least; None where the method missed the target in half of the seeds."""
    low: float | None
    """Lower end of the 95% bootstrap interval over seeds of what ratios are at least; None under ``FEWEST`` seeds."""
    high: float | None
    """Upper end of that of what they are at most: may be infinite."""
    at_most: float | None
    """Median of what the ratios are at most, may be infinite: ``median`` where no run near the middle is censored."""
    both_reached: float | None
    """Median over the seeds where both reached the target. It leaves censored runs out: read it beside ``missed``."""
    missed: Mapping[str, int]
    """Seeds where only the ``method``, only the ``baseline``, or ``both`` never reached the target."""
    mean: SeedInterval
    """Ratio of restricted means up to ``horizon``; all None without a pair."""
    horizon: float | None
    """``common_horizon`` of all runs of the two, in the unit of the amounts."""
    per_seed: Mapping[int, tuple[float, float] | None]
    """What each seed's ratio is at least and at most; None where a run did not finish, or there is no target."""

    def as_json(self) -> dict[str, object]:
        """The record of ``results.json``; what has no end or is not there is null."""
        pairs = sum(ends is not None for ends in self.per_seed.values())
        mean = {"ratio": finite(self.mean.centre), "low": finite(self.mean.low), "high": finite(self.mean.high)}
        return {
            **{name: finite(getattr(self, name)) for name in ("median", "low", "high", "at_most", "both_reached")},
            "reached": f"{pairs - self.missed['method'] - self.missed['both']} of {pairs}",
            "missed": dict(self.missed),
            "restricted_mean": {**mean, "horizon": self.horizon},
            "per_seed": {str(seed): ends and [finite(end) for end in ends] for seed, ends in self.per_seed.items()},
        }


def ratio(baseline: PerSeed, method: PerSeed) -> Ratio:
    """How many times less a method needs than the baseline, paired by seed, each run of which had more than nothing.

    Seeds that the baseline does not have count as not finished.
    """
    both = {seed: (baseline.get(seed), run) for seed, run in method.items()}
    pairs = {seed: (one, other) for seed, (one, other) in both.items() if one is not None and other is not None}
    wholes = {seed: one.amount / other.amount for seed, (one, other) in pairs.items()}
    ends = {
        seed: (wholes[seed] if other.reached else 0.0, wholes[seed] if one.reached else math.inf)
        for seed, (one, other) in pairs.items()
    }
    known = list(pairs.values())
    least, most = np.array(list(ends.values())).reshape(-1, 2).T
    missed = Counter(
        "both" if one.reached == other.reached else "method" if one.reached else "baseline"
        for one, other in known
        if not (one.reached and other.reached)
    )
    clear = [low for low, high in ends.values() if low == high]
    low, high = (
        seed_ends(lambda places, ends=ends: np.median(ends[places], axis=1), len(ends)) for ends in (least, most)
    )
    return Ratio(
        median=float(np.median(least)) if 2 * np.sum(least > 0) > len(least) else None,
        low=low[0],
        high=high[1],
        at_most=float(np.median(most)) if known else None,
        both_reached=float(np.median(clear)) if clear else None,
        missed={who: missed[who] for who in ("method", "baseline", "both")},
        mean=_ratio_of_means(known),
        horizon=common_horizon([run for pair in known for run in pair]) if known else None,
        per_seed={seed: ends.get(seed) for seed in method},
    )


def _ratio_of_means(pairs: Sequence[tuple[Reach, Reach]]) -> SeedInterval:
    """Ratio of restricted means with a paired bootstrap interval; the horizon of a resample is that of all pairs."""
    if not pairs:
        return SeedInterval(centre=None, low=None, high=None, per_seed={})
    horizon = common_horizon([run for pair in pairs for run in pair])
    clipped = np.minimum([[run.amount for run in pair] for pair in pairs], horizon)

    def of(places: np.ndarray) -> np.ndarray:
        one, other = clipped[places].mean(1).T
        return one / other

    low, high = seed_ends(of, len(pairs))
    return SeedInterval(centre=float(of(np.arange(len(pairs))[None])[0]), low=low, high=high, per_seed={})
