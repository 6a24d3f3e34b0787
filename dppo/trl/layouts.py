"""How kept completions go through the model: dense rows, or sorted padding for models that rows cannot serve."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dppo.packing import Kernel, build_row, choose_kernel, kernels_after, plan_rows, row_tokens, sorted_micro_batches
from dppo.packing.attention import leave_rows, unsupported, use_rows
from dppo.packing.forward import row_log_probs
from dppo.packing.head import add_scored_head, unsupported_head
from dppo.trl.window import MicroBatch, Window

TRITON_DEVICES = ("cuda", "xpu")
"""Where TRL's fused head scores labelled positions only; elsewhere it scores every position."""
MIXED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def shared_prompts(window: Window) -> Sequence[int]:
    """The group of each completion: its prompt, which a row then holds once."""
    return window.prompt_group


def own_prompts(window: Window) -> Sequence[int]:
    """A group of its own for each completion, so that each brings its prompt along (``layout: packed``)."""
    return range(len(window.prompt_group))


class Layout(Protocol):
    """A way to lay kept completions out for forward passes."""

    def micro_batches(self, window: Window, weight_B: Tensor, max_tokens: int) -> list[MicroBatch]:
        """The rows of positive weight in forward passes of at most ``max_tokens`` tokens, longest first."""
        ...

    def tokens(self, window: Window, rows: list[int]) -> int:
        """What one forward pass over ``rows`` computes, padding included."""
        ...

    def forward(self, model: Any, batch: MicroBatch, *, entropy: bool) -> tuple[Tensor, Tensor | None]:
        """(b, width) log-probabilities, and entropies if asked, of completion tokens."""
        ...

    def generating(self) -> Any:
        """A context in which the models are as if this layout had never touched them."""
        ...

    def enter(self) -> None:
        """Get the models ready for training."""
        ...

    def leave(self) -> None:
        """Give the models back as they were."""
        ...

    def __str__(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class PaddedLayout:
    """Length-sorted micro-batches, each padded to its own longest prompt and completion."""

    padded_forward: Callable[..., tuple[Any, Any, Any]]
    """TRL's ``_get_per_token_logps_and_entropies``."""
    reason: str

    def micro_batches(self, window: Window, weight_B: Tensor, max_tokens: int) -> list[MicroBatch]:
        """As ``Layout`` says; padding counts as tokens."""
        rows = weight_B.nonzero().squeeze(1)
        widths = torch.tensor([[window.prompt_tokens[i], window.completion_tokens[i]] for i in rows.tolist()])
        batches = sorted_micro_batches(widths.view(-1, 2), max_tokens)
        made = []
        for batch in batches:
            here = rows[batch.to(rows.device)]
            made.append(MicroBatch(window, here, weight_B[here], self.tokens(window, here.tolist())))
        return made

    def tokens(self, window: Window, rows: list[int]) -> int:
        """As ``Layout`` says."""
        completion = max(1, *(window.completion_tokens[i] for i in rows))
        return len(rows) * (max(window.prompt_tokens[i] for i in rows) + completion)

    def forward(self, model: Any, batch: MicroBatch, *, entropy: bool) -> tuple[Tensor, Tensor | None]:
        """As ``Layout`` says."""
        input_ids, attention_mask = batch.inputs()
        logp, entropies, _ = self.padded_forward(
            model, input_ids, attention_mask, batch.completion_width, compute_entropy=entropy
        )
        return logp, entropies

    def generating(self) -> Any:
        """Nothing was touched."""
        return nullcontext()

    def enter(self) -> None:
        """Nothing to do."""

    def leave(self) -> None:
        """Nothing to do."""

    def __str__(self) -> str:
        return f"layout: length-sorted padding ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """Rows of segments: no padding, and the prompt of a group once."""

    kernel: Kernel
    groups: Callable[[Window], Sequence[int]] = shared_prompts
    """Which completions of a window may share a prompt."""
    autocast: Callable[[], Any]
    others: tuple[Kernel, ...]
    """Kernels to turn to, in order, where this one fails on the model itself."""
    models: tuple[PreTrainedModel, ...]
    """Those that attend over rows: the policy and, where there is one, the reference model."""

    def micro_batches(self, window: Window, weight_B: Tensor, max_tokens: int) -> list[MicroBatch]:
        """As ``Layout`` says; completions of one prompt are kept together."""
        kept = weight_B.nonzero().squeeze(1).tolist()
        group, prompts, completions = (
            [of[i] for i in kept] for of in (self.groups(window), window.prompt_tokens, window.completion_tokens)
        )
        made = []
        for places in plan_rows(group, prompts, completions, max_tokens):
            here = [kept[place] for place in places]
            rows = torch.tensor(here, device=weight_B.device)
            made.append(MicroBatch(window, rows, weight_B[rows], self.tokens(window, here)))
        return sorted(made, key=lambda batch: -batch.tokens)

    def tokens(self, window: Window, rows: list[int]) -> int:
        """As ``Layout`` says."""
        group, prompts, completions = (
            [of[i] for i in rows] for of in (self.groups(window), window.prompt_tokens, window.completion_tokens)
        )
        return row_tokens(group, prompts, [max(1, n) for n in completions], [range(len(rows))])

    def forward(self, model: Any, batch: MicroBatch, *, entropy: bool) -> tuple[Tensor, Tensor | None]:
        """As ``Layout`` says; 0 where a token carries no loss."""
        window, rows = batch.window, batch.rows.tolist()
        groups = self.groups(window)
        tokens = [max(1, window.completion_tokens[i]) for i in rows]  # an idle forward may have no token of its own
        row = build_row(
            [window.prompt(i) for i in rows],
            [window.completion_ids[i, :n] for i, n in zip(rows, tokens, strict=True)],
            [groups[i] for i in rows],
            None if window.all_scored else [window.loss_mask[i, :n] for i, n in zip(rows, tokens, strict=True)],
        )
        with self.autocast():
            return row_log_probs(model, row, batch.completion_width, kernel=self.kernel, entropy=entropy)

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Engines look at the name of the attention implementation, so generation gets the one it had."""
        self.leave()
        try:
            yield
        finally:
            self.enter()

    def enter(self) -> None:
        """Let every model attend over rows."""
        for model in self.models:
            use_rows(model)

    def leave(self) -> None:
        """Give every model back the attention it had."""
        for model in self.models:
            leave_rows(model)

    def __str__(self) -> str:
        prompts = "" if self.groups is shared_prompts else ", prompts not shared"
        return f"layout: rows of segments{prompts}, attention by {self.kernel.name} ({self.kernel.reason})"


def choose_layout(trainer: Any, padded_forward: Callable[..., tuple[Any, Any, Any]]) -> Layout:
    """Rows where the model and its reference allow it, otherwise sorted padding with the reason.

    Args:
        trainer: with its models loaded and TRL's fused head on them.
        padded_forward: TRL's padded forward.
    """
    if trainer.args.layout == "padded":
        return PaddedLayout(padded_forward=padded_forward, reason="as asked for")
    models = tuple(_unwrapped(model) for model in (trainer.model, trainer.ref_model) if model is not None)
    if reason := next((r for r in map(unsupported, models) if r), ""):
        return PaddedLayout(padded_forward=padded_forward, reason=reason)
    policy, accelerator = models[0], trainer.accelerator
    config, device = policy.config, accelerator.device
    heads = int(config.num_attention_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    dtype = MIXED.get(accelerator.mixed_precision, policy.dtype)
    grouped = (heads, int(getattr(config, "num_key_value_heads", None) or heads))
    kernel = choose_kernel(device, dtype, int(head_dim), heads=grouped)
    for model in models:
        use_rows(model)
        if device.type not in TRITON_DEVICES and not unsupported_head(model):
            exact = torch.float32 if trainer.args.cast_lm_head_to_fp32 else None
            add_scored_head(model, temperature=trainer.temperature, dtype=exact)
    others = kernels_after(kernel, device, dtype)
    groups = own_prompts if trainer.args.layout == "packed" else shared_prompts
    return RowLayout(kernel=kernel, groups=groups, others=others, autocast=accelerator.autocast, models=models)


def _unwrapped(model: Any) -> PreTrainedModel:
    return model.get_base_model() if hasattr(model, "get_base_model") else model
