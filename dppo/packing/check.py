"""The self-check: the model's own padded forward against rows, log-probabilities and gradients, before anything trains.

Rows depend on private agreements of transformers (that keyword arguments reach attention, that a 4-D mask is passed on
as it is). Where one breaks, log-probabilities are off by nats without a warning; this check turns that into figures.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dppo.packing.forward import row_log_probs
from dppo.packing.kernels import Kernel
from dppo.packing.rows import build_row

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

    @property
    def passed(self) -> bool:
        """Whether both are within tolerance; NaN is not."""
        gradient = self.gradient_difference
        return self.logp_difference <= self.logp_tolerance and (gradient is None or gradient <= self.gradient_tolerance)

    def __str__(self) -> str:
        gradient = "not compared" if self.gradient_difference is None else f"{self.gradient_difference:.1e} relative"
        return (
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
    weight_NT = torch.linspace(-1, 1, 4 * 7, device=prompts[0].device).view(4, 7)

    def rows() -> Tensor:
        row = build_row(prompts, completions, [0, 0, 1, 1])
        return row_log_probs(model, row, 7, kernel=kernel)[0]

    def padded() -> Tensor:
        return _padded(model, prompts, completions, temperature)

    def one_at_a_time() -> Tensor:
        parts = [_padded(model, [p], [c], temperature) for p, c in zip(prompts, completions, strict=True)]
        return torch.cat([torch.nn.functional.pad(part, (0, 7 - part.shape[1])) for part in parts])

    with _evaluating(model):
        (logp, grad), (row_logp, row_grad), (one_logp, one_grad) = (
            _with_embedding_gradient(model, forward, weight_NT) for forward in (padded, rows, one_at_a_time)
        )
    half = _dtype(model) in HALF
    difference = None
    gradient_noise = 0.0
    if grad is not None and row_grad is not None and one_grad is not None:
        difference, gradient_noise = _relative(row_grad, grad), _relative(one_grad, grad)
    return LayoutCheck(
        logp_difference=float((row_logp - logp).abs().max()),
        logp_tolerance=max(0.1 if half else 1e-4, TIMES_NOISE * float((one_logp - logp).abs().max())),
        gradient_difference=difference,
        gradient_tolerance=max(0.1 if half else 1e-3, TIMES_NOISE * gradient_noise),
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
    sequences = [torch.cat(pair) for pair in zip(prompts, completions, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    lengths = torch.tensor([len(s) for s in sequences], device=ids.device)
    mask = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float() / temperature
    logp_NT = logits[:, :-1].log_softmax(2).gather(2, ids[:, 1:, None])[..., 0]
    parts = [row[len(p) - 1 : len(p) - 1 + len(c)] for row, p, c in zip(logp_NT, prompts, completions, strict=True)]
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
