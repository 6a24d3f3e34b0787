"""A generator, and the log-probabilities that a decoder must give, by a plain forward pass."""

import torch


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def forward_logps(model, prompt, completion, temperature=1.0):
    """(T,) log-probabilities of a completion by a plain forward pass of its text alone."""
    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(1).gather(1, torch.tensor(completion)[:, None])[:, 0].detach()
