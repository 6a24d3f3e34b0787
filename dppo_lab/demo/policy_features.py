"""Features of prompts from the policy, before any rollout, by one forward pass over them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dppo.errors import raise_problems
from dppo.rng import Purpose, generator

BATCH_PROMPTS = 256
"""Prompts forwarded at once."""


@torch.no_grad()
def policy_features(model: Any, prompts: Sequence[list[int]], *, seed: int, dimensions: int = 8) -> np.ndarray:
    """(P, 1 + dimensions) float64: each prompt's mean log-probability, and its last hidden state, projected.

    The random projection is fixed by the seed, so features of a changed policy have the same meaning.

    Args:
        model: a causal language model of transformers; its mode is left as it is.
        prompts: token ids of each prompt, of any lengths >= 1.
        seed: of the projection, >= 0.
        dimensions: numbers that a hidden state is projected to, >= 0.

    Raises:
        ConfigError: a prompt without tokens, or a number out of range.

    Source: random projection, Johnson and Lindenstrauss (1984).
    """
    problems = [f"dimensions={dimensions} must be >= 0. Try dimensions=8."] if dimensions < 0 else []
    if not prompts or min(map(len, prompts)) == 0:
        problems.append("prompts must hold at least one prompt, each of at least one token, for example [[1, 9, 2]].")
    raise_problems("policy_features", problems)
    width = model.config.get_text_config().hidden_size
    projection = generator(seed, Purpose.PROJECTION).normal(size=(width, dimensions)) / np.sqrt(width)
    found = []
    for start in range(0, len(prompts), BATCH_PROMPTS):
        part = prompts[start : start + BATCH_PROMPTS]
        length_P = torch.tensor([len(prompt) for prompt in part])
        longest = int(length_P.max())
        token_PT = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in part])
        mask_PT = torch.arange(longest) < length_P[:, None]
        output = model(
            input_ids=token_PT.to(model.device),
            attention_mask=mask_PT.long().to(model.device),
            output_hidden_states=True,
        )
        last_PD = output.hidden_states[-1][torch.arange(len(part)), length_P - 1].double().cpu().numpy()
        logp_PT = output.logits[:, :-1].float().log_softmax(2).gather(2, token_PT[:, 1:, None].to(model.device))[..., 0]
        scored_PT = mask_PT[:, 1:]  # the first token is not predicted
        sum_P = (logp_PT.cpu() * scored_PT).sum(1)
        mean_P = (sum_P / scored_PT.sum(1).clamp_min(1)).double().numpy()
        found.append(np.concatenate([mean_P[:, None], last_PD @ projection], 1))
    return np.concatenate(found)
