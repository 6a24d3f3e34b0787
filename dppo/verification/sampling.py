"""How the completions of a subject are generated."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from dppo.rng import Purpose, generator


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectSampling:
    """How a subject's completions are generated."""

    generations: int = 8
    """G, completions per prompt, >= 2."""
    max_new_tokens: int = 64
    temperature: float = 1.0
    seed: int = 0
    limit_seconds: float = 40.0
    """For generation, and again for the gradients: completions are cut short, and prompts left out, after that."""


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    count: int,
    sampling: SubjectSampling,
) -> list[list[int]]:
    """``count`` sampled completions of each prompt, as token ids up to and with the end token.

    transformers samples from torch's global generator: it is seeded here and put back afterwards.
    """
    configured = model.generation_config.eos_token_id if model.generation_config else None
    ends = cast(Any, tokenizer.eos_token_id if configured is None else configured)
    pad = tokenizer.pad_token_id
    if pad is None:
        pad = ends if isinstance(ends, int) else (ends or [0])[0]
    width = max(map(len, prompts))
    padded = [[pad] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    settings = GenerationConfig(
        do_sample=True,
        temperature=sampling.temperature,
        top_k=0,
        top_p=1.0,
        num_return_sequences=count,
        max_new_tokens=sampling.max_new_tokens,
        max_time=sampling.limit_seconds,
        pad_token_id=pad,
        eos_token_id=ends,
    )
    with torch.random.fork_rng(), _own_defaults(model):
        torch.manual_seed(int(generator(sampling.seed, Purpose.CHECK, 3).integers(2**62)))
        output = cast(Any, model).generate(
            torch.tensor(padded, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            generation_config=settings,
        )
    last: set[int] = {ends} if isinstance(ends, int) else set(ends or ())
    rows = output[:, width:].tolist()
    return [next((row[: place + 1] for place, token in enumerate(row) if token in last), row) for row in rows]


@contextmanager
def _own_defaults(model: PreTrainedModel) -> Iterator[None]:
    """The model without the sampling defaults of its folder, such as ``min_p``, which would change its policy."""
    defaults = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = defaults
