"""Logistic regression on groups: its maximum, its expansion there, and how well a score tells right from wrong."""

import numpy as np

NEWTON_STEPS = 50
"""Most steps to a mode; a handful is usual."""
CONVERGED = 1e-12
"""Gain in nats, of a Newton step, that is no longer worth another one."""


def posterior_mode(
    linear_K: np.ndarray, precision_KK: np.ndarray, design_QK: np.ndarray, target_Q: np.ndarray, count_Q: np.ndarray
) -> np.ndarray:
    """(K,) the maximum of a quadratic plus a binomial log-likelihood with a logistic link, by Newton's method.

    The objective, in nats, is ``b @ x - x @ C @ x / 2 + sum n (y log p + (1 - y) log(1 - p))`` with ``p`` the logistic
    function of ``design @ x``: b is linear, C the precision (positive definite), y the targets in [0, 1] and n >= 0
    their counts. It is strictly concave, and steps that overshoot are halved.
    """

    def objective(x_K: np.ndarray) -> float:
        logit_Q = design_QK @ x_K
        likelihood = count_Q @ (target_Q * logit_Q - np.logaddexp(0.0, logit_Q))
        return float(linear_K @ x_K - x_K @ precision_KK @ x_K / 2 + likelihood)

    x_K = np.linalg.solve(precision_KK, linear_K)
    for _ in range(NEWTON_STEPS):
        slope_K, bend_KK = expansion(x_K, design_QK, target_Q, count_Q)
        slope_K = slope_K + linear_K - precision_KK @ x_K
        step_K = np.linalg.solve(precision_KK + bend_KK, slope_K)
        gain, before = float(slope_K @ step_K), objective(x_K)
        # Where the gain is lost in the objective's own rounding a whole step is right: the method converges.
        while gain > 1e-9 * max(1.0, abs(before)) and objective(x_K + step_K) < before:
            step_K = step_K / 2
        x_K = x_K + step_K
        if gain < CONVERGED:
            break
    return x_K


def auc(score_N: np.ndarray, right_N: np.ndarray) -> float:
    """The chance that a right completion has a higher score than a wrong one, ties counting half; NaN without a pair.

    Source: Mann and Whitney (1947), from mean ranks.
    """
    _, place_N, count = np.unique(score_N, return_inverse=True, return_counts=True)
    rank_N = (count.cumsum() - (count - 1) / 2)[place_N]
    right = int(right_N.sum())
    pairs = right * (len(right_N) - right)
    return float(rank_N[right_N].sum() - right * (right + 1) / 2) / pairs if pairs else float("nan")


def expansion(
    x_K: np.ndarray, design_QK: np.ndarray, target_Q: np.ndarray, count_Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(K,) gradient of the log-likelihood at ``x_K``, and (K, K) its curvature, negated; see ``posterior_mode``."""
    prob_Q = logistic(design_QK @ x_K)
    return design_QK.T @ (count_Q * (target_Q - prob_Q)), (design_QK.T * (count_Q * prob_Q * (1 - prob_Q))) @ design_QK


def logistic(logit: np.ndarray) -> np.ndarray:
    """``1 / (1 + exp(-logit))`` of each entry, without overflow."""
    return 0.5 + 0.5 * np.tanh(logit / 2)
