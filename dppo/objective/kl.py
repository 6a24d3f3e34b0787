"""Per-token estimators of the divergence from a reference policy, for tokens sampled from the policy itself.

Their values estimate KL(policy || reference); what differs is the gradient that autograd takes through them. The
statements below are for on-policy tokens, in expectation over the sampled token, with ``logp`` carrying the gradient.

Source: Schulman, "Approximating KL divergence" (2020); the gradients are derived in docs/estimators.md.
"""

from torch import Tensor


def k1(logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    """``logp - ref_logp`` of each token: unbiased in value, any sign. Its gradient is 0 in expectation.

    Args:
        logp_BT: (B, T) log-probabilities of the sampled tokens under the policy, in nats.
        ref_logp_BT: (B, T) the same under the reference.

    Returns:
        (B, T) in nats.
    """
    return logp_BT - ref_logp_BT


def k2(logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    """Half the square of ``logp - ref_logp``: biased in value, >= 0. Its gradient is that of KL(policy || reference).

    Args:
        logp_BT: (B, T) log-probabilities of the sampled tokens under the policy, in nats.
        ref_logp_BT: (B, T) the same under the reference.

    Returns:
        (B, T) in nats.
    """
    return 0.5 * (logp_BT - ref_logp_BT).square()


def k3(logp_BT: Tensor, ref_logp_BT: Tensor) -> Tensor:
    """``exp(d) - d - 1`` with ``d = ref_logp - logp``: unbiased in value, >= 0. GRPO's KL term.

    Its gradient is, in expectation, that of the other direction, KL(reference || policy).

    Args:
        logp_BT: (B, T) log-probabilities of the sampled tokens under the policy, in nats.
        ref_logp_BT: (B, T) the same under the reference.

    Returns:
        (B, T) in nats.

    Source: DeepSeekMath (arXiv:2402.03300), equation 4.
    """
    log_ratio_BT = ref_logp_BT - logp_BT
    return log_ratio_BT.expm1() - log_ratio_BT
