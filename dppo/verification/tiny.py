"""Exact expected gradients of the complete loss, clipping and KL included, on a softmax policy of a few parameters.

Three prompts with three completions each in float64, off the policy that sampled, so that clipping is active. One
completion has advantage 0, and so has the third group; with a baseline from history none has.
"""

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from dppo.methods import Method
from dppo.objective import Tokens
from dppo.pruning import SampledTokens, uncertainty
from dppo.rng import Purpose, torch_generator
from dppo.step import micro_batch_loss
from dppo.types import Candidates, Rewards
from dppo.verification.draws import FrozenDraw, draw, nothing_pruned
from dppo.verification.enumerate import Tape, enumerated, every_way
from dppo.verification.subject import Rollouts, known_after

P, G, T, V = 3, 3, 4, 5
N = P * G
PARAMETERS = (V + 1) * V + P * V


def _normal(key: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch_generator(0, Purpose.CHECK, key), dtype=torch.float64)


REWARD_PG = torch.tensor([[1.0, 0.0, 0.3], [0.0, 0.5, 1.0], [0.4, 0.4, 0.4]], dtype=torch.float64)
TOKEN_NT = torch.randint(V, (N, T), generator=torch_generator(0, Purpose.CHECK, 10))
LENGTH_N = torch.tensor([4, 2, 3, 1, 4, 3, 2, 4, 3])
MASK_NT = torch.arange(T) < LENGTH_N[:, None]
GROUP_N = torch.arange(N) // G
EARLIER = Rewards.of_groups(torch.tensor([[1.0, 0.0, 0.3], [0.2, 0.2, 0.2], [0.4, 0.4, 0.4]], dtype=torch.float64))
"""Rewards of one earlier group of each prompt, for rules that skip prompts and baselines from history."""
THETA = _normal(11, PARAMETERS)


def _policy(theta: Tensor, row_B: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T) log-probabilities of the tokens, and entropies: logits from the token before, plus a bias per prompt."""
    before_VV, prompt_PV = theta[: (V + 1) * V].view(V + 1, V), theta[(V + 1) * V :].view(P, V)
    token_BT = TOKEN_NT[row_B]
    previous_BT = torch.cat([torch.full((len(row_B), 1), V), token_BT[:, :-1]], 1)
    logits_BTV = before_VV[previous_BT] + prompt_PV[GROUP_N[row_B]][:, None]
    logp_BTV = logits_BTV.log_softmax(-1)
    return logp_BTV.gather(-1, token_BT[..., None]).squeeze(-1), -(logp_BTV.exp() * logp_BTV).sum(-1)


OLD_LOGP_NT, _ = _policy(THETA + 0.3 * _normal(12, PARAMETERS), torch.arange(N))
REF_LOGP_NT, _ = _policy(THETA + 0.5 * _normal(13, PARAMETERS), torch.arange(N))
ROLLOUTS = Rollouts(
    completion_tokens=tuple(token_NT[:length].tolist() for token_NT, length in zip(TOKEN_NT, LENGTH_N, strict=True)),
    rewards=Rewards.of_groups(REWARD_PG),
    context=known_after(EARLIER),
    candidates=Candidates(
        row_P=torch.arange(P),
        signal_P=torch.tensor([0.9, 0.3, 0.4], dtype=torch.float64),
        tokens_P=LENGTH_N.view(P, G).double().mean(1),
        seen_P=torch.ones(P, dtype=torch.bool),
    ),
    earlier_rewards=EARLIER,
    uncertainty_N=uncertainty(OLD_LOGP_NT, MASK_NT),
    sampled=SampledTokens(logp_NT=OLD_LOGP_NT, mask_NT=MASK_NT),
    max_tokens=T,
)


def gradient(method: Method, drawn: FrozenDraw) -> Tensor:
    """(parameters,) gradient of the complete loss over what was drawn, as a trainer computes it."""
    row_B = drawn.weight_N.nonzero()[:, 0]
    if not len(row_B):
        return torch.zeros_like(THETA)
    weight, mask_BT = drawn.weight_N[row_B], MASK_NT[row_B]
    if drawn.tokens is not None:
        weight = weight[:, None] * drawn.tokens.weight_NT[row_B]
        mask_BT = mask_BT & (weight > 0)
    theta = THETA.clone().requires_grad_()
    logp_BT, entropy_BT = _policy(theta, row_B)
    sampled = Tokens(
        logp_BT=logp_BT,
        old_logp_BT=OLD_LOGP_NT[row_B],
        advantage_B=drawn.advantage_N[row_B],
        mask_BT=mask_BT,
        counted_B=LENGTH_N[row_B],
        ref_logp_BT=REF_LOGP_NT[row_B],
    )
    loss = micro_batch_loss(method, sampled, weight, drawn.sizes, entropy_BT=entropy_BT)
    return torch.autograd.grad(loss, theta)[0]


def exact_bias(method: Method) -> float:
    """``|E[g_hat] - g| / |g|`` over all outcomes of a method's draws, to float64 rounding.

    Each prompt is taken at most once in rounds. All groups are of one size: sizes that a method sets are left out.
    """
    levels = ("prompts", "completions", "tokens")
    method = replace(method, **{level: enumerated(getattr(method, level)) for level in levels})

    def pruned_gradient(tape: Tape) -> Tensor:
        return gradient(method, draw(ROLLOUTS, method, lambda *key: cast(np.random.Generator, tape)))

    expected = sum((chance * pruned for pruned, chance in every_way(pruned_gradient)), torch.zeros_like(THETA))
    full = gradient(method, nothing_pruned(ROLLOUTS, method))
    return float((expected - full).norm() / full.norm())
