"""A softmax policy small enough to enumerate: exact expected gradients of the complete loss, clipping and KL included.

Three prompts with three completions each, real autograd in float64, off the policy that sampled, so that clipping
bites. One completion has advantage 0, and so has the third group as a whole.
"""

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from dppo.methods import Method
from dppo.objective import weighted_sum
from dppo.pruning import confidence
from dppo.rng import Purpose, torch_generator
from dppo.types import Candidates, Completions
from dppo.verification.enumerate import Tape, enumerated, every_way

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
THETA = _normal(11, PARAMETERS)
CANDIDATES = Candidates(
    row_P=torch.arange(P),
    signal_P=torch.tensor([0.9, 0.3, 0.4], dtype=torch.float64),
    tokens_P=LENGTH_N.view(P, G).double().mean(1),
    seen_P=torch.ones(P, dtype=torch.bool),
)


def _log_probs(theta: Tensor, row_B: Tensor) -> Tensor:
    """(B, T) log-probabilities of the tokens: logits from the token before, plus a bias per prompt."""
    before_VV, prompt_PV = theta[: (V + 1) * V].view(V + 1, V), theta[(V + 1) * V :].view(P, V)
    token_BT = TOKEN_NT[row_B]
    previous_BT = torch.cat([torch.full((len(row_B), 1), V), token_BT[:, :-1]], 1)
    logits_BTV = before_VV[previous_BT] + prompt_PV[GROUP_N[row_B]][:, None]
    return logits_BTV.log_softmax(-1).gather(-1, token_BT[..., None]).squeeze(-1)


OLD_LOGP_NT = _log_probs(THETA + 0.3 * _normal(12, PARAMETERS), torch.arange(N))
REF_LOGP_NT = _log_probs(THETA + 0.5 * _normal(13, PARAMETERS), torch.arange(N))


def gradient(method: Method, weight_N: Tensor, advantage_N: Tensor, tokens: float) -> Tensor:
    """(parameters,) gradient of the complete loss over the rows of positive weight, as a trainer computes it.

    Args:
        method: loss, KL coefficient and normaliser.
        weight_N: (N,) float64, 0 where a row is not trained on.
        advantage_N: (N,) float64.
        tokens: of the full batch, known or estimated, for the denominator.
    """
    row_B = weight_N.nonzero().squeeze(1)
    if not len(row_B):
        return torch.zeros_like(THETA)
    theta = THETA.clone().requires_grad_()
    mask_BT = MASK_NT[row_B]
    logp_BT = _log_probs(theta, row_B)
    loss_BT = method.loss(logp_BT, OLD_LOGP_NT[row_B], advantage_N[row_B], mask_BT, REF_LOGP_NT[row_B])
    total = weighted_sum(loss_BT, mask_BT, weight_N[row_B], per_sequence=method.normaliser.per_sequence)
    return torch.autograd.grad(total / method.normaliser.denominator(N, tokens, T), theta)[0]


def full_gradient(method: Method) -> Tensor:
    """(parameters,) gradient of the full batch."""
    advantage_N = method.advantages(REWARD_PG).flatten()
    return gradient(method, torch.ones(N, dtype=torch.float64), advantage_N, float(LENGTH_N.sum()))


def pruned_gradient(method: Method, tape: Tape) -> Tensor:
    """(parameters,) gradient after pruning prompts and then completions, with the draws that a tape makes.

    Args:
        method: with prunings from ``enumerated``.
        tape: makes the choices.
    """
    rng = cast(np.random.Generator, tape)
    asked = method.prompts.draw_prompts(CANDIDATES, rng)
    keep_N = asked.keep_N[GROUP_N]
    advantage_N = torch.zeros(N, dtype=torch.float64)
    if keep_N.any():
        advantage_N[keep_N] = method.advantages(REWARD_PG[asked.keep_N]).flatten()
    completions = Completions(
        advantage_N=advantage_N,
        tokens_N=LENGTH_N,
        group_N=GROUP_N,
        live_N=keep_N & method.live(advantage_N),
        confidence_N=confidence(OLD_LOGP_NT, MASK_NT),
    )
    draw = method.completions.draw_completions(completions, rng)
    weight_N = draw.weight_N * asked.weight_N[GROUP_N]
    keep_PG = draw.keep_N.view(P, G)
    advantage_N = method.trained_advantages(REWARD_PG, advantage_N.view(P, G), keep_PG).flatten()
    tokens_P = LENGTH_N.view(P, G).sum(1).double()
    return gradient(method, weight_N, advantage_N, float((tokens_P * asked.weight_N).sum()))


def exact_bias(method: Method) -> float:
    """``|E[g_hat] - g| / |g|`` over all outcomes of a method's draws, to float64 rounding.

    Args:
        method: at the rates to be checked.
    """
    method = replace(method, prompts=enumerated(method.prompts), completions=enumerated(method.completions))
    expected = torch.zeros_like(THETA)
    for pruned, chance in every_way(lambda tape: pruned_gradient(method, tape)):
        expected += chance * pruned
    full = full_gradient(method)
    return float((expected - full).norm() / full.norm())
