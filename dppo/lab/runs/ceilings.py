"""The most that pruning can save: its record, and that of runs from their log."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dppo.lab.runs.folder import PromptLine
from dppo.lab.runs.reader import RunRecord, number, sequence
from dppo.pruning import Ceiling, MomentSamples, ceiling_of
from dppo.pruning.ceiling import FEWEST, TAIL
from dppo.rng import Purpose, generator

LOGGED = ("prune/completion_ceiling", "prune/live_share")
RESAMPLES = 2000
MOST = 4096
"""Visits of prompts that are used: the latest."""


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
    """Number of visits of prompts with a history, of completions with a gradient, or of records of a log."""
    free: float | None = None
    """Share of the completions without a gradient, in [0, 1], which are skipped at no cost; None for prompts."""

    @classmethod
    def of(cls, level: str, found: Ceiling, free: float | None = None) -> "CeilingRow":
        """The row of a ceiling."""
        return cls(level=level, value=found.value, low=found.low, high=found.high, units=found.units, free=free)

    def __str__(self) -> str:
        said = f"pruning {self.level} can save at most {self.value:.2f}x ({self.low:.2f} to {self.high:.2f})"
        if self.free is None:
            return f"{said} of rollout and update"
        return f"{said} of the update, beside the {self.free:.0%} without a gradient, which are free"


def run_ceilings(runs: Sequence[RunRecord]) -> tuple[CeilingRow, ...]:
    """The ceilings of both levels over runs of one method; a level without enough records is left out.

    For prompts it is pooled over all visits of prompts with a history, with the bootstrap over visits. For completions
    it is the mean of the logged ceilings, one for the draws of each record, with the bootstrap over records.
    """
    rows = []
    visits = prompt_evidence(line for run in runs for line in run.prompts)
    if len(visits) >= FEWEST:
        rows.append(CeilingRow.of("prompts", ceiling_of(visits)))
    value_I, free_I = (np.concatenate([np.zeros(0), *(run.series(name).value_I for run in runs)]) for name in LOGGED)
    if len(value_I):
        rng = generator(0, Purpose.CHECK, len(value_I))
        mean_M = rng.choice(value_I, (RESAMPLES, len(value_I))).mean(1)
        low, high = np.quantile(mean_M, (TAIL, 1 - TAIL)).tolist()
        found = Ceiling(value=float(value_I.mean()), low=low, high=high, units=len(value_I))
        free = 1 - float(free_I.mean()) if len(free_I) else math.nan
        rows.append(CeilingRow.of("completions", found, free=free))
    return tuple(rows)


def prompt_evidence(lines: Iterable[PromptLine]) -> MomentSamples:
    """Visits of prompts with a history, from lines that may be damaged."""
    visits = [visit for line in lines for visit in _visits(line)][-MOST:]
    column_5N = torch.tensor(visits, dtype=torch.float64).reshape(-1, 5).T
    expected_N, found_N, expected_cost_N, cost_N, prob_N = column_5N
    return MomentSamples(
        expected_N=expected_N.square(),
        found_N=found_N.square(),
        expected_cost_N=expected_cost_N,
        cost_N=cost_N,
        weight_N=prob_N.reciprocal(),
        paid_N=torch.zeros_like(prob_N),
        group_N=torch.arange(len(prob_N)),
    )


def _visits(line: PromptLine) -> Iterable[tuple[float, ...]]:
    """Expected and found signal, expected and found tokens, and probability of each prompt that has all of them."""
    columns = line.expected_signal, line.signal, line.expected_tokens, line.tokens, line.probability
    for row in zip(*map(sequence, columns), strict=False):
        visit = tuple(map(number, row))
        signal, found, expected, tokens, prob = visit
        if all(map(math.isfinite, visit)) and min(signal, found, tokens) >= 0 and expected > 0 and 0 < prob <= 1:
            yield visit
