"""The work that the benchmarks of the forward pass share: lengths, kept sets, models, and how runs are compared.

Which completions are kept is drawn uniformly over the batch. Training would use another rule, but what is measured here
is compute, which depends on lengths alone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from dppo.pruning import TokenPruning
from dppo.rng import Purpose, generator, torch_generator

BATCH_PROMPTS = 64
"""Prompts of a generation batch. It decides how wide TRL pads, also when only a few of its prompts are forwarded."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Distribution of lengths, in tokens."""

    prompt: tuple[int, int] = (100, 200)
    """Uniform, both ends included."""
    median: float = 400.0
    """Of completions, which are log-normal."""
    sigma: float = 0.5
    longest: int = 1024
    """Completions are cut here."""


REALISTIC = Lengths()
QUICK = Lengths(prompt=(25, 50), median=100.0, longest=256)
"""A quarter of the realistic lengths."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Kept completions and what is needed to train on them. N of them; each names its prompt."""

    prompts: Sequence[Tensor]
    """N tensors (P_n,) of token ids."""
    completions: Sequence[Tensor]
    """N tensors (C_n,) of token ids, C_n >= 1."""
    group_N: Sequence[int]
    """(N,) equal where the prompt is."""
    weight_N: Tensor
    """(N,) what each completion's log-probabilities are multiplied by in the loss."""
    prompt_width: int
    """Longest prompt of the generation batch, in tokens, pruned or not."""
    completion_width: int
    """Longest completion of the generation batch, in tokens."""
    keep_N: Sequence[Tensor] | None = None
    """N bool tensors (C_n,), the tokens that reach the head and carry loss; None for all."""

    @property
    def prompt_tokens(self) -> list[int]:
        """(N,) tokens of each prompt."""
        return [len(prompt) for prompt in self.prompts]

    @property
    def completion_tokens(self) -> list[int]:
        """(N,) tokens of each completion."""
        return [len(completion) for completion in self.completions]

    @property
    def scored(self) -> int:
        """Tokens that carry loss."""
        return sum(self.completion_tokens) if self.keep_N is None else sum(int(keep.sum()) for keep in self.keep_N)

    def take(self, index: Sequence[int]) -> "Work":
        """The same for some of the completions, padded as wide as before."""
        return replace(
            self,
            prompts=[self.prompts[i] for i in index],
            completions=[self.completions[i] for i in index],
            group_N=[self.group_N[i] for i in index],
            weight_N=self.weight_N[list(index)],
            keep_N=None if self.keep_N is None else [self.keep_N[i] for i in index],
        )

    def to(self, device: str | torch.device) -> "Work":
        """The same with all tensors on ``device``."""
        return replace(
            self,
            prompts=[prompt.to(device) for prompt in self.prompts],
            completions=[completion.to(device) for completion in self.completions],
            weight_N=self.weight_N.to(device),
            keep_N=None if self.keep_N is None else [keep.to(device) for keep in self.keep_N],
        )


def generation_batch(
    seed: int, *, prompts: int = BATCH_PROMPTS, group_size: int, vocabulary: int, lengths: Lengths = REALISTIC
) -> Work:
    """A generation batch from which nothing has been pruned: prompts times ``group_size`` completions."""
    rng = generator(seed, Purpose.CHECK, group_size)
    group_N = np.repeat(np.arange(prompts), group_size)
    prompt_tokens = rng.integers(lengths.prompt[0], lengths.prompt[1] + 1, prompts)
    drawn = rng.lognormal(np.log(lengths.median), lengths.sigma, len(group_N))
    completion_tokens = np.clip(np.rint(drawn), 1, lengths.longest).astype(np.int64)

    def text(tokens: int) -> Tensor:
        return torch.from_numpy(rng.integers(0, vocabulary, tokens))

    prompt_P = [text(tokens) for tokens in prompt_tokens]
    return Work(
        prompts=[prompt_P[group] for group in group_N],
        completions=[text(tokens) for tokens in completion_tokens],
        group_N=group_N.tolist(),
        weight_N=torch.from_numpy(rng.normal(size=len(group_N))).float(),
        prompt_width=int(prompt_tokens.max()),
        completion_width=int(completion_tokens.max()),
    )


def prune(batch: Work, rate: float, seed: int) -> Work:
    """The batch without ``rate`` of its completions, which are drawn uniformly."""
    count = len(batch.completions)
    kept = generator(seed, Purpose.COMPLETION_DRAW).permutation(count)[: round(count * (1 - rate))]
    return batch.take(sorted(kept.tolist()))


def tokens_left_out(work: Work, kept: float, head: float, seed: int, *, unsure: float = 0.06) -> Work:
    """Completions cut to a share of their tokens, of which a share reaches the head.

    Tokens the sampler was unsure of, ``unsure`` of them at random, have 100 times the moment of the others: as on the
    embedded task at its start. Cuts and the head's tokens are drawn as a run draws them.
    """
    length_N = torch.tensor(work.completion_tokens)
    span_NT = torch.arange(int(length_N.max())) < length_N[:, None]
    rng = generator(seed, Purpose.TOKEN_DRAW)
    moment_NT = torch.from_numpy(np.where(rng.random(span_NT.shape) < unsure, 1.0, 1e-2)) * span_NT
    level = TokenPruning(rate=1 - kept, head_rate=1 - head)
    drawn = level.draw(moment_NT, span_NT, rng)
    reached = [n for n, length in enumerate(drawn.length_N.tolist()) if length]
    part = work.take(reached)
    lengths = [int(drawn.length_N[n]) for n in reached]
    return replace(
        part,
        completions=[each[:length] for each, length in zip(part.completions, lengths, strict=True)],
        keep_N=[drawn.weight_NT[n, :length] > 0 for n, length in zip(reached, lengths, strict=True)],
    )


def typical_prompts(kept: Work, prompts: int, rows: int) -> Work:
    """The neighbouring prompts that are most like the whole batch, so that few of them stand for all.

    Of all windows of ``prompts`` prompts with ``rows`` kept completions in them, the one whose tokens per completion,
    with prompts shared, are nearest to the batch's.
    """

    def tokens_per_completion(index: Sequence[int]) -> float:
        part = kept.take(index)
        trunks = {group: tokens - 1 for group, tokens in zip(part.group_N, part.prompt_tokens, strict=True)}
        return (sum(trunks.values()) + part.scored) / len(index)

    windows = []
    for first in range(max(kept.group_N) - prompts + 2):
        index = [i for i, group in enumerate(kept.group_N) if first <= group < first + prompts]
        if len(index) == rows:
            windows.append(index)
    if not windows:
        raise ValueError(f"no {prompts} neighbouring prompts have {rows} kept completions. Use another seed.")
    whole = tokens_per_completion(range(len(kept.group_N)))
    return kept.take(min(windows, key=lambda index: abs(tokens_per_completion(index) - whole)))


def qwen3(layers: int, hidden: int, vocabulary: int, *, heads: int = 4, **others: Any) -> Qwen3Config:
    """A Qwen3 with tied embeddings, by default a small one; ``others`` are fields of its configuration."""
    fields: dict[str, Any] = {
        "intermediate_size": 3 * hidden,
        "num_key_value_heads": 2,
        "head_dim": hidden // heads,
        "max_position_embeddings": 2048,
    }
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        tie_word_embeddings=True,
        **fields | others,
    )


QWEN3: dict[str, Any] = {
    "vocabulary": 151_936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}
MODELS: dict[str, Callable[..., Any]] = {
    "0.6B": partial(qwen3, hidden=1024, layers=28, heads=16, intermediate_size=3072, **QWEN3),
    "1.7B": partial(qwen3, hidden=2048, layers=28, heads=16, intermediate_size=6144, **QWEN3),
    "4B": partial(qwen3, hidden=2560, layers=36, heads=32, intermediate_size=9728, **QWEN3),
    "4x128": partial(qwen3, layers=4, hidden=128, vocabulary=4096),
    "4x256": partial(qwen3, layers=4, hidden=256, vocabulary=8192),
    "0.6B cut to 4 layers": partial(qwen3, hidden=1024, layers=4, heads=16, intermediate_size=3072, **QWEN3),
    "tiny": partial(
        qwen3,
        hidden=64,
        layers=2,
        intermediate_size=128,
        **QWEN3 | {"vocabulary": 512, "num_key_value_heads": 2, "head_dim": 16},
    ),
}
"""Configurations by name; ``layers`` may be given."""


def build_model(config: PretrainedConfig, seed: int, *, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """A causal language model with random weights, in train mode: the same for the same seed and device.

    Matrices are normal with the config's ``initializer_range`` as standard deviation, norms are one.
    """
    target = torch.device(device)
    with torch.random.fork_rng([target] if target.type == "cuda" else [], device_type="cuda"), target:
        model = Qwen3ForCausalLM._from_config(config, dtype=dtype)
    draws = torch_generator(seed, Purpose.MODEL, device=target)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0.0, config.initializer_range, generator=draws)
            else:
                parameter.fill_(1.0)
    return model.train()


def gradients(model: nn.Module) -> list[Tensor]:
    """A copy of every parameter's gradient."""
    return [parameter.grad.detach().clone() for parameter in model.parameters() if parameter.grad is not None]


def relative_difference(found: Iterable[Tensor], wanted: Iterable[Tensor]) -> float:
    """Norm of the difference over the norm of ``wanted``, over all tensors together, in float32 or more."""
    pairs = list(zip(found, wanted, strict=True))
    off = sum(float((a.float() - b.float()).square().sum(dtype=torch.float64)) for a, b in pairs)
    return (off / sum(float(b.float().square().sum(dtype=torch.float64)) for _, b in pairs)) ** 0.5
