"""Completions of held-out problems: each from random numbers of its own, whatever else is in its batch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

from dppo.errors import ConfigError, OutOfMemoryError
from dppo.lab.demo.decode import sample
from dppo.lab.subject import own_defaults
from dppo.rng import Purpose, generator, torch_generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings by which completions are drawn; temperature 0 takes the most likely token."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all tokens."""
    max_new_tokens: int = 512


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion."""

    text: str
    tokens: int
    """Generated tokens, the end token included."""
    truncated: bool
    """True if it was cut off at the limit of new tokens."""


Generate = Callable[[list[list[int]], list[int], Sampling], list[Completion]]
"""``generate(prompts, seeds, sampling)``: a completion of each prompt, given as token ids."""


def batches_of(
    prompts: Sequence[Sequence[int]], sampling: Sampling, samples: int, *, size: int, positions: int | None
) -> Iterator[tuple[list[tuple[int, int]], int]]:
    """Batches of (prompt, sample) and the tokens that their completions may have, 0 if the model has no room.

    Prompts of similar length are together, the longest first: a function of the prompts alone. ``positions`` is the
    longest sequence of the model, None for no limit.
    """
    length_P = np.array(list(map(len, prompts)), dtype=np.int64)
    limit_P = np.full_like(length_P, sampling.max_new_tokens)
    if positions is not None:
        limit_P = np.clip(positions - length_P, 0, sampling.max_new_tokens)
    order = np.lexsort((np.arange(len(length_P)), -length_P, -limit_P)).tolist()
    for limit, rows in groupby(order, key=lambda row: int(limit_P[row])):
        members = [(row, number) for row in rows for number in range(samples)]
        for start in range(0, len(members), size):
            yield members[start : start + size], limit


def embedded_sampler(model: Any, tokenizer: Any) -> Generate:
    """Completions by the demonstration's decoder. A batch draws from one generator that is seeded by its requests."""

    def generate(prompts: list[list[int]], seeds: list[int], sampling: Sampling) -> list[Completion]:
        key = [seed % 2**32 for seed in seeds]
        rng = torch_generator(key[0], Purpose.EVALUATION, *key[1:], device=model.device)
        limits = {"max_new_tokens": sampling.max_new_tokens, "temperature": sampling.temperature}
        rows = sample(model, prompts, rng, **limits).token_lists
        return completions_of(rows, tokenizer, {tokenizer.eos_token_id})

    return generate


def transformers_sampler(model: Any, tokenizer: Any) -> Generate:
    """Completions by ``model.generate``; no global generator is touched, and the model stays in the mode it is in."""
    given = getattr(model.generation_config, "eos_token_id", None)
    ends = sorted(({given} if isinstance(given, int) else set(given or ())) | ({tokenizer.eos_token_id} - {None}))
    pad = ends[0] if ends else 0

    def generate(prompts: list[list[int]], seeds: list[int], sampling: Sampling) -> list[Completion]:
        width, training = max(map(len, prompts)), model.training
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts], device=model.device)
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        settings = GenerationConfig(
            max_new_tokens=sampling.max_new_tokens,
            do_sample=False,  # the processor has chosen already
            use_cache=True,
            eos_token_id=ends or None,
            pad_token_id=pad,
        )
        try:
            with torch.no_grad(), own_defaults(model.eval()):
                out = model.generate(
                    input_ids=ids,
                    attention_mask=torch.tensor(mask, device=model.device),
                    generation_config=settings,
                    logits_processor=LogitsProcessorList([ChooseTokens(seeds, sampling, width)]),
                )
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"{len(prompts)} completions of up to {width} + {sampling.max_new_tokens} tokens do not fit into "
                "memory: make the batch smaller"
            ) from error
        finally:
            model.train(training)
        rows = out[:, width:].tolist()
        rows = [row[: next((i for i, token in enumerate(row) if token in ends), len(row)) + 1] for row in rows]
        return completions_of(rows, tokenizer, {*ends})

    return generate


def completions_of(rows: list[list[int]], tokenizer: Any, ends: set[int]) -> list[Completion]:
    """Completions of token ids that go to their end token, or to the limit."""
    texts = tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return [Completion(text, len(row), not (row and row[-1] in ends)) for text, row in zip(texts, rows, strict=True)]


class ChooseTokens(LogitsProcessor):
    """Keeps the one token that each completion's own random numbers choose, whatever else is in the batch."""

    def __init__(self, seeds: Sequence[int], sampling: Sampling, prompt_tokens: int) -> None:
        draws = [generator(seed).random(sampling.max_new_tokens) for seed in seeds]
        self.uniform_BT = torch.from_numpy(np.stack(draws))
        self.temperature, self.prompt_tokens = sampling.temperature, prompt_tokens
        self.warpers = [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
        self.warpers += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """(B, V) scores that are 0 at each row's token and -inf elsewhere."""
        if bool(scores.isnan().any()):
            raise ConfigError(
                "the model gives logits that are NaN, as overflow in half precision does. Try bf16: false"
            )
        if self.temperature == 0:
            return torch.full_like(scores, -torch.inf).scatter_(1, scores.argmax(1, keepdim=True), 0.0)
        precise = torch.float32 if scores.device.type == "mps" else torch.float64
        logits_BV = scores.to(precise) / self.temperature
        for warper in self.warpers:
            logits_BV = warper(input_ids, logits_BV)
        uniform_B1 = self.uniform_BT[:, input_ids.shape[1] - self.prompt_tokens, None].to(scores.device, precise)
        return torch.full_like(scores, -torch.inf).scatter_(1, draw(logits_BV, uniform_B1), 0.0)


def draw(logits_BV: Tensor, uniform_B1: Tensor) -> Tensor:
    """(B, 1) the token on which each uniform number falls, of (B, V) logits, -inf for tokens left out."""
    sum_BV = logits_BV.softmax(1).cumsum(1)
    total_B1 = sum_BV[:, -1:]
    # Below the total, which rounding could reach: beyond it are tokens that were left out.
    target_B1 = torch.minimum(uniform_B1 * total_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    return torch.searchsorted(sum_BV, target_B1, right=True)
