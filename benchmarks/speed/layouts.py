"""Ways to lay kept completions out for the forward pass, as values: from a kept set to a list of forwards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.speed.workload import Work
from dppo.packing.bins import sorted_micro_batches
from dppo.packing.forward import row_log_probs
from dppo.packing.kernels import SEGMENT_SDPA, Kernel
from dppo.packing.rows import Row, build_row, plan_rows

MICRO_BATCH = 8
"""Sequences of a padded micro-batch: the default of ``per_device_train_batch_size``."""
IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Forward:
    """One call of the model."""

    tokens: int
    """Tokens forwarded, padding included."""
    index: Sequence[int]
    """Which completions it scores."""
    log_probs: Callable[[nn.Module], Tensor]
    """From the model to (len(index), width) log-probabilities, 0 past the end of a completion."""


Layout = Callable[[Work], list[Forward]]
"""From kept completions to the forwards that score every one of them once."""


class Padded(NamedTuple):
    """A padded batch: prompts padded on the left, completions on the right."""

    ids: Tensor
    """(N, P + C) int64."""
    mask: Tensor
    """(N, P + C) int64, 1 where there is a token."""
    labels: Tensor
    """(N, P + C) int64, ``IGNORED`` where not scored."""


def _padded_tensors(work: Work) -> Padded:
    rows = []
    for prompt, completion in zip(work.prompts, work.completions, strict=True):
        left, right = work.prompt_width - len(prompt), work.completion_width - len(completion)
        ids = torch.cat([prompt.new_zeros(left), prompt, completion, prompt.new_zeros(right)])
        mask = torch.ones_like(ids)
        mask[:left], mask[len(ids) - right :] = 0, 0
        labels = ids.masked_fill(mask == 0, IGNORED)
        labels[: work.prompt_width] = IGNORED
        rows.append((ids, mask, labels))
    return Padded(*(torch.stack(parts) for parts in zip(*rows, strict=True)))


Call = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]
"""From model, ids, mask and labels (n, T) to the log-probability (n, T - 1) of every token but the first."""


def call_with_labels(model: nn.Module, ids_NT: Tensor, mask_NT: Tensor, labels_NT: Tensor) -> Tensor:
    """The call of TRL's trainer, word for word: the head shifts the labels."""
    return model(input_ids=ids_NT, attention_mask=mask_NT, labels=labels_NT, fused_lm_head=True).log_probs


def call_with_shifted_labels(model: nn.Module, ids_NT: Tensor, mask_NT: Tensor, labels_NT: Tensor) -> Tensor:
    """The same for a head that wants to be told what each position predicts."""
    shifted_NT = torch.cat([labels_NT[:, 1:], torch.full_like(labels_NT[:, :1], IGNORED)], 1)
    called = {"input_ids": ids_NT, "attention_mask": mask_NT, "shift_labels": shifted_NT, "use_cache": False}
    return model(**called, fused_lm_head=True).log_probs[:, :-1]


def _padded_forward(tensors: Padded, index: Sequence[int], width: int, call: Call) -> Forward:
    return Forward(
        tokens=tensors.ids.numel(),
        index=index,
        log_probs=lambda model: call(model, *tensors)[:, -width:],
    )


def padded(work: Work, *, micro_batch: int = MICRO_BATCH, call: Call = call_with_shifted_labels) -> list[Forward]:
    """TRL's layout: everything as wide as the generation batch needs, cut into micro-batches in the order given."""
    tensors = _padded_tensors(work)
    forwards = []
    for part in torch.arange(len(work.completions)).split(micro_batch):
        index = part.tolist()
        cut = Padded(*(x[index[0] : index[-1] + 1] for x in tensors))
        forwards.append(_padded_forward(cut, index, work.completion_width, call))
    return forwards


def sorted_and_trimmed(work: Work, *, max_tokens: int) -> list[Forward]:
    """Micro-batches of completions of like length, each padded to its own longest prompt and completion."""
    width_N2 = torch.tensor([work.prompt_tokens, work.completion_tokens]).T
    forwards = []
    for batch in sorted_micro_batches(width_N2, max_tokens):
        index = batch.tolist()
        prompt_width, completion_width = width_N2[batch].amax(0).tolist()
        part = replace(work.take(index), prompt_width=prompt_width, completion_width=completion_width)
        forwards.append(_padded_forward(_padded_tensors(part), index, completion_width, call_with_shifted_labels))
    return forwards


def rows(work: Work, group_N: Sequence[int], *, max_tokens: int, kernel: Kernel = SEGMENT_SDPA) -> list[Forward]:
    """Rows of segments without padding. Completions with the same number in ``group_N`` share their prompt."""
    forwards = []
    for index in plan_rows(group_N, work.prompt_tokens, work.completion_tokens, max_tokens):
        row = build_row(
            [work.prompts[i] for i in index],
            [work.completions[i] for i in index],
            [group_N[i] for i in index],
            None if work.keep_N is None else [work.keep_N[i] for i in index],
        )
        log_probs = partial(_row_log_probs, row=row, kernel=kernel)
        forwards.append(Forward(tokens=row.input_ids.numel(), index=index, log_probs=log_probs))
    return forwards


def _row_log_probs(model: nn.Module, row: Row, kernel: Kernel) -> Tensor:
    return row_log_probs(model, row, row.width, kernel=kernel)[0]


def packed(work: Work, *, max_tokens: int, kernel: Kernel = SEGMENT_SDPA) -> list[Forward]:
    """Rows in which every completion has a copy of its prompt."""
    return rows(work, range(len(work.completions)), max_tokens=max_tokens, kernel=kernel)


def shared(work: Work, *, max_tokens: int, kernel: Kernel = SEGMENT_SDPA) -> list[Forward]:
    """Rows in which a group's prompt is computed once."""
    return rows(work, work.group_N, max_tokens=max_tokens, kernel=kernel)


def layouts(max_tokens: int, kernel: Kernel = SEGMENT_SDPA) -> dict[str, Layout]:
    """The layouts under comparison by name; the first is what the others are measured against."""
    return {
        "padded": padded,
        "sorted": partial(sorted_and_trimmed, max_tokens=max_tokens),
        "packed": partial(packed, max_tokens=max_tokens, kernel=kernel),
        "shared": partial(shared, max_tokens=max_tokens, kernel=kernel),
    }


def train_step(model: nn.Module, work: Work, layout: Layout) -> dict[str, Any]:
    """Lay ``work`` out, forward and backward: gradients are added to the model's.

    Returns:
        ``tokens`` and ``forwards`` of the layout, the ``loss``, and how many tokens were ``scored``: both
        zero-dimensional tensors, so that nothing here waits for a device.
    """
    forwards, total, scored = layout(work), 0.0, 0
    for forward in forwards:
        logp_KT = forward.log_probs(model)
        loss = -(logp_KT * work.weight_N[list(forward.index), None]).sum() / work.scored
        loss.backward()
        total, scored = total + loss.detach(), scored + (logp_KT.detach() != 0).sum()
    return {
        "tokens": sum(forward.tokens for forward in forwards),
        "forwards": len(forwards),
        "loss": total,
        "scored": scored,
    }
