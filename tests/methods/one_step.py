"""What a method makes of one step in which every prompt was rolled out, and the loss of it at ratio 1."""

import torch
from arrays import rewards_of

from dppo.objective import Tokens
from dppo.pruning import SampledTokens
from dppo.rng import step_streams
from dppo.step import RolledOut, micro_batch_loss, plan_step, whole_block


def step_of(method, *groups, tokens=None, process_N=None, seed=0, **settings):
    """The plan of a step on groups of rewards, by default of completions of 1 to 9 tokens."""
    rewards = rewards_of(*groups)
    tokens_N = torch.tensor(([3, 9, 1, 5, 4, 2, 8, 6] * len(rewards))[: len(rewards)] if tokens is None else tokens)
    mask_NT = torch.arange(9) < tokens_N[:, None]
    sampled = SampledTokens(logp_NT=torch.full(mask_NT.shape, -0.5), mask_NT=mask_NT)
    rolled_out = RolledOut(rewards=rewards, tokens_N=tokens_N, process_N=process_N, sampled=sampled)
    prompts = whole_block(rewards.groups, len(rewards))
    return plan_step(method, rolled_out, prompts, streams=step_streams(seed, 0), max_tokens=9, **settings)


def loss_of(method, plan):
    """The loss of a plan whose tokens all have log-probability 0 under every policy: weighted minus advantages."""
    mask = torch.arange(9) < plan.completions.tokens_N[:, None]
    logp = torch.zeros(mask.shape, dtype=torch.float64)
    tokens = Tokens(logp_BT=logp, old_logp_BT=logp, advantage_B=plan.advantage_N, mask_BT=mask)
    return micro_batch_loss(method, tokens, plan.weight_UN[0], plan.sizes).item()


def kept(plan):
    """Places of the completions that are trained on."""
    return plan.weight_UN[0].nonzero()[:, 0].tolist()
