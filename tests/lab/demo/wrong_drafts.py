"""Wrong rules of accepting a draft, which tests must catch, and the expected log-probabilities."""

import torch

from dppo_lab.demo.decode import choose
from dppo_lab.demo.drafts import accept_or_resample

CHANCE = 1e-6
"""Draws have fixed seeds; another machine's rounding fails a right decoder with this chance."""


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def forward_logps(model, prompt, completion, temperature=1.0):
    """(T,) log-probabilities of a completion by a plain forward pass of its text alone."""
    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(1).gather(1, torch.tensor(completion)[:, None])[:, 0].detach()


def accept_always(logits_BV, draft_BG, generator, temperature):
    """A wrong rule: every draft token is accepted."""
    token_B, logp_B, _ = accept_or_resample(logits_BV, draft_BG, generator, temperature)
    has_B = draft_BG[:, 0] >= 0
    return torch.where(has_B, draft_BG[:, 0], token_B), logp_B, torch.where(has_B, 0, -1)


def resample_plainly(logits_BV, draft_BG, generator, temperature):
    """Another: a rejected draft token may be drawn again."""
    prob_BV = (logits_BV / temperature).softmax(1)
    prob_B = prob_BV.gather(1, draft_BG[:, :1].clamp_min(0))[:, 0]
    accepted_B = (torch.rand(prob_B.shape, generator=generator) < prob_B) & (draft_BG[:, 0] >= 0)
    token_B, logp_B = choose(logits_BV, generator, temperature)
    return torch.where(accepted_B, draft_BG[:, 0], token_B), logp_B, torch.where(accepted_B, 0, -1)


WRONG = [accept_always, resample_plainly]
