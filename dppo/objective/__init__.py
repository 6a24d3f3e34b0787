"""The objective: advantages of whole groups, per-token losses, a KL term, and sums over a fixed denominator."""

from dppo.objective.advantages import (
    ADVANTAGE_RULES,
    BATCH_SCALED,
    CENTRED,
    GROUP_SCALED,
    HISTORY_CENTRED,
    HISTORY_SCALED,
    AdvantageRule,
    Statistics,
    deviation,
    emphasised,
    group_advantages,
    history_advantages,
    history_scaled_advantages,
    powered,
)
from dppo.objective.losses import (
    Divergence,
    Ratio,
    TokenLoss,
    Tokens,
    binary_kl,
    binary_tv,
    cispo,
    clipped_surrogate,
    clipped_tokens,
    divergence_ppo,
    k3,
    mixes_tokens,
    off_policy_masked,
    sapo,
    sequence_ratio,
    token_ratio,
    vespo,
)
from dppo.objective.reduce import (
    BNPO,
    DAPO_TOKENS,
    DR_GRPO,
    GRPO_MEAN,
    LUSPO,
    NORMALISERS,
    Normaliser,
    margin_weights,
    weighted_sum,
)

__all__ = ["ADVANTAGE_RULES", "BATCH_SCALED", "BNPO", "CENTRED", "DAPO_TOKENS", "DR_GRPO", "GROUP_SCALED", "GRPO_MEAN"]
__all__ += ["HISTORY_CENTRED", "HISTORY_SCALED", "LUSPO", "NORMALISERS", "AdvantageRule", "Divergence"]
__all__ += ["Normaliser", "Ratio", "Statistics", "TokenLoss", "Tokens", "binary_kl", "binary_tv", "cispo"]
__all__ += ["clipped_surrogate", "clipped_tokens", "deviation", "divergence_ppo", "emphasised", "group_advantages"]
__all__ += ["history_advantages", "history_scaled_advantages", "k3", "margin_weights", "mixes_tokens"]
__all__ += ["off_policy_masked", "powered", "sapo", "sequence_ratio", "token_ratio", "vespo", "weighted_sum"]
