"""The objective: advantages of whole groups, per-token losses, KL estimators, and sums over a fixed denominator."""

from dppo.objective.advantages import (
    ADVANTAGE_RULES,
    BATCH_SCALED,
    CENTRED,
    GROUP_SCALED,
    AdvantageRule,
    group_advantages,
    zero_signal,
)
from dppo.objective.kl import k1, k2, k3
from dppo.objective.losses import TokenLoss, cispo, clip_fractions, clipped_surrogate, gspo, importance_ratio
from dppo.objective.reduce import BNPO, DAPO_TOKENS, DR_GRPO, GRPO_MEAN, NORMALISERS, Normaliser, weighted_sum

__all__ = [
    "ADVANTAGE_RULES",
    "BATCH_SCALED",
    "BNPO",
    "CENTRED",
    "DAPO_TOKENS",
    "DR_GRPO",
    "GROUP_SCALED",
    "GRPO_MEAN",
    "NORMALISERS",
    "AdvantageRule",
    "Normaliser",
    "TokenLoss",
    "cispo",
    "clip_fractions",
    "clipped_surrogate",
    "group_advantages",
    "gspo",
    "importance_ratio",
    "k1",
    "k2",
    "k3",
    "weighted_sum",
    "zero_signal",
]
