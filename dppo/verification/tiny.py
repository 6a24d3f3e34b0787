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
from dppo.session import Session
from dppo.step import RolledOut, StepSizes
from dppo.types import Candidates, Rewards
from dppo.verification.draws import known_prompts, with_context
from dppo.verification.enumerate import Tape, enumerated, every_way
from dppo.verification.subject import known_after

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
REWARDS, CONTEXT = Rewards.of_groups(REWARD_PG), known_after(EARLIER)
THETA = _normal(11, PARAMETERS)
CANDIDATES = Candidates(
    row_P=torch.arange(P),
    signal_P=torch.tensor([0.9, 0.3, 0.4], dtype=torch.float64),
    tokens_P=LENGTH_N.view(P, G).double().mean(1),
    seen_P=torch.ones(P, dtype=torch.bool),
)


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


def _session(method: Method) -> Session:
    return Session(method, seed=0, generations=G, max_tokens=T)


def gradient(method: Method, row_B: Tensor, weight: Tensor, advantage_B: Tensor, sizes: StepSizes) -> Tensor:
    """(parameters,) gradient of the complete loss over some completions, as a trainer computes it.

    ``weight`` is (B,) of completions, or (B, T) of their tokens, of which those of weight 0 are masked.
    """
    if not len(row_B):
        return torch.zeros_like(THETA)
    theta = THETA.clone().requires_grad_()
    logp_BT, entropy_BT = _policy(theta, row_B)
    sampled = Tokens(
        logp_BT=logp_BT,
        old_logp_BT=OLD_LOGP_NT[row_B],
        advantage_B=advantage_B,
        mask_BT=MASK_NT[row_B] & ((weight > 0) if weight.dim() == 2 else True),
        counted_B=LENGTH_N[row_B],
        ref_logp_BT=REF_LOGP_NT[row_B],
    )
    loss = _session(method).loss(sampled, weight, sizes, entropy_BT=entropy_BT)
    return torch.autograd.grad(loss, theta)[0]


def full_gradient(method: Method) -> Tensor:
    """(parameters,) gradient of the full batch, computed without a plan."""
    tokens, weight_N = float(LENGTH_N.sum()), torch.ones(N, dtype=torch.float64)
    sizes = StepSizes(method.normaliser.denominator(N, tokens, T), tokens)
    return gradient(method, torch.arange(N), weight_N, method.advantages(REWARDS, CONTEXT), sizes)


def pruned_gradient(method: Method, tape: Tape) -> Tensor:
    """(parameters,) gradient after one outcome of all draws: of prompts or rounds, then completions and tokens."""
    rng = cast(np.random.Generator, tape)
    prompts = known_prompts(method, CANDIDATES, REWARDS, EARLIER, P, lambda *key: rng)
    prompts = with_context(prompts, CONTEXT)
    keep_N = prompts.draw.keep_N[GROUP_N]
    row_N = keep_N.nonzero()[:, 0]
    if not bool((prompts.weight_Q > 0).any()):
        return torch.zeros_like(THETA)
    rolled_out = RolledOut(
        rewards=REWARDS.take(keep_N),
        tokens_N=LENGTH_N[row_N],
        uncertainty_N=uncertainty(OLD_LOGP_NT, MASK_NT)[row_N],
        sampled=SampledTokens(logp_NT=OLD_LOGP_NT, mask_NT=MASK_NT).take(row_N),
    )
    plan = _session(method).plan(prompts, rolled_out, streams=lambda *key: rng)
    weight_N = plan.weight_UN[0]
    kept = weight_N.nonzero()[:, 0]
    weight = weight_N[kept]
    if plan.token_draws:
        weight = weight[:, None] * plan.token_draws[0].weight_NT[kept]
    return gradient(method, row_N[kept], weight, plan.advantage_N[kept], plan.sizes)


def exact_bias(method: Method) -> float:
    """``|E[g_hat] - g| / |g|`` over all outcomes of a method's draws, to float64 rounding.

    Each prompt is taken at most once in rounds. All groups are of one size: sizes that a method sets are left out.
    """
    levels = ("prompts", "completions", "tokens")
    method = replace(method, **{level: enumerated(getattr(method, level)) for level in levels})
    ways = every_way(lambda tape: pruned_gradient(method, tape))
    expected = sum((chance * pruned for pruned, chance in ways), torch.zeros_like(THETA))
    full = full_gradient(method)
    return float((expected - full).norm() / full.norm())
