"""How well each prompt will probably be answered, before it was ever rolled out: a regression on what is known of it.

Features are free (a prompt's length, a column of the dataset) or cost one forward pass over the prompts. From them an
online logistic regression predicts each reward function's mean, the prior of a prompt that history knows nothing of.
What it predicts for a step comes from rewards of the steps before. So a baseline made of it is settled before the
rollout and leaves the expected gradient as it is, however wrong the prediction.

Source: difficulty predicted before the rollout is the idea of DEPO (arXiv:2602.06375), which drops prompts by it. Here
it is the prior mean of a baseline, and nothing is dropped.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dppo.context import Expected
from dppo.errors import CheckpointError, DataError, RewardError, ShapeError, require
from dppo.groups import each_group
from dppo.pruning.history_file import read_arrays, write_arrays
from dppo.pruning.logistic import auc, expansion, logistic, posterior_mode
from dppo.typed import is_number
from dppo.types import Rewards

FORMAT = 1
"""Version of the saved file; raised when its arrays change meaning."""
LARGEST = 5.0
"""Standardised features end at as many deviations: one prompt of a million tokens must not rule all others."""
INTERCEPT_RIDGE = 0.1
"""Ridge of the intercept as a share of the others': the mean over all prompts may be anywhere in the range."""
SAVED = ("linear_FK", "curvature_FKK", "mean_D", "scale_D", "low_F", "high_F")


PRIOR_STRENGTH = 8.0
"""Completions that a prediction is worth as the prior of a prompt: docs/log.md has what was measured."""


class DifficultyPredictor:
    """Each reward function's mean on each prompt: a logistic regression on the prompt's features, learned step by step.

    What steps have taught is kept as a quadratic in the coefficients, the log-likelihood around its maximum (Laplace's
    approximation). Each step fades it, adds its own likelihood and finds the new maximum. So old steps are forgotten as
    the policy improves, memory is (D + 1)^2 numbers per function however long the run, and the same updates in the same
    order give the same bits.

    Args:
        features_PD: (P, D) float, a line for each prompt of the dataset; standardised by their mean and deviation.
        ranges: lowest and highest reward of each reward function; a logistic curve runs from one to the other.
        discount: what a step counts against the next one, in (0, 1].
        ridge: > 0; before any reward a coefficient is normal around 0 with variance ``1 / ridge``.

    Raises:
        ConfigError: a setting out of range.
        ShapeError: if ``features_PD`` is not a matrix of floats.
        DataError: a feature that is not finite.

    Source: Spiegelhalter and Lauritzen (1990) for the recursion, MacKay (1992) for predictions that allow for what is
    not known of the coefficients.
    """

    def __init__(
        self,
        features_PD: np.ndarray,
        *,
        ranges: Sequence[tuple[float, float]] = ((0.0, 1.0),),
        discount: float = 0.8,
        ridge: float = 1.0,
    ) -> None:
        pairs = f"ranges={ranges!r} must be pairs of numbers, lowest < highest. Try ranges=[(0.0, 1.0)]."
        holds = {
            pairs: len(ranges) > 0 and all(map(_is_range, ranges)),
            f"discount={discount:g} must be in (0, 1]. Try discount=0.8.": 0 < discount <= 1,
            f"ridge={ridge:g} must be > 0 and finite. Try ridge=1.": 0 < ridge < np.inf,
        }
        require("DifficultyPredictor", holds)
        self._features_PD = _checked(features_PD)
        scale_D = self._features_PD.std(0, dtype=np.float64)
        functions, width = len(ranges), features_PD.shape[1] + 1
        self._state = {
            "linear_FK": np.zeros((functions, width)),
            "curvature_FKK": np.zeros((functions, width, width)),
            "mean_D": self._features_PD.mean(0, dtype=np.float64),
            "scale_D": np.where(scale_D > 0, scale_D, 1.0),
            "low_F": np.array([low for low, _ in ranges], np.float64),
            "high_F": np.array([high for _, high in ranges], np.float64),
        }
        self._ridge_KK = np.diag([INTERCEPT_RIDGE * ridge, *[float(ridge)] * (width - 1)])
        self.discount = discount
        self.step = -1
        """The latest step that was learned from; -1 before the first."""

    def __len__(self) -> int:
        return len(self._features_PD)

    def predict(self, rows: Tensor | np.ndarray, step: int) -> Tensor:
        """(P, F) float64 expected mean of each reward function on each prompt, inside its range.

        The less is known of the coefficients, the nearer to the middle of the range.

        Args:
            rows: (P,) integer, positions in the dataset.
            step: that is about to be rolled out, after all that were learned from.

        Raises:
            DataError: rows outside the dataset, or a step that was learned from already.
        """
        if step <= self.step:
            raise DataError(
                f"step={step}: a prior must not know the step's own rewards, and those up to step {self.step} were "
                f"learned from. Predict before update, or for a later step: predict(rows, {self.step + 1})."
            )
        design_PK, low_F, high_F = self._design(rows), self._state["low_F"], self._state["high_F"]
        share_PF = np.empty((len(design_PK), len(low_F)))
        for index, (linear_K, curvature_KK) in enumerate(self._faded(step)):
            solved_KP = np.linalg.solve(curvature_KK + self._ridge_KK, design_PK.T)
            logit_P, variance_P = linear_K @ solved_KP, (design_PK.T * solved_KP).sum(0)
            share_PF[:, index] = logistic(logit_P / np.sqrt(1 + np.pi / 8 * variance_P))
        return torch.from_numpy(low_F + (high_F - low_F) * share_PF)

    def expected(self, rows: Tensor | np.ndarray, step: int, strength: float) -> Expected:
        """The prior of a ``PromptHistory``: what ``predict`` gives, worth ``strength`` completions, > 0.

        Variances are those of rewards at the ends of their range.
        """
        mean_QF = self.predict(rows, step)
        low_F, high_F = torch.from_numpy(self._state["low_F"]), torch.from_numpy(self._state["high_F"])
        return Expected(
            mean_QF=mean_QF,
            variance_QF=(mean_QF - low_F) * (high_F - mean_QF),
            worth_QF=torch.full_like(mean_QF, strength + 1),
        )

    def auc(self, rows: Tensor | np.ndarray, rewards: Rewards, step: int) -> float:
        """How well the predictions for a step tell its rewards above the middle of their range from those below.

        The area under the curve, in [0, 1], mean over functions: 0.5 for predictions that say nothing; NaN where no
        function has rewards of both kinds.
        """
        mean_QF, middle_F = self.predict(rows, step).numpy(), (self._state["low_F"] + self._state["high_F"]) / 2
        mean_NF, reward_NF = mean_QF[rewards.group_N.numpy()], rewards.reward_NF.double().numpy()
        known_NF = ~np.isnan(reward_NF)
        found = [
            auc(mean_NF[known_NF[:, index], index], reward_NF[known_NF[:, index], index] > middle)
            for index, middle in enumerate(middle_F)
        ]
        found = [area for area in found if not np.isnan(area)]
        return float(np.mean(found)) if found else float("nan")

    def update(self, rows: Tensor | np.ndarray, rewards: Rewards, step: int) -> None:
        """Learn from the groups of a step. Every completion counts once; those without a reward do not.

        Args:
            rows: (Q,) integer, the prompt of each group.
            rewards: of the groups, with a function for each range.
            step: when they were rolled out, no earlier than the step before.

        Raises:
            ShapeError: other numbers of rows and groups, or of functions and ranges.
            DataError: rows outside the dataset, or a step out of order.
            RewardError: a reward outside its function's range; nothing was learned.
        """
        design_QK, functions, ranges = self._design(rows), rewards.reward_NF.shape[1], len(self._state["low_F"])
        if len(design_QK) != rewards.groups or functions != ranges:
            raise ShapeError(
                f"{len(design_QK)} rows for {rewards.groups} groups and {ranges} ranges for {functions} reward "
                f"functions: expected one each. Try ranges=[(0.0, 1.0)] * {functions}."
            )
        if step < self.step:
            raise DataError(f"step={step} comes before step {self.step}, learned from already. Keep steps in order.")
        target_QF, count_QF = self._targets(rewards)
        for index, (linear_K, curvature_KK) in enumerate(self._faded(step)):
            seen = design_QK, target_QF[:, index], count_QF[:, index]
            mode_K = posterior_mode(linear_K, curvature_KK + self._ridge_KK, *seen)
            slope_K, bend_KK = expansion(mode_K, *seen)
            self._state["linear_FK"][index] = linear_K + slope_K + bend_KK @ mode_K
            self._state["curvature_FKK"][index] = curvature_KK + bend_KK
        self.step = step

    def _faded(self, step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(K,) and (K, K) of each function: the quadratic ``b @ x - x @ C @ x / 2`` as far as it counts at a step."""
        fade = self.discount ** max(step - self.step, 0)
        for linear_K, curvature_KK in zip(self._state["linear_FK"], self._state["curvature_FKK"], strict=True):
            yield fade * linear_K, fade * curvature_KK

    def _design(self, rows: Tensor | np.ndarray) -> np.ndarray:
        """(P, K) a one, and the standardised features of some prompts: K = D + 1."""
        row_P = np.asarray(rows, np.int64)
        if row_P.ndim != 1:
            raise ShapeError(f"rows have shape {row_P.shape}, expected (P,)")
        if len(row_P) and not 0 <= row_P.min() <= row_P.max() < len(self):
            raise DataError(f"rows {row_P.min()} to {row_P.max()} are not all among the {len(self)} of the features.")
        standard_PD = (self._features_PD[row_P] - self._state["mean_D"]) / self._state["scale_D"]
        return np.concatenate([np.ones((len(row_P), 1)), standard_PD.clip(-LARGEST, LARGEST)], 1)

    def _targets(self, rewards: Rewards) -> tuple[np.ndarray, np.ndarray]:
        """(Q, F) mean rewards as shares of their ranges, in [0, 1], and how many completions have one."""
        low_F, high_F = torch.from_numpy(self._state["low_F"]), torch.from_numpy(self._state["high_F"])
        share_NF = (rewards.reward_NF.double() - low_F) / (high_F - low_F)
        slack = 8 * torch.finfo(rewards.reward_NF.dtype).eps  # a sum may end a rounding beyond its bound
        outside_NF = (share_NF < -slack) | (share_NF > 1 + slack)
        if outside_NF.any():
            place, index = outside_NF.nonzero()[0].tolist()
            found, low, high = float(rewards.reward_NF[place, index]), float(low_F[index]), float(high_F[index])
            raise RewardError(
                f"completion {place} has reward {found:g} of function {index}, outside the declared range {low:g} to "
                f"{high:g}. Declare one that holds it: ranges=[({min(low, found):g}, {max(high, found):g})], in a "
                f"configuration reward_range: [{min(low, found):g}, {max(high, found):g}]."
            )
        known_NF, groups = ~share_NF.isnan(), rewards.group_N
        sums = [
            torch.stack([each_group(lambda value_QG: value_QG.sum(1), groups, column) for column in value_NF.T], 1)
            for value_NF in (share_NF.clamp(0, 1).nan_to_num(0.0), known_NF.double())
        ]
        return (sums[0] / sums[1].clamp_min(1)).numpy(), sums[1].numpy()

    def save(self, path: str | Path) -> None:
        """Write what was learned to ``path`` as npz, without pickle."""
        write_arrays(path, format=np.int64(FORMAT), step=np.int64(self.step), **self._state)

    def load(self, path: str | Path) -> None:
        """Replace what was learned by what ``save`` wrote, bit by bit. Settings stay those of this object.

        Raises:
            CheckpointError: it is missing or damaged, or of other features or reward functions.
        """
        saved = _read(Path(path))
        expected = {name: array.shape for name, array in self._state.items()}
        found = {name: saved[name].shape for name in expected}
        ranges = ("low_F", "high_F")
        if found != expected or any(not np.array_equal(saved[name], self._state[name]) for name in ranges):
            raise CheckpointError(
                f"{path} was learned from {found['mean_D'][0]} features and {found['low_F'][0]} reward functions, and "
                f"this run has {expected['mean_D'][0]} and {expected['low_F'][0]}, or their ranges differ. Resume with "
                "the features and ranges of the checkpoint."
            )
        self._state, self.step = {name: saved[name] for name in SAVED}, int(saved["step"])


def _is_range(pair: Any) -> bool:
    """Whether this is two finite numbers, the lower one first."""
    two_numbers = isinstance(pair, tuple | list) and len(pair) == 2 and all(map(is_number, pair))
    return two_numbers and -np.inf < pair[0] < pair[1] < np.inf


def _checked(features_PD: np.ndarray) -> np.ndarray:
    """Features as float32, which is what a dataset of millions has room for."""
    if features_PD.ndim != 2 or not features_PD.shape[1] or not np.issubdtype(features_PD.dtype, np.floating):
        raise ShapeError(
            f"features are {features_PD.dtype} {features_PD.shape}, expected floats (prompts, features): of one "
            "feature write feature.astype(float)[:, None]."
        )
    with np.errstate(over="ignore"):
        features_PD = features_PD.astype(np.float32)
    if len(wrong := np.argwhere(~np.isfinite(features_PD))):
        row, column = wrong[0]
        raise DataError(f"feature {column} of row {row} is not a finite float32. Fill it in: np.nan_to_num(features).")
    return features_PD


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a saved predictor."""
    names = (*SAVED, "format", "step")
    saved = read_arrays(path, "predictor", names)
    whole = saved.keys() == set(names) and saved["format"] == FORMAT
    if not whole or not all(np.isfinite(saved[name]).all() for name in SAVED):
        raise CheckpointError(
            f"the predictor at {path} is damaged, or not of format {FORMAT}. Resume from an older checkpoint."
        )
    return saved
