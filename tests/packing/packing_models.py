"""Tiny random models, batches of groups, and the computation every layout must agree with: one sequence at a time."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from types import MethodType
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Qwen2Config, Qwen3Config

from dppo.packing import head, sorted_micro_batches
from dppo.packing.attention import use_rows
from dppo.packing.forward import row_log_probs
from dppo.packing.head import add_scored_head
from dppo.packing.rows import Row, build_row, plan_rows

SCORINGS = [head.chunked_log_probs, head.checkpointed_log_probs][not hasattr(F, "linear_cross_entropy") :]
"""Losses of the head that this torch has: the first one came with 2.13."""
VOCABULARY = 61
WINDOW = 8
"""Sliding window of the models that have one: shorter than most sequences below and than the longest trunks."""

SIZE = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=None,
)
_MIXED = dict(
    num_hidden_layers=3,
    head_dim=8,
    sliding_window=WINDOW,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
)
MODELS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "qwen3": (Qwen3Config, dict(head_dim=16)),
    "llama": (LlamaConfig, {}),
    "qwen2": (Qwen2Config, {}),
    "gemma3": (Gemma3TextConfig, _MIXED | dict(query_pre_attn_scalar=12)),
    "qwen3-window": (Qwen3Config, _MIXED | dict(use_sliding_window=True)),
}
"""Configurations by name, with their fields."""


def blank(name: str, **settings: Any) -> Any:
    """A model as transformers makes it; ``settings`` are further fields of its configuration."""
    config, own = MODELS[name]
    return AutoModelForCausalLM.from_config(config(**SIZE | own | settings))


def random_model(config: Any) -> Any:
    """A model of this configuration with the weights of ``build``."""
    model = AutoModelForCausalLM.from_config(deepcopy(config))
    randomise(model.parameters(), 0)
    return model


def build(name: str, *, tied: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0, **settings: Any) -> Any:
    """A model with random weights large enough that a wrong token in a context moves log-probabilities by nats.

    The same arguments give the same weights. ``torch.float64`` gives a model that computes in float64 throughout.
    """
    model = blank(name, tie_word_embeddings=tied, **settings)
    randomise(model.parameters(), seed)
    model.config._attn_implementation = settings.get("attn_implementation", "sdpa")
    return float64_throughout(model) if dtype == torch.float64 else model.to(dtype)


def randomise(parameters: Iterator[torch.nn.Parameter], seed: int) -> None:
    """Fills parameters with noise: matrices of gain above one, vectors near where they were."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            noise = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
            parameter.copy_(0.25 * noise if parameter.dim() == 2 else parameter + 0.1 * noise)


def float64_throughout(model: Any) -> Any:
    """The model in float64, norms and rotary angles included, which transformers computes in float32 in any dtype."""
    model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(_norm_float64, module)
        elif type(module).__name__.endswith("RotaryEmbedding"):
            module.forward = MethodType(_rotary_float64, module)
    return model


def _norm_float64(module: Any, hidden: Tensor) -> Tensor:
    gemma = type(module).__name__.startswith("Gemma")
    scale, eps = (1.0 + module.weight, module.eps) if gemma else (module.weight, module.variance_epsilon)
    return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + eps) * scale


def _rotary_float64(module: Any, x: Tensor, position_ids: Tensor, layer_type: str | None = None):
    prefix = "" if layer_type is None else f"{layer_type}_"
    angle = position_ids[..., None].to(torch.float64) * getattr(module, f"{prefix}inv_freq").double()
    angle = torch.cat((angle, angle), dim=-1)
    scaling = getattr(module, f"{prefix}attention_scaling")
    return (angle.cos() * scaling).to(x.dtype), (angle.sin() * scaling).to(x.dtype)


LORA_TARGETS = ("q_proj", "v_proj", "o_proj", "down_proj")


def with_lora(model: Any, *, targets: Sequence[str] = LORA_TARGETS, **settings: Any) -> Any:
    """The model wrapped by PEFT, with adapters of random weights (their usual start is no adapter at all)."""
    dtype = next(model.parameters()).dtype
    config = LoraConfig(r=4, lora_alpha=8, target_modules=list(targets), task_type="CAUSAL_LM", **settings)
    wrapped = get_peft_model(model, config)
    randomise((p for p in wrapped.parameters() if p.requires_grad), 1)
    return wrapped.to(dtype)


@dataclass(frozen=True)
class Batch:
    """N completions with their prompts, in shuffled order, and an arbitrary weight for each token."""

    prompts: list[Tensor]
    completions: list[Tensor]
    group: list[int]
    weight_NC: Tensor

    @property
    def width(self) -> int:
        return self.weight_NC.shape[1]

    @property
    def prompt_tokens(self) -> list[int]:
        return [len(p) for p in self.prompts]

    @property
    def completion_tokens(self) -> list[int]:
        return [len(c) for c in self.completions]


# Prompt tokens and completion tokens of each group: a prompt of one token, completions of one token, a prompt longer
# than the window, a group of one. The last group repeats the first group's prompt under its own number.
GROUPS = ((5, (7, 1, 12)), (1, (4, 10)), (19, (15, 2, 1)), (11, (9,)), (5, (6, 3)))


@cache
def make_batch(groups: tuple[tuple[int, tuple[int, ...]], ...] = GROUPS, seed: int = 0) -> Batch:
    """Random tokens (never the padding token 0) for groups of (prompt tokens, completion tokens), shuffled."""
    rng = torch.Generator().manual_seed(seed)

    def tokens(n: int) -> Tensor:
        return torch.randint(1, VOCABULARY, (n,), generator=rng)

    prompts: list[Tensor] = []
    entries: list[tuple[Tensor, Tensor, int]] = []
    for number, (length, completions) in enumerate(groups):
        twin = next((p for p in prompts if groups is GROUPS and len(p) == length), None)
        prompts.append(tokens(length) if twin is None else twin)
        entries += [(prompts[-1], tokens(n), number) for n in completions]
    entries = [entries[i] for i in torch.randperm(len(entries), generator=rng).tolist()]
    width = max(len(c) for _, c, _ in entries)
    weight_NC = torch.randn(len(entries), width, generator=rng, dtype=torch.float64)
    return Batch([p for p, _, _ in entries], [c for _, c, _ in entries], [g for _, _, g in entries], weight_NC)


def gather_log_probs(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probability of each label under logits (..., V), by the plain definition."""
    return (logits / temperature).log_softmax(-1).gather(-1, labels[..., None])[..., 0]


# A layout gives pieces: indices into the batch, and their (K, width) log-probabilities. Each piece is one forward.
Pieces = Iterator[tuple[list[int], Tensor]]


def one_at_a_time(model: Any, batch: Batch, temperature: float = 1.0) -> Pieces:
    """The reference: every sequence alone, from the logits."""
    for i, (prompt, completion) in enumerate(zip(batch.prompts, batch.completions, strict=True)):
        logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[:, len(prompt) - 1 : -1]
        logp = gather_log_probs(logits, completion[None], temperature)
        yield [i], torch.nn.functional.pad(logp, (0, batch.width - len(completion)))


def padded(model: Any, batch: Batch, temperature: float = 1.0, *, index: Sequence[int] | None = None) -> Pieces:
    """As TRL pads, prompts on the left and completions on the right: no position ids, scored from the logits."""
    index = list(range(len(batch.prompts))) if index is None else list(index)
    P = max(len(batch.prompts[i]) for i in index)
    C = max(len(batch.completions[i]) for i in index)
    ids, mask = torch.zeros(2, len(index), P + C, dtype=torch.int64)
    for row, i in enumerate(index):
        span = slice(P - len(batch.prompts[i]), P + len(batch.completions[i]))
        ids[row, span] = torch.cat([batch.prompts[i], batch.completions[i]])
        mask[row, span] = 1
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, P - 1 : -1]
    logp = gather_log_probs(logits, ids[:, P:], temperature) * mask[:, P:]
    yield index, torch.nn.functional.pad(logp, (0, batch.width - logp.shape[1]))


def sorted_by_length(model: Any, batch: Batch, temperature: float = 1.0, *, max_tokens: int = 64) -> Pieces:
    """The fallback of this package: micro-batches of like lengths, each padded to its own longest."""
    width_N2 = torch.tensor([batch.prompt_tokens, batch.completion_tokens]).T
    for index in sorted_micro_batches(width_N2, max_tokens):
        yield from padded(model, batch, temperature, index=index.tolist())


def rows(
    model: Any, batch: Batch, temperature: float = 1.0, *, max_tokens: int = 10_000, shared: bool = True
) -> Pieces:
    """Rows of segments on a model with ``prepare_rows``: shared prompts, or each completion with its own."""
    group = batch.group if shared else list(range(len(batch.prompts)))
    for index in plan_rows(group, batch.prompt_tokens, batch.completion_tokens, max_tokens):
        yield index, row_log_probs(model, make_row(batch, index, group), batch.width)[0]


def make_row(batch: Batch, index: Sequence[int], group: Sequence[int] | None = None) -> Row:
    """One row of the completions ``index``; without ``group``, those of one group share their prompt."""
    group = batch.group if group is None else group
    return build_row(
        [batch.prompts[i] for i in index], [batch.completions[i] for i in index], [group[i] for i in index]
    )


def shared_row(batch: Batch) -> tuple[Row, list[int]]:
    """A row of all completions, prompts shared, and the order its completions are in."""
    index = sorted(range(len(batch.prompts)), key=lambda i: batch.group[i])
    return make_row(batch, index), index


def prepare_rows(model: Any, temperature: float = 1.0) -> None:
    """Gives a model the attention and the head that rows need."""
    use_rows(model)
    add_scored_head(model, temperature=temperature)


def gradient(model: Any) -> Tensor:
    """Gradients of all trainable parameters as one vector."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trainable])


@dataclass(frozen=True)
class Outcome:
    """What a layout computed: log-probabilities (N, C) and the gradient of their weighted sum."""

    logp_NC: Tensor
    gradient: Tensor

    def difference(self, other: "Outcome") -> tuple[float, float]:
        """Largest difference of a log-probability in nats, and relative difference of the gradients' global norm."""
        logp = (self.logp_NC - other.logp_NC).abs().max().item()
        return logp, ((self.gradient - other.gradient).norm() / other.gradient.norm()).item()


def run_layout(model: Any, pieces: Pieces, batch: Batch) -> Outcome:
    """Runs a layout piece by piece, each with its own backward pass, as training does."""
    model.zero_grad()
    logp_NC = torch.zeros_like(batch.weight_NC)
    for index, logp in pieces:
        (logp * batch.weight_NC[index].to(logp.dtype)).sum().backward()
        logp_NC[index] = logp.detach().double()
    return Outcome(logp_NC, gradient(model).double())


@dataclass(frozen=True)
class Setting:
    """Which model, in which condition; the reference of each is computed once."""

    name: str
    dtype: torch.dtype = torch.float64
    tied: bool = False
    lora: bool = False
    temperature: float = 1.0

    def model(self, prepare: Callable[[Any], None] = lambda model: None) -> Any:
        """A fresh model; ``prepare`` changes it before PEFT wraps it."""
        model = build(self.name, tied=self.tied, dtype=self.dtype)
        prepare(model)
        return with_lora(model) if self.lora else model


@cache
def reference(setting: Setting, batch_of: Callable[[], Batch] = make_batch) -> Outcome:
    """Outcome of one sequence at a time with a plain model."""
    model, batch = setting.model(), batch_of()
    return run_layout(model, one_at_a_time(model, batch, setting.temperature), batch)
