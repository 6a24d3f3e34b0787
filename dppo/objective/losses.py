"""Per-token policy losses, to be minimised, and the KL term: from ``Tokens`` to (B, T) values. Nothing here reduces.

Bind a loss's constants with ``functools.partial``. Values at masked tokens are meaningless but finite.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import signature
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from dppo.errors import ConfigError
from dppo.typed import check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Sampled tokens of some completions, input of a token loss. Log-probabilities are in nats."""

    logp_BT: Tensor
    """(B, T) under the policy in training; the only one with a gradient."""
    old_logp_BT: Tensor
    """(B, T) under the policy that generated, the denominator of ratios."""
    advantage_B: Tensor
    """(B,) advantages, from whole groups."""
    mask_BT: Tensor
    """(B, T) bool or 0/1, true for tokens that carry loss."""
    counted_B: Tensor | None = None
    """(B,) tokens that carry loss of each whole completion, if ``mask_BT`` is a part of them; None for all."""
    ref_logp_BT: Tensor | None = None
    """(B, T) under the reference policy; None without a KL term."""
    sampler_logp_BT: Tensor | None = None
    """(B, T) as the rollout engine reported them, NaN where missing; None if it reports none."""
    correction_B1: Tensor | None = None
    """(B, T), or (B, 1) for whole completions: truncated ratio of the old policy to the rollout engine's; None: 1."""
    policy_BT: Tensor | None = None
    """(B, T) bool or 0/1, true for tokens that have a policy loss beside the KL term; None for all."""

    def __post_init__(self) -> None:
        check_fields(self, "Tokens(logp_BT=logp, old_logp_BT=logp.detach(), advantage_B=advantage, mask_BT=mask)")


TokenLoss = Callable[[Tokens], Tensor]
"""``loss(tokens) -> loss_BT``."""
Ratio = Callable[[Tokens], Tensor]
"""``ratio(tokens)``: (B, T), or (B, 1) for a ratio of whole completions, with its gradient; 1 at masked tokens."""
Divergence = Callable[[Tensor, Tensor], Tensor]
"""``divergence(behaviour_logp, logp)``: distance of two log-probabilities of the same tokens, >= 0."""


def token_ratio(tokens: Tokens) -> Tensor:
    """(B, T) probability of each token under the policy over that under the old one."""
    return _log_ratio(tokens).exp()


def sequence_ratio(tokens: Tokens) -> Tensor:
    """(B, 1) geometric mean of the token ratios of each completion: GSPO (arXiv:2507.18071), equation 7."""
    return (_log_ratio(tokens).sum(1, keepdim=True) / _counted(tokens)).exp()


def clipped_surrogate(
    tokens: Tokens,
    *,
    ratio: Ratio = token_ratio,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    delta: float | None = None,
) -> Tensor:
    """(B, T) loss of each token, ``-min(ratio * A, clip(ratio) * A)``.

    The ratio is clipped to ``[1 - clip_low, 1 + clip_high]``, with ``clip_low`` in [0, 1] and ``clip_high`` >= 0.
    ``delta`` caps the unclipped ratio, which bounds the loss of a negative advantage; None for no cap.
    ``sequence_ratio`` goes with the ``grpo`` normaliser, because all tokens of a completion have one value.

    Source: PPO (arXiv:1707.06347), equation 7; two bounds, DAPO (arXiv:2503.14476); ratios of completions, GSPO
        (arXiv:2507.18071), equation 5; the cap, INTELLECT-2 (arXiv:2505.07291).
    """
    found, advantage_B1 = ratio(tokens), tokens.advantage_B[:, None]
    free = found if delta is None else found.clamp(max=delta)
    clipped = found.clamp(1 - clip_low, 1 + clip_high)
    return _corrected(-(free * advantage_B1).minimum(clipped * advantage_B1), tokens)


def cispo(tokens: Tokens, *, ratio: Ratio = token_ratio, ratio_max: float = 5.0) -> Tensor:
    """(B, T) loss of each token, ``-min(ratio, ratio_max) * A * logp``, with the capped ratio held constant.

    ``ratio_max`` > 0 is the cap itself, not an addition to 1: TRL's ``epsilon_high``.

    Source: MiniMax-M1 (arXiv:2506.13585), section 3.1; the cap is one-sided as in TRL.
    """
    capped = ratio(tokens).clamp(max=ratio_max).detach()
    return _corrected(-capped * tokens.advantage_B[:, None] * _masked(tokens.logp_BT, tokens), tokens)


def sapo(
    tokens: Tokens, *, ratio: Ratio = token_ratio, temperature_pos: float = 1.0, temperature_neg: float = 1.05
) -> Tensor:
    """(B, T) loss of each token, ``-A * 4 / t * sigmoid(t * (ratio - 1))``: a soft gate in place of clipping.

    t > 0 is ``temperature_pos`` for advantages above 0, else ``temperature_neg``; larger values close the gate sooner.

    Source: SAPO (arXiv:2511.20347), as in TRL.
    """
    advantage_B1 = tokens.advantage_B[:, None]
    temperature_B1 = _either(advantage_B1 > 0, temperature_pos, temperature_neg, advantage_B1)
    gate = torch.sigmoid(temperature_B1 * (ratio(tokens) - 1)) * 4 / temperature_B1
    return _corrected(-gate * advantage_B1, tokens)


def vespo(
    tokens: Tokens, *, k_pos: float = 2.0, lambda_pos: float = 3.0, k_neg: float = 3.0, lambda_neg: float = 2.0
) -> Tensor:
    """(B, T) ``-phi * A * logp`` with ``phi`` from ``vespo_weight`` held constant: VESPO (arXiv:2602.10693)."""
    phi_B1 = vespo_weight(tokens, k_pos=k_pos, lambda_pos=lambda_pos, k_neg=k_neg, lambda_neg=lambda_neg)
    return -phi_B1 * tokens.advantage_B[:, None] * _masked(tokens.logp_BT, tokens)


@torch.no_grad()
def vespo_weight(tokens: Tokens, *, k_pos: float, lambda_pos: float, k_neg: float, lambda_neg: float) -> Tensor:
    """(B, 1) ``phi(w) = exp(lambda) w^k exp(-lambda w)`` of each completion, 1 if the policy has not moved.

    ``w`` is the product of the ratios of a completion's tokens and of the engine's correction. Clamps are TRL's.
    """
    smallest = math.log(1e-8)
    log_w_B1 = _log_ratio(tokens).clamp(-20.0, 20.0).sum(1, keepdim=True)
    if tokens.correction_B1 is not None:
        log_w_B1 = log_w_B1 + tokens.correction_B1.log().clamp(smallest, 20.0).sum(1, keepdim=True)
    log_w_B1 = log_w_B1.clamp(smallest, 20.0)
    better_B1 = tokens.advantage_B[:, None] >= 0
    k_B1 = _either(better_B1, k_pos, k_neg, log_w_B1)
    lambda_B1 = _either(better_B1, lambda_pos, lambda_neg, log_w_B1).clamp(min=1e-4)
    phi_B1 = (lambda_B1 + k_B1 * log_w_B1 - lambda_B1 * log_w_B1.exp()).exp()
    return phi_B1.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def off_policy_masked(tokens: Tokens, *, loss: TokenLoss, threshold: float) -> Tensor:
    """(B, T) ``loss``, 0 for completions of negative advantage from which the policy has drifted too far.

    Kept are means of ``log mu - log pi`` over a completion's tokens of at most ``threshold`` nats. ``mu`` is the
    rollout engine's policy if it reports log-probabilities, else the old policy.

    Source: DeepSeek-V3.2 (arXiv:2512.02556), off-policy sequence masking, as in TRL.
    """
    behaviour = tokens.old_logp_BT if tokens.sampler_logp_BT is None else tokens.sampler_logp_BT
    drift_BT = _masked(torch.nan_to_num(behaviour - tokens.logp_BT.detach(), nan=0.0), tokens)
    near_B1 = drift_BT.sum(1, keepdim=True) / _counted(tokens) <= threshold
    kept_B1 = (tokens.advantage_B[:, None] >= 0) | near_B1
    return loss(tokens).masked_fill(~kept_B1, 0.0)


def binary_tv(behaviour_logp: Tensor, logp: Tensor) -> Tensor:
    """Total variation between "this token" and "any other", ``|pi - mu|``, in [0, 1] (arXiv:2602.04879)."""
    return (logp.exp() - behaviour_logp.exp()).abs()


def binary_kl(behaviour_logp: Tensor, logp: Tensor) -> Tensor:
    """KL divergence of the policy from the sampler over "this token" and "any other", in nats, >= 0.

    ``mu log(mu / pi) + (1 - mu) log((1 - mu) / (1 - pi))`` with ``mu`` the policy that sampled and ``pi`` the one in
    training; infinite only if a policy has become certain (arXiv:2602.04879).
    """
    mu, other, other_now = behaviour_logp.exp(), -torch.expm1(behaviour_logp), -torch.expm1(logp)
    rest = torch.where(other > 0, other * (other.log() - other_now.log()), 0.0)
    return mu * (behaviour_logp - logp) + rest


def divergence_ppo(
    tokens: Tokens,
    *,
    divergence: Divergence = binary_tv,
    delta_low: float = 0.15,
    delta_high: float = 0.15,
    ratio_max: float = 20.0,
) -> Tensor:
    """(B, T) loss of each token, ``-min(ratio, ratio_max) * A * logp`` with the capped ratio held constant, or 0.

    It is 0 for an advantage above 0 if the token has become more likely by more than ``delta_high`` >= 0 in
    ``divergence``, and for another advantage if it has become less likely by more than ``delta_low`` >= 0. A rare token
    may have a large ratio and hardly move the distribution, so a difference decides. The ratio is to the rollout
    engine's log-probabilities if they are there, else to the old policy's, so ``correction_B1`` is not applied.

    Source: Divergence Proximal Policy Optimization (arXiv:2602.04879); 0.15 is for total variation, KL has 0.05. Its
        masks over the sampler's most likely tokens need log-probabilities that no trainer records.
    """
    with torch.no_grad():
        behaviour_BT = tokens.old_logp_BT
        if tokens.sampler_logp_BT is not None:
            behaviour_BT = torch.where(tokens.sampler_logp_BT.isfinite(), tokens.sampler_logp_BT, behaviour_BT)
        log_ratio_BT = tokens.logp_BT - behaviour_BT
        far_BT = divergence(behaviour_BT, tokens.logp_BT)
        up_B1 = tokens.advantage_B[:, None] > 0
        too_high_BT = up_B1 & (log_ratio_BT > 0) & (far_BT > delta_high)
        too_low_BT = ~up_B1 & (log_ratio_BT < 0) & (far_BT > delta_low)
        left_out_BT = too_high_BT | too_low_BT | (tokens.mask_BT == 0)
        ratio_BT = log_ratio_BT.exp().clamp(max=ratio_max).masked_fill(left_out_BT, 0.0)
    return -ratio_BT * tokens.advantage_B[:, None] * tokens.logp_BT.masked_fill(left_out_BT, 0.0)


def k3(tokens: Tokens, *, ratio: Ratio | None = None) -> Tensor:
    """(B, T) ``exp(d) - d - 1`` in nats, with ``d = ref_logp - logp``: unbiased in value, >= 0. GRPO's KL term.

    Its expected gradient over on-policy tokens is that of KL(reference || policy). Multiplied by ``ratio``, gradient
    included, it is that of KL(policy || reference), also for tokens of an older policy: TRL's
    ``use_bias_correction_kl``. A missing ``ref_logp_BT`` is a ``ConfigError``. Derived in docs/estimators.md.

    Source: Schulman, "Approximating KL divergence" (2020); DeepSeekMath (arXiv:2402.03300), equation 4; multiplied by
        the ratio, DeepSeek-V3.2 (arXiv:2512.02556).
    """
    if tokens.ref_logp_BT is None:
        needs = "a KL term needs the reference policy's log-probabilities, ref_logp_BT"
        raise ConfigError(f"{needs}. Pass them, or beta=0.0.")
    d_BT = _masked(tokens.ref_logp_BT - tokens.logp_BT, tokens)
    kl_BT = d_BT.expm1() - d_BT
    return kl_BT if ratio is None else kl_BT * ratio(tokens)


def clipped_tokens(
    tokens: Tokens, *, ratio: Ratio = token_ratio, clip_low: float = 0.2, clip_high: float = 0.2
) -> tuple[Tensor, Tensor]:
    """Bool, of the ratio's shape: without a gradient by clipping at the lower bound, and at the upper one."""
    with torch.no_grad():
        found, advantage_B1 = ratio(tokens), tokens.advantage_B[:, None]
    return (found < 1 - clip_low) & (advantage_B1 < 0), (found > 1 + clip_high) & (advantage_B1 > 0)


def mixes_tokens(loss: TokenLoss) -> bool:
    """True if the loss or the gradient of a token changes when another token of its completion is masked.

    It is measured on completions of three tokens, the last of which drifts by little, some and very much.
    """
    return _mixes_tokens(loss) if isinstance(loss, Hashable) else _mixes_tokens.__wrapped__(loss)


@lru_cache(maxsize=64)  # a method is made anew in each step that chooses a rate
def _mixes_tokens(loss: TokenLoss) -> bool:
    # Distances in nats of the third token: near, inside a clip, beyond any limit.
    cases = [(drift, engine) for drift in (1e-3, 0.3, 30.0) for engine in (True, False)]
    return any(not torch.equal(_of_two(loss, *case, alone=True), _of_two(loss, *case, alone=False)) for case in cases)


def _of_two(loss: TokenLoss, drift: float, engine: bool, *, alone: bool) -> Tensor:
    """(2, B, 2) losses and gradients of two tokens; a third, masked if ``alone``, drifts up and down at both signs."""
    away_B1 = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]], dtype=torch.float64) * drift
    moved_BT = torch.cat([torch.full((4, 2), 1e-2, dtype=torch.float64), away_B1], 1)
    logp_BT = torch.tensor([[-0.5, -1.0, -40.0]], dtype=torch.float64).repeat(4, 1).requires_grad_()
    sampled_BT = logp_BT.detach() + moved_BT
    tokens = Tokens(
        logp_BT=logp_BT,
        old_logp_BT=sampled_BT,
        advantage_B=torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64),
        mask_BT=torch.tensor([[True, True, not alone]]).repeat(4, 1),
        ref_logp_BT=logp_BT.detach() + moved_BT / 2,
        sampler_logp_BT=sampled_BT if engine else None,
    )
    first_BT = loss(tokens).expand_as(logp_BT)[:, :2]
    (slope_BT,) = torch.autograd.grad(first_BT.sum(), logp_BT)
    return torch.stack([first_BT.detach(), slope_BT[:, :2]])


def bound(part: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], dict[str, Any]]:
    """Function of a loss or a KL term, and all its constants: those bound to it, and defaults of the others."""
    function, given = (part.func, part.keywords) if isinstance(part, partial) else (part, {})
    if not isinstance(function, FunctionType):
        return function, dict(given)
    defaults = {p.name: p.default for p in signature(function).parameters.values() if p.default is not p.empty}
    return function, defaults | given


def _either(condition: Tensor, yes: float, no: float, like: Tensor) -> Tensor:
    # torch.where of two numbers has the default dtype, which rounds them where a loss is computed in float64.
    return torch.where(condition, like.new_tensor(yes), like.new_tensor(no))


def _masked(value_BT: Tensor, tokens: Tokens) -> Tensor:
    return value_BT.masked_fill(tokens.mask_BT == 0, 0.0)


def _counted(tokens: Tokens) -> Tensor:
    """(B, 1) tokens that carry loss, at least 1."""
    return (tokens.mask_BT != 0).sum(1, keepdim=True).clamp(min=1)


def _log_ratio(tokens: Tokens) -> Tensor:
    # Padding is set to 0 before exp: an overflow there would give NaN gradients even if the mask is 0.
    return _masked(tokens.logp_BT - tokens.old_logp_BT, tokens)


def _corrected(loss: Tensor, tokens: Tokens) -> Tensor:
    loss_BT = loss.expand_as(tokens.logp_BT)
    return loss_BT if tokens.correction_B1 is None else loss_BT * tokens.correction_B1
