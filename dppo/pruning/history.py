"""Statistics of past rollouts of each prompt: a few numbers per prompt, in flat arrays."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dppo.context import Expected
from dppo.errors import CheckpointError, DataError, ShapeError, raise_problems
from dppo.groups import each_group, group_sums
from dppo.pruning.recorded import dataset_rows, matches, read_arrays, write_arrays
from dppo.typed import range_problems
from dppo.types import Candidates, Rewards

FORMAT = 3
"""Version of the saved file; raised when its arrays change meaning."""
FIELDS = {
    "count": np.float32,
    "signal_square_sum": np.float32,
    "tokens_sum": np.float32,
    "last_step": np.int32,
    "rollouts": np.uint32,
    "streak": np.int16,
}
"""Arrays with one entry per prompt. Sums and count decay by one factor at each observation of the prompt."""
OTHERS = ("totals", "identities", "reward_moments", "reward_totals")
"""Other arrays of the saved file."""
LONGEST_STREAK = np.iinfo(np.int16).max
TOTALS = ("count", "signal_square_sum", "tokens_sum")
"""Fields that are also summed over all observations: the prior is the mean of these."""
PRIOR_DECAY = 0.95
"""Decay of the moments of rewards of all prompts with every step."""
TINY = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalPrior:
    """Prior of the squared signal of each prompt of a dataset: see ``PromptHistory.signal_prior``."""

    ratio_P: np.ndarray
    """(size,) float64 squared signal over its mean, >= 0; 1 for a prompt without a prior."""
    strength_P: np.ndarray
    """(size,) float64 observations that the prior counts as, >= 0; 0 for a prompt without a prior."""


class PromptHistory:
    """Decayed means of rewards, squared signal and tokens for each prompt of a dataset.

    It takes 30 bytes per prompt, and 12 for each reward function. Equal updates in equal order give equal bits, so
    ranks agree. The variance of dropping a group goes with the square of its signal, so squares are averaged.

    Args:
        identities: (size,) uint64 hash of each prompt's content. A saved history finds its prompts by it.
        decay: factor on older observations of a prompt at each new one, in (0, 1].
        strength: observations that the prior, the mean over all prompts, counts as, > 0.
        half_life: steps after which a prompt's own observations count half, > 0; at least those of an epoch.
    """

    def __init__(
        self, identities: np.ndarray, *, decay: float = 0.8, strength: float = 2.0, half_life: float = 1000.0
    ) -> None:
        self.identities = identities
        self.decay, self.strength, self.half_life = decay, strength, half_life
        ranges = {"decay": "(0, 1]", "strength": "(0, inf]", "half_life": "(0, inf]"}
        raise_problems("PromptHistory", range_problems(self, "PromptHistory(identities, decay=0.8)", **ranges))
        if identities.dtype != np.uint64 or identities.ndim != 1:
            raise ShapeError(f"identities are {identities.dtype} {identities.shape}, expected uint64 (size,)")
        self._arrays = {name: np.zeros(len(identities), dtype) for name, dtype in FIELDS.items()}
        self._totals = np.zeros(len(TOTALS))
        self.forget_rewards()

    def __len__(self) -> int:
        return len(self.identities)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, identities included."""
        others = (self.identities, self._reward_moments, self._reward_totals)
        return sum(array.nbytes for array in (*others, *self._arrays.values()))

    @property
    def functions(self) -> int:
        """F, reward functions with moments; 0 before the first observation."""
        return self._reward_totals.shape[1]

    def forget_rewards(self, functions: int = 0) -> None:
        """Drop the moments of rewards and begin those of F functions; signals and tokens stay."""
        self._reward_moments = np.zeros((3, len(self), functions), np.float32)
        """(3, size, F) decayed counts, sums and squares of each prompt; ``_reward_totals`` (3, F) are those of all."""
        self._reward_totals = np.zeros((3, functions))

    def update(
        self,
        rows: Tensor | np.ndarray,
        rewards: Rewards,
        signal_Q: Tensor,
        tokens_N: Tensor,
        step: int,
        *,
        outcome_Q: Tensor | None = None,
    ) -> None:
        """Record one group per row. A row that appears twice counts as two observations, in the order given.

        Args:
            rows: (Q,) integer, positions in the dataset.
            rewards: of the groups, by number; a group without any reward is not recorded.
            signal_Q: (Q,) signal of each group, finite and >= 0, any unit.
            tokens_N: (N,) completion tokens, finite and >= 0.
            step: of the rollout, >= 0 and below 2^31, on the clock of ``candidates``.
            outcome_Q: (Q,) integer for ``streak``: 1 easy, -1 hard, 0 neither; None if no streaks are kept.
        """
        row = dataset_rows(rows, len(self))
        tokens_Q = each_group(lambda tokens_QG: tokens_QG.mean(1), rewards.group_N, tokens_N.double()).numpy()
        for name, value in (("signal", signal_Q), ("tokens", tokens_N)):
            if not (value.isfinite() & (value >= 0)).all():
                raise DataError(f"{name} must be finite and >= 0 in every group. Pass advantages.abs(), tokens.")
        known = ~rewards.mean_Q.isnan().numpy()
        observed = dict(zip(TOTALS, (np.ones(len(row)), np.square(signal_Q.double().numpy()), tokens_Q), strict=True))
        totals = [value[known].sum() for value in observed.values()]
        if not len(row):
            return
        turn, moments, functions = _occurrence(row), _moments_of(rewards), rewards.reward_NF.shape[1]
        if not self.functions:
            self.forget_rewards(functions)
        if functions != self.functions:
            kept = f"the history has rewards of {self.functions} functions; now there are {functions}"
            raise ShapeError(f"{kept}. Use the reward functions of the run's start, or start a new run.")
        self._totals += totals
        self._reward_totals *= PRIOR_DECAY
        decay = np.float32(self.decay)
        for repeat in range(turn.max() + 1):
            now = known & (turn == repeat)
            at = row[now]
            for name, value in observed.items():
                self._arrays[name][at] = self._arrays[name][at] * decay + value[now].astype(np.float32)
            self._reward_moments[:, at] = self._reward_moments[:, at] * decay + moments[:, now].astype(np.float32)
            self._reward_totals += moments[:, now].sum(1)
            self._arrays["last_step"][at] = step
            self._arrays["rollouts"][at] += 1
            if outcome_Q is not None:  # a group of another kind begins a new streak
                before, outcome = self._arrays["streak"][at].astype(np.int64), outcome_Q.numpy()[now]
                after = np.where(np.sign(before) == outcome, before, 0) + outcome
                self._arrays["streak"][at] = np.clip(after, -LONGEST_STREAK, LONGEST_STREAK)

    def streak(self, rows: Tensor | np.ndarray) -> Tensor:
        """(P,) int64 length of each prompt's latest run of groups of one kind: z easy, -z hard, 0 for neither."""
        return torch.from_numpy(self._arrays["streak"][dataset_rows(rows, len(self))].astype(np.int64))

    @property
    def observations(self) -> float:
        """Groups observed so far."""
        return float(self._totals[0])

    def visited(self, rows: Tensor | np.ndarray) -> Tensor:
        """(P,) bool, prompts with an observation."""
        return torch.from_numpy(self._arrays["rollouts"][dataset_rows(rows, len(self))] > 0)

    def candidates(self, rows: Tensor | np.ndarray, step: int, prior: SignalPrior | None = None) -> Candidates:
        """Expected signal and tokens of a block of prompts at ``step``.

        A prompt's mean is mixed with the mean over all observations (1 without any), in the ratio of
        ``count * 2^(-age / half_life)`` to ``strength``: it fades with age, so no prompt stays skipped. The signal is
        the root of the mean square. A prompt with a ``prior`` counts as seen before its first visit.
        """
        row = dataset_rows(rows, len(self))
        seen = self._arrays["rollouts"][row] > 0
        count = self._arrays["count"][row].astype(np.float64)
        weight = count * self._fading(row, step)
        ratio, more = (1.0, np.zeros(len(row))) if prior is None else (prior.ratio_P[row], prior.strength_P[row])

        def estimate(field: str, ratio: float | np.ndarray, strength: float | np.ndarray) -> Tensor:
            shared = self._totals[TOTALS.index(field)] / self._totals[0] if self._totals[0] else 1.0
            mean = self._arrays[field][row].astype(np.float64) / np.where(seen, count, 1.0)
            return torch.from_numpy((weight * mean + strength * (shared * ratio)) / (weight + strength))

        return Candidates(
            row_P=torch.from_numpy(row),
            signal_P=estimate("signal_square_sum", ratio, self.strength + more).sqrt(),
            tokens_P=estimate("tokens_sum", 1.0, self.strength).clamp_min(1.0),  # no prior of pass rates has lengths
            seen_P=torch.from_numpy(seen | (more > 0)),
        )

    def signal_prior(self, square_P: Tensor, strength: float) -> SignalPrior:
        """Prior with ``strength`` > 0 observations, from (size,) squared signals in any unit, NaN if unknown."""
        square = square_P.numpy()
        known = ~np.isnan(square)
        visits = self._arrays["rollouts"] * known
        # Relative to their mean over visits, so that the unit comes from the visited prompts.
        mean = np.average(square[known], weights=visits[known] if visits.any() else None)
        return SignalPrior(ratio_P=np.where(known, square, mean) / max(mean, 1e-12), strength_P=strength * known)

    def expected(self, rows: Tensor | np.ndarray, step: int, prior: Expected | None = None) -> Expected | None:
        """Expected rewards of a block of prompts at ``step``, from earlier steps alone.

        ``prior`` is that of each prompt before its first visit; by default the recent mean over all prompts, which
        counts as ``strength`` completions. None without a prior and before the first completion. For rewards of 0 and 1
        it is the Beta distribution updated by decayed counts, with the strength ``a + b + 1``: ``variance / strength``
        is the variance of the mean.

        Source: SPO, arXiv:2509.13232, section 3 (a Beta tracker per prompt); discounted counts, arXiv:2603.18444.
        """
        row = dataset_rows(rows, len(self))
        if not self._reward_totals.any():
            return prior
        if prior is None:
            total_3F = torch.from_numpy(self._reward_totals)
            _, mean_1F, square_1F = (total_3F / total_3F[0].clamp_min(TINY))[:, None]
            prior = Expected(
                mean_QF=mean_1F,
                variance_QF=(square_1F - mean_1F.square()).clamp_min(0.0),
                strength_QF=(total_3F[:1] > 0) * (self.strength + 1.0),
            )
        moments = self._reward_moments[:, row].astype(np.float64) * self._fading(row, step)[:, None]
        count_QF, sum_QF, square_QF = torch.from_numpy(moments)
        before_QF = (prior.strength_QF - 1).clamp_min(TINY)
        known_QF = before_QF + count_QF
        mean_QF = (before_QF * prior.mean_QF + sum_QF) / known_QF
        square_QF = (before_QF * (prior.variance_QF + prior.mean_QF.square()) + square_QF) / known_QF
        return Expected(
            mean_QF=mean_QF,
            variance_QF=(square_QF - mean_QF.square()).clamp_min(0.0),
            strength_QF=(known_QF > TINY) * (known_QF + 1),  # 0 for a function that has not scored yet
        )

    def _fading(self, row: np.ndarray, step: int) -> np.ndarray:
        age = np.maximum(step - self._arrays["last_step"][row].astype(np.int64), 0)
        return np.exp2(-age / self.half_life)

    def save(self, path: str | Path) -> None:
        """Write everything to ``path`` as npz, without pickle; the file appears complete or not at all."""
        others = (self._totals, self.identities, self._reward_moments, self._reward_totals)
        write_arrays(path, format=np.int64(FORMAT), **dict(zip(OTHERS, others, strict=True)), **self._arrays)

    def load(self, path: str | Path) -> int:
        """Read a file of ``save``; return the number of prompts of this dataset in it. Settings stay as they are.

        New prompts start without one. ``CheckpointError`` if the file is missing, damaged or of other prompts alone.
        """
        saved = read_arrays(Path(path), "history", ("format", *OTHERS, *FIELDS))
        if saved["format"] != FORMAT:
            older = f"the history at {path} is of format {saved['format']}, not {FORMAT}"
            raise CheckpointError(f"{older}. Start a new run.")
        target, source = matches(self.identities, saved["identities"], f"the prompts in {path}")
        for name, array in self._arrays.items():
            array[:] = 0
            array[target] = saved[name][source]
        self.forget_rewards(saved["reward_totals"].shape[1])
        self._totals, self._reward_totals = saved["totals"], saved["reward_totals"]
        self._reward_moments[:, target] = saved["reward_moments"][:, source]
        return len(target)


def _occurrence(row: np.ndarray) -> np.ndarray:
    """Earlier appearances of each row: [5, 7, 5, 5] gives [0, 0, 1, 2]."""
    order = np.argsort(row, kind="stable")
    occurrence = np.empty(len(row), np.int64)
    occurrence[order] = np.arange(len(row)) - np.searchsorted(row[order], row[order])
    return occurrence


def _moments_of(rewards: Rewards) -> np.ndarray:
    """(3, Q, F) count, sum and squares of the rewards of each group, without missing ones."""
    reward_NF, known_NF = rewards.reward_NF.double().nan_to_num(0.0), (~rewards.reward_NF.isnan()).double()
    parts = (group_sums(value_NF, rewards.group_N) for value_NF in (known_NF, reward_NF, reward_NF.square()))
    return torch.stack([*parts]).numpy()
