"""Layouts of forward passes: dense rows, or sorted padding for models that rows cannot serve."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dppo.errors import ConfigError
from dppo.packing import Kernel, build_row, kernels_for, plan_rows, row_tokens, sorted_micro_batches
from dppo.packing.attention import leave_rows, unsupported, unwrapped, use_rows
from dppo.packing.forward import Scored, metrics_of, row_log_probs
from dppo.packing.head import unsupported_head
from dppo.packing.rows import UNSCORED, Row, on_device
from dppo.trl.batch import MicroBatch, RankBatch

MIXED = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Forward passes, each of some rows of a batch."""

    autocast: Callable[[], Any] = nullcontext
    router: bool = False
    """True if training passes have a router loss with weights: padding needs ``add_scored_head`` for it, and rows have
    tokens from which nothing is predicted, which it counts."""
    models: tuple[PreTrainedModel, ...] = ()
    """Models that attend over rows of segments: the policy, and the reference model if there is one."""

    def tokens(self, rank_batch: RankBatch, rows: list[int]) -> int:
        """Tokens of one forward pass over ``rows``, padding included."""
        raise NotImplementedError

    def row(self, rank_batch: RankBatch, rows: list[int]) -> Row | None:
        """The row of segments of these completions, in the host's memory; None if they are padded."""

    def micro_batches(self, rank_batch: RankBatch, weight_B: Tensor, places: Sequence[list[int]]) -> list[MicroBatch]:
        """Forward passes of the rows at ``places``; all index tensors reach the device in one transfer."""
        rows = [self.row(rank_batch, here) for here in places]
        indices = [index for row in rows if row is not None for index in row.indices]
        moved = iter(on_device([*(torch.tensor(here) for here in places), *indices], weight_B.device))
        at_places = [next(moved) for _ in places]
        there = [None if row is None else row.moved([next(moved) for _ in row.indices]) for row in rows]
        return [
            MicroBatch(rank_batch, here, at, weight_B[at], self.tokens(rank_batch, here), row)
            for here, at, row in zip(places, at_places, there, strict=True)
        ]

    def enter(self) -> None:
        """Let the models attend over rows."""
        for model in self.models:
            use_rows(model)

    def leave(self) -> bool:
        """Restore the attention of the models; True if one attended over rows."""
        return True in [leave_rows(model) for model in self.models]


@dataclass(frozen=True, kw_only=True)
class PaddedLayout(Layout):
    """Length-sorted micro-batches, each padded to its own longest prompt and completion."""

    shares_prompts: ClassVar[bool] = False
    padded_forward: Callable[..., tuple[Any, Any, Any]]
    """TRL's forward over padded sequences: log-probabilities, entropies and, in trainers on rows, metrics of tokens.
    Its router loss has no weights."""
    reason: str

    def places(self, rank_batch: RankBatch, kept: list[int], max_tokens: int) -> list[list[int]]:
        """Rows of each forward pass of at most ``max_tokens`` tokens, padding included; the longest pass first."""
        together = rank_batch.together
        sizes = torch.tensor([(rank_batch.prompt_tokens[i], rank_batch.completion_tokens[i]) for i in kept])
        widths = sizes.view(-1, together, 2).amax(1) if kept else sizes.view(0, 2)
        units = torch.tensor(kept, dtype=torch.int64).view(-1, together)
        return [units[batch].flatten().tolist() for batch in sorted_micro_batches(widths, max_tokens // together)]

    def tokens(self, rank_batch: RankBatch, rows: list[int]) -> int:
        completion = max(1, *(rank_batch.completion_tokens[i] for i in rows))
        return len(rows) * (max(rank_batch.prompt_tokens[i] for i in rows) + completion)

    def forward(self, model: Any, batch: MicroBatch, *, entropy: bool, router: bool, metrics: bool = False) -> Scored:
        """(b, width) log-probabilities of completion tokens; if requested entropies, router loss and metrics."""
        input_ids, mask = batch.inputs()
        width = batch.completion_width
        if not self.router:
            wanted = {"compute_entropy": entropy} | batch.seen()
            logp, entropies, others = self.padded_forward(model, input_ids, mask, width, **wanted)
            return Scored(logp, entropies, metrics=others if metrics else None)
        predicts = slice(-width - 1, -1)
        labels = torch.full_like(input_ids, UNSCORED)
        labels[:, predicts] = input_ids[:, -width:].masked_fill(mask[:, -width:] == 0, UNSCORED)
        weights = {"token_weight": mask * batch.weight[:, None]} if router else {}
        with self.autocast():
            output = model(
                input_ids=input_ids, attention_mask=mask, shift_labels=labels, fused_lm_head=True,
                score_entropy=entropy, score_metrics=metrics, **weights,
            )  # fmt: skip
        return Scored(
            output.log_probs[:, predicts],
            output.entropy[:, predicts] if entropy else None,
            output.router_loss,
            metrics_of(output, lambda value: value[:, predicts]) if metrics else None,
        )

    def __str__(self) -> str:
        return f"layout: length-sorted padding ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class RowLayout(Layout):
    """Rows of segments: no padding, and the prompt of a group once."""

    kernel: Kernel
    others: tuple[Kernel, ...]
    """Kernels to try in order, if this one fails on the model itself."""
    shares_prompts: bool = True
    """True if completions of one prompt are forwarded behind one copy of it."""

    def places(self, rank_batch: RankBatch, kept: list[int], max_tokens: int) -> list[list[int]]:
        """As ``PaddedLayout.places``; completions of one prompt are kept together."""
        group, prompts, completions = self._sizes(rank_batch, kept)
        planned = plan_rows(group, prompts, completions, max_tokens, whole=rank_batch.together > 1)
        return sorted(([kept[at] for at in row] for row in planned), key=lambda here: -self.tokens(rank_batch, here))

    def row(self, rank_batch: RankBatch, rows: list[int]) -> Row:
        (prompt_ids, completion_ids, scored), width = rank_batch.on_host, rank_batch.prompt_ids.shape[1]
        group, prompts, _ = self._sizes(rank_batch, rows)
        # An idle pass may have no token of its own.
        cut = [(i, slice(max(1, rank_batch.completion_tokens[i]))) for i in rows]
        return build_row(
            [prompt_ids[i, width - tokens :] for i, tokens in zip(rows, prompts, strict=True)],
            [completion_ids[at] for at in cut],
            group,
            None if scored is None else [scored[at] for at in cut],
            last_tokens=self.router,
        )

    def tokens(self, rank_batch: RankBatch, rows: list[int]) -> int:
        group, prompts, completions = self._sizes(rank_batch, rows)
        return row_tokens(group, prompts, [max(1, n) for n in completions], [range(len(rows))])

    def _sizes(self, rank_batch: RankBatch, rows: list[int]) -> tuple[list[int], list[int], list[int]]:
        """Group of each of ``rows`` that shares a prompt, prompt tokens, and completion tokens that are forwarded."""
        group = [rank_batch.prompt_group[i] for i in rows] if self.shares_prompts else rows
        tokens = [rank_batch.completion_tokens[i] for i in rows]
        return group, [rank_batch.prompt_tokens[i] for i in rows], [n + self.router if n else 0 for n in tokens]

    def forward(self, model: Any, batch: MicroBatch, *, entropy: bool, router: bool, metrics: bool = False) -> Scored:
        """As ``PaddedLayout.forward``; 0 where a token carries no loss."""
        assert batch.row is not None
        measured = {"entropy": entropy, "weight_B": batch.weight if router else None, "metrics": metrics}
        with self.autocast():
            return row_log_probs(model, batch.row, batch.completion_width, kernel=self.kernel, **measured)

    def __str__(self) -> str:
        prompts = "" if self.shares_prompts else ", each completion with its own prompt"
        return f"layout: packed rows{prompts}, attention by {self.kernel.name} ({self.kernel.reason})"


def choose_layout(trainer: Any) -> tuple[PaddedLayout | RowLayout, tuple[PreTrainedModel, ...]]:
    """Rows if the model and its reference allow it, else padding with the reason; and the models for our own head."""
    args, accelerator, router = trainer.args, trainer.accelerator, bool(trainer.method.router_coef)
    models = tuple(unwrapped(model) for model in (trainer.model, trainer.ref_model) if model is not None)
    reason = next(filter(None, map(unsupported, models)), "")
    if learns_prompts(trainer.model):
        reason = "its adapter puts tokens of its own before every sequence"
    if args.layout == "padded":
        reason = "as set"
    for model in models if router else ():
        seeing = "" if model.config is model.config.get_text_config() else "its head is called without pictures"
        if unserved := seeing or unsupported_head(model):
            problem = f"router_aux_loss_coef={trainer.method.router_coef:g} is not served for {type(model).__name__}"
            raise ConfigError(f"{problem}: {unserved}. Set router_aux_loss_coef: 0.0.")
    # TRL's own head has no weights in its router loss, and without Triton it scores positions without a label too.
    wanted = router or (not reason and accelerator.device.type not in ("cuda", "xpu"))
    heads = tuple(model for model in models if wanted and not unsupported_head(model))
    made: dict[str, Any] = {"autocast": accelerator.autocast, "router": router}
    if reason:
        return PaddedLayout(padded_forward=trainer.padded_forward, reason=reason, **made), heads
    dtype = MIXED.get(accelerator.mixed_precision, models[0].dtype)
    kernel, *others = kernels_for(models[0].config, accelerator.device, dtype)
    made |= {"models": models, "shares_prompts": args.layout != "packed"}
    return RowLayout(kernel=kernel, others=tuple(others), **made), heads


def learns_prompts(policy: Any) -> bool:
    """True if an adapter puts tokens of its own before every sequence."""
    return bool(getattr(getattr(policy, "active_peft_config", None), "is_prompt_learning", False))
