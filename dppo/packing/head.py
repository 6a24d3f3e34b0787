"""The language model head over labelled positions only, in blocks: (tokens x vocabulary) logits never exist."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
from transformers.utils.generic import ModelOutput

from dppo.errors import ConfigError
from dppo.packing.rows import UNSCORED

BLOCK_LOGITS, CUDA_BLOCK_LOGITS = 2**25, 2**28
"""Logits at one time: 128 MiB in float32 on a CPU, 1 GiB on a GPU, where each block adds to a gradient of the head."""
TOKEN_METRICS = ("entropy", "is_top1", "mean_logits", "log_sum_sq_probs")
"""Metrics of ``ScoredOutput``, by the names of TRL's fused head."""
LOGIT_CHANGES = (
    "final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap", "logit_scale", "output_multiplier",
    "lm_head_multiplier", "logits_scaling",
)  # fmt: skip
"""Names of configurations for a scale or a cap of the logits after the head."""


@dataclass
class ScoredOutput(ModelOutput):
    """Output of a model with a scored head for ``fused_lm_head=True``; a field that was not requested is None."""

    log_probs: Tensor | None = None
    """(B, T) float log-probabilities of the labels in nats; 0 without a label."""
    entropy: Tensor | None = None
    """(B, T) entropies in nats."""
    router_loss: Tensor | None = None
    """() load-balancing loss of a mixture of experts over weighted tokens, times the sum of the weights."""
    is_top1: Tensor | None = None
    """(B, T) bool, True if the label is the likeliest token; no gradient, as for the fields below."""
    mean_logits: Tensor | None = None
    """(B, T) means of the logits over the vocabulary."""
    log_sum_sq_probs: Tensor | None = None
    """(B, T) logs of sums of squared probabilities."""


def unsupported_head(model: PreTrainedModel) -> str:
    """The reason why ``add_scored_head`` cannot serve ``model``, or "" if it can."""
    config = model.config.get_text_config()
    if model.base_model is model:
        return "the layers below its head cannot be called alone"
    changed = [name for name in LOGIT_CHANGES if getattr(config, name, None) not in (None, 1.0)]
    return f"it changes logits after the head ({changed[0]}={getattr(config, changed[0])})" if changed else ""


@dataclass
class _Head:
    """A scored head of a model."""

    forward: Callable[..., Any]
    """The function that became the model's forward."""
    below: Callable[..., Any] | None
    """The forward that was set on the model before; None for that of its class."""
    temperature: float
    dtype: torch.dtype | None
    removed: bool = False
    """True if calls pass through: the head was removed while another function was wrapped around it."""


def add_scored_head(model: PreTrainedModel, *, temperature: float = 1.0, dtype: torch.dtype | None = None) -> None:
    """Make ``model(..., shift_labels=, fused_lm_head=True)`` return log-probabilities of the labels, no logits.

    The call is that of TRL's ``add_fused_lm_head``. It also takes ``score_entropy=True``, ``score_metrics=True`` for
    ``TOKEN_METRICS`` without a gradient, and ``token_weight=`` (B, T) for the router loss of a mixture of experts.
    Without ``fused_lm_head`` the model's forward is the one it had. A second call replaces the first.

    ``model`` is a causal language model, not yet wrapped by PEFT, DDP or FSDP; it is changed in place. Logits are
    divided by ``temperature``. ``dtype`` is that of the head's arithmetic; the weight's own by default.

    Raises:
        ConfigError: the model scales or caps its logits, or ``temperature`` is not > 0; in the model's call, the head
            carries an adapter.
    """
    if reason := unsupported_head(model):
        raise ConfigError(f"no scored head for {type(model).__name__}: {reason}. Use TRL's add_fused_lm_head.")
    if not temperature > 0:
        raise ConfigError(f"temperature={temperature:g} must be greater than 0. Try temperature: 1.0.")
    remove_scored_head(model)
    # Attributes instead of closures: a deep copy of the model then runs its own forward, not this model's.
    patched: Any = model
    heads: list[_Head] = getattr(model, "scored_heads", [])
    forward = _forward_of_head(type(model), len(heads))
    patched.scored_heads = [*heads, _Head(forward, vars(model).get("forward"), temperature, dtype)]
    patched.forward = MethodType(forward, model)


def remove_scored_head(model: PreTrainedModel) -> None:
    """Restore the forward of a model before ``add_scored_head``; no effect on a model without a scored head.

    Below a function wrapped around it since, such as accelerate's autocast, the head stays and calls pass through.
    """
    patched: Any = model
    heads: list[_Head] = getattr(model, "scored_heads", [])
    while heads and getattr(vars(model).get("forward"), "__func__", None) is heads[-1].forward:
        below = heads.pop().below
        del patched.forward
        if below is not None:
            patched.forward = below
    for head in heads:
        head.removed = True


def _forward_of_head(kind: type[PreTrainedModel], layer: int) -> Callable[..., Any]:
    """The forward of a model of class ``kind`` with scored head number ``layer``."""

    @functools.wraps(kind.forward)  # generate checks its arguments against the signature
    def forward(
        self: Any,
        *args: Any,
        fused_lm_head: bool = False,
        score_entropy: bool = False,
        score_metrics: bool = False,
        shift_labels: Tensor | None = None,
        token_weight: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        head: _Head = self.scored_heads[layer]
        if head.removed or not fused_lm_head or shift_labels is None:
            below = functools.partial(kind.forward, self) if head.below is None else head.below
            kwargs |= {"fused_lm_head": True} if fused_lm_head else {}
            kwargs |= {} if shift_labels is None else {"shift_labels": shift_labels}
            return below(*args, **kwargs)
        kwargs["use_cache"] = False  # with a cache transformers takes a row of many sequences for one
        if token_weight is not None:
            kwargs["output_router_logits"] = True
        output = self.base_model(*args, **kwargs)
        scored = _score(self, head, output.last_hidden_state, shift_labels, score_entropy, score_metrics)
        if token_weight is not None:
            scored.router_loss = router_loss(output.router_logits, token_weight, self.config.get_text_config())
        return scored

    return forward


@torch.compiler.disable()  # the number of labelled positions is data: a graph would end at each use of it
def _score(
    model: PreTrainedModel, head: _Head, hidden_BTD: Tensor, label_BT: Tensor, entropy: bool, metrics: bool
) -> ScoredOutput:
    """Log-probabilities, and entropies and metrics if requested, at labelled positions; 0 elsewhere."""
    layer: Any = model.get_output_embeddings()  # on each call, because PEFT and FSDP replace it
    if hasattr(layer, "base_layer"):
        raise ConfigError(
            "the head carries an adapter, which scoring by its weight would ignore. Remove lm_head from "
            "target_modules, or train it in full: modules_to_save=['lm_head']."
        )
    labelled = label_BT != UNSCORED
    target_L = label_BT[labelled]

    def scored(hidden_LD: Tensor) -> dict[str, Tensor]:
        parts: Any = layer.weight, getattr(layer, "bias", None)  # PEFT's wrapper of some trained tokens has none
        weight, bias = (p.full_tensor() if isinstance(p, DTensor) else p for p in parts)
        dtype = head.dtype or weight.dtype
        hidden_LD, weight = hidden_LD.to(dtype) / head.temperature, weight.to(dtype)
        bias = None if bias is None else bias.to(dtype) / head.temperature
        with torch.autocast(hidden_LD.device.type, enabled=False):
            found = {"log_probs": label_log_probs(hidden_LD, weight, bias, target_L)}
            if metrics:
                found |= token_metrics(hidden_LD.detach(), weight, bias, target_L)
            return found | ({"entropy": label_entropies(hidden_LD, weight, bias)} if entropy else {})

    found = _as_forward(layer, scored, hidden_BTD[labelled])
    return ScoredOutput(
        **{n: value.new_zeros(label_BT.shape).masked_scatter(labelled, value) for n, value in found.items()}
    )


def _as_forward(layer: Any, function: Callable[[Tensor], Any], hidden_LD: Tensor) -> Any:
    """The function of hidden states, as the forward of ``layer`` if FSDP2 shards it by itself, as verl does."""
    if not isinstance(layer, FSDPModule):
        return function(hidden_LD)
    # Hooks then gather the weight and reduce its gradient, which would else be that of one rank.
    patched: Any = layer
    before = vars(layer).get("forward")
    patched.forward = function
    try:
        return patched(hidden_LD)
    finally:
        del patched.forward
        if before is not None:
            patched.forward = before


def router_loss(router_logits: tuple[Tensor, ...], weight_BT: Tensor, config: Any) -> Tensor:
    """() load-balancing loss over weighted tokens, times the sum of the weights.

    Shares of tokens per expert and mean probabilities are weighted. All weights 0 give 0, with a gradient of 0.
    """
    total = weight_BT.sum()
    weighted = torch.where(total > 0, weight_BT, torch.ones_like(weight_BT))
    experts = getattr(config, "num_experts", None) or config.num_local_experts
    loss = load_balancing_loss_func(cast(Any, router_logits), experts, config.num_experts_per_tok, weighted)
    return cast(Tensor, loss) * total


def chunked_log_probs(hidden_LD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_L: Tensor) -> Tensor:
    """(L,) log-probabilities of ``target_L`` by torch's chunked linear cross-entropy."""
    # Logits that are no larger than their hidden states are kept, because recomputing them would save no memory.
    small = weight_VD.shape[0] <= weight_VD.shape[1]
    options = None if small else torch.nn.LinearCrossEntropyOptions(batch_chunk_size=_block(weight_VD))
    return -F.linear_cross_entropy(
        hidden_LD, weight_VD, target_L, linear_bias=bias_V, reduction="none", options=options
    )


def checkpointed_log_probs(hidden_LD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_L: Tensor) -> Tensor:
    """(L,) log-probabilities of ``target_L`` by blocks of positions, each computed again in the backward pass.

    Softmax and gradient sums are float32 or more: bfloat16 would round -10 nats to steps of 1/16.
    """
    dtype = hidden_LD.dtype
    exact = torch.promote_types(dtype, torch.float32)
    weight, bias = weight_VD.to(exact), None if bias_V is None else bias_V.to(exact)

    def block(hidden: Tensor, target: Tensor) -> Tensor:
        logits = F.linear(hidden, weight.to(dtype), None if bias is None else bias.to(dtype))
        return -F.cross_entropy(logits.to(exact), target, reduction="none")

    rows = _block(weight_VD)
    pairs = zip(hidden_LD.split(rows), target_L.split(rows), strict=True)
    return torch.cat([checkpoint(block, hidden, target, use_reentrant=False) for hidden, target in pairs])


def label_log_probs(hidden_LD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_L: Tensor) -> Tensor:
    """(L,) log-probabilities of ``target_L`` in float32 or more: by torch 2.13's operator if it gives that."""
    half = hidden_LD.dtype in (torch.bfloat16, torch.float16)
    score = checkpointed_log_probs if half or not hasattr(F, "linear_cross_entropy") else chunked_log_probs
    return score(hidden_LD, weight_VD, bias_V, target_L)


def label_entropies(hidden_LD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
    """(L,) entropies in nats of the distributions over the vocabulary, by blocks; a backward pass repeats each."""

    def block(hidden: Tensor) -> Tensor:
        return _entropy(_logits(hidden, weight_VD, bias_V).log_softmax(1))

    return torch.cat([checkpoint(block, hidden, use_reentrant=False) for hidden in hidden_LD.split(_block(weight_VD))])


@torch.no_grad()
def token_metrics(hidden_LD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_L: Tensor) -> dict[str, Tensor]:
    """(L,) of each of ``TOKEN_METRICS``, float32 or more; ``is_top1`` is bool."""
    rows, blocks = _block(weight_VD), []
    for hidden, target in zip(hidden_LD.split(rows), target_L.split(rows), strict=True):
        logits = _logits(hidden, weight_VD, bias_V)
        logp = logits.log_softmax(1)
        blocks.append((_entropy(logp), logits.argmax(1) == target, logits.mean(1), (2 * logp).logsumexp(1)))
    return {name: torch.cat(parts) for name, parts in zip(TOKEN_METRICS, zip(*blocks, strict=True), strict=True)}


def _logits(hidden_LD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
    """(L, V) logits in float32 or more."""
    logits = F.linear(hidden_LD, weight_VD, bias_V)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _entropy(logp_LV: Tensor) -> Tensor:
    return -(logp_LV.exp() * logp_LV).sum(1)


def _block(weight_VD: Tensor) -> int:
    """Positions whose logits exist at one time."""
    return max(1, (CUDA_BLOCK_LOGITS if weight_VD.is_cuda else BLOCK_LOGITS) // weight_VD.shape[0])
