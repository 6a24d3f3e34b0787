"""Per-token policy losses, to be minimised. They map tensors to (B, T) values; nothing here reduces.

All of them share one signature, ``loss(logp_BT, old_logp_BT, advantage_B, mask_BT)``, with constants as keywords:
bind those with ``functools.partial`` to put a loss into a ``Method``. Values at masked tokens are meaningless but
finite, and no gradient reaches them through the ratio: ``weighted_sum`` leaves them out.
"""

from collections.abc import Callable

from torch import Tensor

TokenLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""``loss(logp_BT, old_logp_BT, advantage_B, mask_BT) -> loss_BT``."""


def clipped_surrogate(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantage_B: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    delta: float | None = None,
) -> Tensor:
    """Loss of each token, ``-min(ratio * A, clip(ratio) * A)`` with the token's own probability ratio.

    Args:
        logp_BT: (B, T) log-probabilities of the sampled tokens under the policy, in nats; carries the gradient.
        old_logp_BT: (B, T) the same under the policy that the ratio is taken against; a constant.
        advantage_B: (B,) advantages, from whole groups.
        mask_BT: (B, T) bool or 0/1, true where a token carries loss.
        clip_low: the ratio is clipped from below at ``1 - clip_low``, in [0, 1].
        clip_high: the ratio is clipped from above at ``1 + clip_high``, >= 0.
        delta: caps the unclipped ratio, which bounds the loss of a negative advantage; None for no cap.

    Returns:
        (B, T) loss per token.

    Source: PPO (arXiv:1707.06347), equation 7; two bounds from DAPO (arXiv:2503.14476); the cap from INTELLECT-2
        (arXiv:2505.07291), as TRL's ``delta``.
    """
    ratio_BT = importance_ratio(logp_BT, old_logp_BT, mask_BT)
    return _clipped(ratio_BT, advantage_B, clip_low, clip_high, delta)


def gspo(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantage_B: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    delta: float | None = None,
) -> Tensor:
    """Loss of each token with the completion's ratio: the geometric mean of its token ratios, one value per row.

    Every token of a row has the same value, so the mean over tokens is the completion's loss: use the ``grpo``
    normaliser, which takes that mean.

    Args:
        logp_BT: (B, T) log-probabilities of the sampled tokens, in nats; carries the gradient.
        old_logp_BT: (B, T) the same under the policy that the ratio is taken against.
        advantage_B: (B,) advantages.
        mask_BT: (B, T) bool or 0/1, true where a token carries loss.
        clip_low: the ratio of a completion is clipped from below at ``1 - clip_low``.
        clip_high: and from above at ``1 + clip_high``.
        delta: caps the unclipped ratio; None for no cap.

    Returns:
        (B, T) loss per token; equal in value and gradient to TRL's ``importance_sampling_level="sequence"``.

    Source: GSPO (arXiv:2507.18071), equations 5 and 7.
    """
    ratio_B1 = importance_ratio(logp_BT, old_logp_BT, mask_BT, sequence=True)
    return _clipped(ratio_B1, advantage_B, clip_low, clip_high, delta).expand_as(logp_BT)


def cispo(
    logp_BT: Tensor, old_logp_BT: Tensor, advantage_B: Tensor, mask_BT: Tensor, *, ratio_max: float = 5.0
) -> Tensor:
    """Loss of each token, ``-min(ratio, ratio_max) * A * logp``, with the capped ratio held constant.

    Args:
        logp_BT: (B, T) log-probabilities of the sampled tokens, in nats; carries the gradient.
        old_logp_BT: (B, T) the same under the policy that the ratio is taken against.
        advantage_B: (B,) advantages.
        mask_BT: (B, T) bool or 0/1, true where a token carries loss.
        ratio_max: the cap itself, > 0, not an addition to 1. TRL calls it ``epsilon_high``.

    Returns:
        (B, T) loss per token.

    Source: MiniMax-M1 (arXiv:2506.13585), section 3.1; the cap is one-sided as in TRL.
    """
    ratio_BT = importance_ratio(logp_BT, old_logp_BT, mask_BT).clamp(max=ratio_max).detach()
    return -ratio_BT * advantage_B[:, None] * logp_BT.masked_fill(mask_BT == 0, 0.0)


def importance_ratio(logp_BT: Tensor, old_logp_BT: Tensor, mask_BT: Tensor, *, sequence: bool = False) -> Tensor:
    """Probability of the sampled tokens under the policy over that under the old one, with its gradient.

    Args:
        logp_BT: (B, T) log-probabilities of the sampled tokens, in nats.
        old_logp_BT: (B, T) the same under the policy that the ratio is taken against.
        mask_BT: (B, T) bool or 0/1, true where a token carries loss.
        sequence: the geometric mean over a completion's tokens instead of each token's own.

    Returns:
        (B, T), or (B, 1) with ``sequence``; 1 at masked tokens.
    """
    return (_mean_log_ratio if sequence else _log_ratio)(logp_BT, old_logp_BT, mask_BT).exp()


def clip_fractions(
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantage_B: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    sequence: bool = False,
) -> tuple[Tensor, Tensor]:
    """Which tokens the clipping leaves without a gradient, at the lower and at the upper bound, for metrics.

    Args:
        logp_BT: (B, T) log-probabilities of the sampled tokens, in nats.
        old_logp_BT: (B, T) the same under the policy that the ratio is taken against.
        advantage_B: (B,) advantages.
        mask_BT: (B, T) bool or 0/1, true where a token carries loss.
        clip_low: as given to the loss.
        clip_high: as given to the loss.
        sequence: True for the ratio of the whole completion, as in ``gspo``.

    Returns:
        Two (B, T) bool tensors, (clipped low, clipped high); divide their sums by the mask's for the fractions.
    """
    ratio = importance_ratio(logp_BT.detach(), old_logp_BT, mask_BT, sequence=sequence)
    token_BT = mask_BT != 0
    low_BT = token_BT & ((ratio < 1 - clip_low) & (advantage_B < 0)[:, None])
    high_BT = token_BT & ((ratio > 1 + clip_high) & (advantage_B > 0)[:, None])
    return low_BT, high_BT


def _clipped(ratio: Tensor, advantage_B: Tensor, clip_low: float, clip_high: float, delta: float | None) -> Tensor:
    advantage_B1 = advantage_B[:, None]
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    free = ratio if delta is None else ratio.clamp(max=delta)
    return -(free * advantage_B1).minimum(clipped * advantage_B1)


def _log_ratio(logp_BT: Tensor, old_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    # Padding is set to 0 before exp: an overflow there would turn into NaN gradients even where the mask is 0.
    return (logp_BT - old_logp_BT).masked_fill(mask_BT == 0, 0.0)


def _mean_log_ratio(logp_BT: Tensor, old_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    tokens_B1 = (mask_BT != 0).sum(1, keepdim=True).clamp(min=1)
    return _log_ratio(logp_BT, old_logp_BT, mask_BT).sum(1, keepdim=True) / tokens_B1
