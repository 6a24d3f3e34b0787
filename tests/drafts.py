"""The draft of a step on rewards that a test gives, for what prompt histories learn from it."""

import torch

from dppo.step import RolledOut, drafted


def draft_of(method, prompts, rewards, *, tokens=1):
    """What ``PromptSource.learn`` is given of a step whose completions all have as many tokens."""
    tokens_N = torch.full((len(rewards),), tokens)
    rolled_out = RolledOut(rewards=rewards, tokens_N=tokens_N, confidence_N=tokens_N.sqrt())
    return drafted(method, rolled_out, prompts, max_tokens=tokens)
