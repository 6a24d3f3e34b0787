"""A small batched decoder for Qwen3: several completions per prompt, with the log-probability of every token.

It computes what ``generate`` of transformers does, faster for a tiny model: a prompt is read once for all its
completions, keys and values are written into one preallocated buffer, projections of the same input are fused, and
finished completions are dropped from the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from dppo.errors import raise_problems
from dppo.lab.demo.cache import LAYER_WEIGHTS, Cache

DROP_SHARE = 0.1
"""Share of the batch at which finished completions are dropped: copying the buffer then costs less than a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Sampled completions, right-padded, those of the first prompt first."""

    token_NT: Tensor
    """(N, T) int64 token ids, the end-of-sequence token included, padded with the model's padding id."""
    length_N: Tensor
    """(N,) int64 tokens of each completion, 1 <= length <= T."""
    logp_NT: Tensor
    """(N, T) float32 log-probability, in nats, of each token at the sampling temperature; 0 where padded."""

    @property
    def mask_NT(self) -> Tensor:
        """(N, T) bool, True at the tokens of a completion."""
        return torch.arange(self.token_NT.shape[1], device=self.length_N.device) < self.length_N[:, None]

    @property
    def token_lists(self) -> list[list[int]]:
        """The token ids of each completion as plain lists, without padding."""
        return [row[:n] for row, n in zip(self.token_NT.tolist(), self.length_N.tolist(), strict=True)]


@torch.no_grad()
def sample(
    model: Qwen3ForCausalLM,
    prompts: list[list[int]],
    generator: torch.Generator | None,
    *,
    samples: int | Sequence[int] = 1,
    max_new_tokens: int,
    temperature: float = 1.0,
) -> Rollout:
    """Completions of every prompt, each up to its end-of-sequence token or ``max_new_tokens``.

    ``prompts`` are token ids, and ``samples`` completions per prompt, or a list with one number for each. The
    ``generator`` is on the model's device, and None only where ``temperature`` is 0: the most likely token is taken
    then, with its log-probability at temperature 1.

    Source: Gumbel (1954): ``argmax(logp - log(E))`` with ``E`` exponential is a draw from ``exp(logp)``.
    """
    check_model(model)
    sizes = [samples] * len(prompts) if isinstance(samples, int) else list(samples)
    size_P, longest = torch.tensor(sizes, device=model.device), max(map(len, prompts))
    padded = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    pad_P = torch.tensor([longest - len(prompt) for prompt in prompts], device=model.device)
    cache = Cache(model, pad_P.repeat_interleave(size_P), longest + max_new_tokens)
    made = _Unfinished(model, sum(sizes), max_new_tokens)
    logits_BV = cache.read_prompts(torch.tensor(padded, device=model.device), size_P)
    row_B = torch.arange(sum(sizes), device=model.device)
    while True:
        next_B, logp_B = choose(logits_BV, generator, temperature)
        going_B = made.append(row_B, next_B, logp_B).nonzero()[:, 0]
        if len(going_B) == 0:
            return made.rollout()
        if len(going_B) <= (1 - DROP_SHARE) * len(row_B):
            cache.drop_all_but(going_B)
            row_B, next_B = row_B[going_B], next_B[going_B]
        logits_BV = cache.read_tokens(next_B)


class _Unfinished:
    """Completions that are being decoded; some have ended."""

    def __init__(self, model: Qwen3ForCausalLM, rows: int, max_new_tokens: int) -> None:
        device, self.pad, self.longest = model.device, model.config.pad_token_id or 0, max_new_tokens
        end = model.generation_config.eos_token_id if model.generation_config else model.config.eos_token_id
        self.end = torch.tensor([end] if isinstance(end, int) else list(end or ()), device=device)
        # The extra column takes the tokens that are drawn for ended completions until they are dropped.
        self.token_NT = torch.zeros(rows, max_new_tokens + 1, dtype=torch.int64, device=device)
        self.logp_NT = torch.zeros(rows, max_new_tokens + 1, device=device)
        self.length_N = torch.zeros(rows, dtype=torch.int64, device=device)
        self.open_N = torch.ones(rows, dtype=torch.bool, device=device)

    def append(self, row_B: Tensor, token_B: Tensor, logp_B: Tensor) -> Tensor:
        """Append a token and its log-probability to completions; (B,) bool, which of them go on."""
        open_B, length_B = self.open_N[row_B], self.length_N[row_B]
        place_B = torch.where(open_B, length_B, self.longest)
        self.token_NT[row_B, place_B], self.logp_NT[row_B, place_B] = token_B, logp_B
        self.length_N[row_B] = length_B + open_B
        open_B &= ~torch.isin(token_B, self.end) & (length_B + 1 < self.longest)
        self.open_N[row_B] = open_B
        return open_B

    def rollout(self) -> Rollout:
        """All of them, padded to the longest."""
        width = int(self.length_N.max())
        padded_NT = torch.arange(width, device=self.length_N.device) >= self.length_N[:, None]
        return Rollout(
            token_NT=self.token_NT[:, :width].masked_fill(padded_NT, self.pad),
            length_N=self.length_N,
            logp_NT=self.logp_NT[:, :width].masked_fill(padded_NT, 0.0),
        )


def choose(logits_BV: Tensor, generator: torch.Generator | None, temperature: float) -> tuple[Tensor, Tensor]:
    """(B,) tokens drawn with their probabilities, and (B,) their log-probabilities; see ``sample``."""
    logp_BV = (logits_BV.float() / (temperature or 1.0)).log_softmax(1)
    score_BV = logp_BV
    if temperature > 0:
        score_BV = logp_BV - torch.empty_like(logp_BV).exponential_(generator=generator).log_()
    next_B = score_BV.argmax(1)
    return next_B, logp_BV.gather(1, next_B[:, None])[:, 0]


def check_model(model: Qwen3ForCausalLM) -> None:
    """Raise a ``ConfigError`` for a model that ``sample`` does not compute exactly."""
    config, problems = model.config, []
    if config.pad_token_id is None:
        problems.append("config.pad_token_id=None must be a token id, for example model.config.pad_token_id = 0.")
    expected = {f"{index}.{name}.weight" for index in range(config.num_hidden_layers) for name in LAYER_WEIGHTS}
    plain = {name for name, _ in model.model.layers.named_parameters()} == expected
    full = set(config.layer_types or ["full_attention"]) == {"full_attention"}
    if config.hidden_act != "silu" or not (plain and full):
        problems.append(
            f"model={type(model).__name__} must be a Qwen3ForCausalLM with full attention, silu, and linear layers "
            "without bias or adapters. For others use model.generate."
        )
    raise_problems("decode.sample", problems)
