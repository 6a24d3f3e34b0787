"""Per-token estimator of the divergence from a reference policy, for tokens sampled from the policy itself.

Its gradient is, in expectation over on-policy tokens, that of the other direction, KL(reference || policy), unless it
is multiplied by the ratio. Source: Schulman, "Approximating KL divergence" (2020); derived in docs/estimators.md.
"""

from torch import Tensor

from dppo.errors import ConfigError
from dppo.objective.losses import Ratio, Tokens


def k3(tokens: Tokens, *, ratio: Ratio | None = None) -> Tensor:
    """(B, T) ``exp(d) - d - 1`` in nats, with ``d = ref_logp - logp``: unbiased in value, >= 0. GRPO's KL term.

    Args:
        tokens: with ``ref_logp_BT``.
        ratio: what it is multiplied by, gradient included, to correct for tokens that an older policy sampled: TRL's
            ``use_bias_correction_kl``. None for 1.

    Raises:
        ConfigError: there are no log-probabilities of a reference.

    Source: DeepSeekMath (arXiv:2402.03300), equation 4; multiplied by the ratio, DeepSeek-V3.2 (arXiv:2512.02556).
    """
    if tokens.ref_logp_BT is None:
        raise ConfigError(
            "a KL term (beta above 0) needs ref_logp_BT, the reference policy's log-probabilities: pass them, or set "
            "beta=0.0."
        )
    padding_BT = tokens.mask_BT == 0
    d_BT = (tokens.ref_logp_BT - tokens.logp_BT).masked_fill(padding_BT, 0.0)
    kl_BT = d_BT.expm1() - d_BT
    return kl_BT if ratio is None else kl_BT * ratio(tokens)
