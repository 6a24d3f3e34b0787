"""The self-check: the model's own padded forward against rows, log-probabilities and gradients, before anything trains.

Rows depend on private agreements of transformers (that keyword arguments reach attention, that a 4-D mask is passed on
as it is). Where one breaks, log-probabilities are off by nats without a warning; this check turns that into figures.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dppo.packing.attention import sliding_layers
from dppo.packing.forward import row_log_probs
from dppo.packing.kernels import Kernel
from dppo.packing.rows import UNSCORED, Segments, build_row

PROMPT_TOKENS = (5, 9)
COMPLETION_TOKENS = ((4, 7), (1, 6))
HALF = (torch.bfloat16, torch.float16)
TIMES_NOISE = 4.0
"""How far beyond the rounding noise of two padded batches a difference may be; wrong layouts are off by nats."""


@dataclass(frozen=True, kw_only=True)
class LayoutCheck:
    """Rows against padding on two prompts with two completions each."""

    logp_difference: float
    """Largest absolute difference of a token's log-probability, in nats."""
    logp_tolerance: float
    gradient_difference: float | None
    """Norm of the difference over the norm, of the gradient of token embeddings; None where not computed."""
    gradient_tolerance: float
    windows_missing: int = 0
    """Layers with a sliding window that rows are not told of: it is in the mask alone, which rows replace."""

    @property
    def passed(self) -> bool:
        """Whether both are within tolerance; NaN is not."""
        if self.windows_missing:  # sequences of the check are too short to show it
            return False
        gradient = self.gradient_difference
        return self.logp_difference <= self.logp_tolerance and (gradient is None or gradient <= self.gradient_tolerance)

    def __str__(self) -> str:
        gradient = "not compared" if self.gradient_difference is None else f"{self.gradient_difference:.1e} relative"
        missing = f"{self.windows_missing} sliding windows do not reach attention; " if self.windows_missing else ""
        return missing + (
            f"log-probabilities differ by {self.logp_difference:.1e} nats (tolerance {self.logp_tolerance:.1e}), "
            f"gradients: {gradient} (tolerance {self.gradient_tolerance:.1e})"
        )


def check_rows(model: Any, *, temperature: float, kernel: Kernel) -> LayoutCheck:
    """Compare rows with the model's padded forward; tolerances grow with its own rounding noise.

    Noise is measured as the difference between one padded batch and one sequence at a time. Gradients are compared
    where gradients are enabled; call it under ``torch.no_grad()`` on models that cannot be differentiated outside of
    a training step, such as sharded ones.

    Args:
        model: after ``use_rows``, with a fused or scored head; its mode and gradients are left as they were.
        temperature: what its head divides logits by.
        kernel: what computes attention over rows.
    """
    prompts, completions = _sequences(model)
    half = _dtype(model) in HALF
    padded_log_probs = _padded_by_head if half else _padded
    windows: list[int] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scale: float | None, window: int | None) -> Tensor:
        windows.extend([] if window is None else [window])
        return kernel.attend(q, k, v, segments, scale, window)

    weight_NT = torch.linspace(-1, 1, 4 * 7, device=prompts[0].device).view(4, 7)

    def rows() -> Tensor:
        row = build_row(prompts, completions, [0, 0, 1, 1])
        return row_log_probs(model, row, 7, kernel=replace(kernel, attend=attend))[0]

    def padded() -> Tensor:
        return padded_log_probs(model, prompts, completions, temperature)

    def one_at_a_time() -> Tensor:
        parts = [padded_log_probs(model, [p], [c], temperature) for p, c in zip(prompts, completions, strict=True)]
        return torch.cat([torch.nn.functional.pad(part, (0, 7 - part.shape[1])) for part in parts])

    with _evaluating(model):
        (logp, grad), (row_logp, row_grad), (one_logp, one_grad) = (
            _with_embedding_gradient(model, forward, weight_NT) for forward in (padded, rows, one_at_a_time)
        )
    difference = None
    gradient_noise = 0.0
    if grad is not None and row_grad is not None and one_grad is not None:
        difference, gradient_noise = _relative(row_grad, grad), _relative(one_grad, grad)
    return LayoutCheck(
        logp_difference=float((row_logp - logp).abs().max()),
        logp_tolerance=max(0.1 if half else 1e-4, TIMES_NOISE * float((one_logp - logp).abs().max())),
        gradient_difference=difference,
        gradient_tolerance=max(0.1 if half else 1e-3, TIMES_NOISE * gradient_noise),
        windows_missing=max(0, sliding_layers(model) - len(windows)),
    )


def _sequences(model: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Four prompts, two and two alike, and four completions, of random tokens."""
    draws = torch.Generator().manual_seed(0)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    device = model.get_input_embeddings().weight.device

    def tokens(count: int) -> Tensor:
        return torch.randint(vocabulary, (count,), generator=draws).to(device)

    prompts = [prompt for prompt in map(tokens, PROMPT_TOKENS) for _ in range(2)]
    return prompts, [tokens(count) for counts in COMPLETION_TOKENS for count in counts]


def _padded(model: Any, prompts: list[Tensor], completions: list[Tensor], temperature: float) -> Tensor:
    """(N, longest completion) log-probabilities by the model's ordinary forward over right-padded sequences."""
    ids, mask = _padded_inputs(prompts, completions)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float() / temperature
    logp_NT = logits[:, :-1].log_softmax(2).gather(2, ids[:, 1:, None])[..., 0]
    return _of_completions(logp_NT, prompts, completions)


def _padded_by_head(model: Any, prompts: list[Tensor], completions: list[Tensor], _temperature: float) -> Tensor:
    """The same by the head that rows use, which divides by the temperature itself.

    In half precision a model rounds its logits and a float32 head does not, which has nothing to do with the layout.
    """
    ids, mask = _padded_inputs(prompts, completions)
    label_NT = torch.full_like(ids, UNSCORED)
    label_NT[:, :-1] = ids[:, 1:].masked_fill(mask[:, 1:] == 0, UNSCORED)
    output = model(input_ids=ids, attention_mask=mask, use_cache=False, shift_labels=label_NT, fused_lm_head=True)
    return _of_completions(output.log_probs.float(), prompts, completions)


def _padded_inputs(prompts: list[Tensor], completions: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Token ids, padded on the right, and the mask of tokens."""
    sequences = [torch.cat(pair) for pair in zip(prompts, completions, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    lengths = torch.tensor([len(s) for s in sequences], device=ids.device)
    return ids, (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()


def _of_completions(logp_NT: Tensor, prompts: list[Tensor], completions: list[Tensor]) -> Tensor:
    """(N, longest completion) the part of each sequence that predicts its completion."""
    starts = [len(p) - 1 for p in prompts]
    parts = [row[at : at + len(c)] for row, at, c in zip(logp_NT, starts, completions, strict=True)]
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


def _with_embedding_gradient(model: Any, forward: Any, weight_NT: Tensor) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities, and the gradient of their weighted sum with respect to each token's embedding.

    Gradients of embeddings have passed through every layer, and taking them touches no parameter's ``.grad``.
    """
    inputs: list[tuple[Tensor, Tensor]] = []

    def capture(_module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        inputs.append((args[0], output.detach().requires_grad_(torch.is_grad_enabled())))
        return inputs[-1][1]

    embeddings = model.get_input_embeddings()
    handle = embeddings.register_forward_hook(capture)
    try:
        logp_NT = forward()
    finally:
        handle.remove()
    if not torch.is_grad_enabled():
        return logp_NT.detach(), None
    loss = (logp_NT * weight_NT[:, : logp_NT.shape[1]]).sum()
    gradients = torch.autograd.grad(loss, [output for _, output in inputs])
    sums = torch.zeros(embeddings.weight.shape[0], gradients[0].shape[-1], device=loss.device)
    for (ids, _), gradient in zip(inputs, gradients, strict=True):
        sums.index_add_(0, ids.flatten(), gradient.flatten(0, -2).float())
    return logp_NT.detach(), sums


def _relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def _dtype(model: Any) -> torch.dtype:
    """What the model computes in: that of autocast where it is on, otherwise that of its head."""
    weight = model.get_output_embeddings().weight
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode, and the mode there was afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
