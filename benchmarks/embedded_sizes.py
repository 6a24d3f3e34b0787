"""The default beside the control at equal sizes of a step: is it drawing completions that helps, or a small step?"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from embedded_entries import PAIR, SEEDS, STEPS

from dppo_lab.comparison.curves import Curve, accuracy_at
from dppo_lab.comparison.targets import Curves
from dppo_lab.statistics import seed_interval

MEAN = "mean"
"""The line that has means over all sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How two runs of one seed compare."""

    difference: float
    """Accuracy of the default less the control's, where the shorter of the two ends, in seconds."""
    step: float
    """Seconds of a step of the control over those of the default."""


def pairs_of(curves: Mapping[str, Curves]) -> dict[str, tuple[str, str]]:
    """The control and the default, by the sizes of a step that both were run at.

    Args:
        curves: by contestant.
    """
    pairs = {size: (f"{PAIR[0]}_{size}", f"{PAIR[1]}_{size}") for size in STEPS}
    return {size: pair for size, pair in pairs.items() if curves.keys() >= {*pair}}


def levels(curves: Mapping[str, Curves]) -> dict[str, dict[str, Any]]:
    """``Level`` of each size, and of their mean, over seeds.

    Args:
        curves: by contestant.
    """
    each = {
        size: {seed: side_by_side(curves[control].get(seed), curves[ours].get(seed)) for seed in SEEDS}
        for size, (control, ours) in pairs_of(curves).items()
    }
    if each:
        each[MEAN] = {seed: mean_of([by_seed[seed] for by_seed in each.values()]) for seed in SEEDS}
    return {
        size: {
            part.name: seed_interval(
                {seed: None if level is None else asdict(level)[part.name] for seed, level in by_seed.items()}
            ).as_json()
            for part in fields(Level)
        }
        for size, by_seed in each.items()
    }


def side_by_side(control: Curve | None, ours: Curve | None) -> Level | None:
    """How two runs compare; None where one did not finish.

    Args:
        control: accuracies over the control's run.
        ours: over the default's.
    """
    if not control or not ours:
        return None
    end = min(control[-1].seconds, ours[-1].seconds)
    was, now = accuracy_at(control, end, "seconds"), accuracy_at(ours, end, "seconds")
    if was is None or now is None:
        return None
    paces = [curve[-1].seconds / curve[-1].step for curve in (control, ours)]
    return Level(difference=now - was, step=paces[0] / paces[1])


def mean_of(levels: Sequence[Level | None]) -> Level | None:
    """The mean of all; None where one is missing, since means of other sizes do not compare.

    Args:
        levels: one of each size.
    """
    there = [level for level in levels if level is not None]
    if len(there) < len(levels):
        return None
    means = {part.name: sum(asdict(level)[part.name] for level in there) / len(there) for part in fields(Level)}
    return Level(**means)
