"""What accuracy is to be reached, what each contestant spent until then, and how many times less than the baseline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dppo_lab.comparison.curves import AMOUNTS, Curve, Over, reach
from dppo_lab.comparison.survival import PerSeed, common_horizon, median_interval, ratio, restricted_mean
from dppo_lab.statistics import SeedInterval, seed_interval

Curves = Mapping[int, Curve | None]
"""Of one contestant, by seed; None where its run did not finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An accuracy for each seed."""

    what: str
    """In words, such as ``final accuracy of trl, same seed``."""
    per_seed: Mapping[int, float | None]
    """In [0, 1]; None where there is none."""
    missing: str = ""
    """Why no seed has one; empty where seeds have."""

    def as_json(self) -> dict[str, Any]:
        """The record of ``results.json``."""
        return {
            "what": self.what,
            "per_seed": {str(seed): value for seed, value in self.per_seed.items()},
            "missing": self.missing or None,
        }


def fixed_target(accuracy: float, curves: Curves) -> Target:
    """One accuracy, in [0, 1], for every seed."""
    return Target(what=f"accuracy {accuracy:g}", per_seed=dict.fromkeys(curves, accuracy))


def final_target(name: str, curves: Curves) -> Target:
    """The final accuracy of a contestant with the same seed; none where the contestant did not improve.

    It improved if the interval of its gain is above 0; with too few seeds for an interval, if every seed gained.
    Otherwise its final accuracy is its start plus noise, and a speedup to it would be a ratio of clock readings.
    """
    what = f"final accuracy of {name}, same seed"
    gain = gain_of(curves)
    gains = [value for value in gain.per_seed.values() if value is not None]
    if gains and (min(gains) if gain.low is None else gain.low) <= 0:
        ends = "" if gain.low is None else f" [{100 * gain.low:+.1f}, {100 * (gain.high or 0.0):+.1f}]"
        missing = f"{name} did not improve: its accuracy changed by {100 * (gain.centre or 0.0):+.1f}{ends} points"
        return Target(what=what, per_seed=dict.fromkeys(curves), missing=missing)
    return Target(what=what, per_seed=finals(curves))


def finals(curves: Curves) -> dict[int, float | None]:
    """The last accuracy of each seed."""
    return {seed: curve[-1].accuracy if curve else None for seed, curve in curves.items()}


def gain_of(curves: Curves) -> SeedInterval:
    """Final accuracy minus that of the start, over seeds."""
    return seed_interval(
        {seed: curve[-1].accuracy - curve[0].accuracy if curve else None for seed, curve in curves.items()}
    )


def reaches(curves: Curves, target: Target, over: Over) -> PerSeed:
    """What each seed spent of ``over`` until its target, or in all."""
    return {
        seed: reach(curve, place, over) if curve and (place := target.per_seed.get(seed)) is not None else None
        for seed, curve in curves.items()
    }


def spent(contestants: Mapping[str, Curves], target: Target) -> dict[str, dict[str, Any]]:
    """By contestant: of each of ``AMOUNTS`` the median and restricted mean to the target, and how many seeds got there.

    The horizon of restricted means is common to all contestants.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in contestants}
    for over in AMOUNTS:
        every = {name: reaches(curves, target, over) for name, curves in contestants.items()}
        known = {name: [run for run in runs.values() if run is not None] for name, runs in every.items()}
        together = [run for runs in known.values() for run in runs]
        horizon = common_horizon(together) if together else None
        for name, runs in every.items():
            mean = restricted_mean(known[name], horizon) if known[name] and horizon is not None else None
            found[name][over] = {
                **median_interval(runs).as_json("median"),
                "restricted_mean": {"mean": mean, "horizon": horizon},
            }
            reached = sum(run.reached for run in known[name])
            found[name]["reached"] = None if target.missing else f"{reached} of {len(known[name])}"
    return found


def ratios(
    contestants: Mapping[str, Curves], target: Target, baseline: str, over: Over = "seconds"
) -> dict[str, dict[str, object]]:
    """By contestant: what the baseline spent to the target over what it did, as ``survival.Ratio`` writes it."""
    first = reaches(contestants[baseline], target, over)
    return {name: ratio(first, reaches(curves, target, over)).as_json() for name, curves in contestants.items()}
