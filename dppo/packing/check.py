"""The self-check: the model's own padded forward against rows, log-probabilities and gradients, before anything trains.

Rows depend on private agreements of transformers (that keyword arguments reach attention, that a 4-D mask is passed on
as it is). Where one breaks, log-probabilities are off by nats without a warning; this check turns that into metrics.

How far right rows may be from padding is a property of the model, not of the machine: two right ways to compute the
same thing differ by rounding, and a model amplifies rounding by what its weights and its temperature make of it. So
the tolerance is measured: the padded forward again, with what every module returns moved by one rounding up or down.
And what it must not hide is measured too: what another prompt changes. Beside that, a tolerance is small or useless.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dppo.packing.attention import sliding_layers
from dppo.packing.forward import row_log_probs
from dppo.packing.kernels import Kernel
from dppo.packing.rows import UNSCORED, Segments, build_row

PROMPT_TOKENS = (5, 9)
COMPLETION_TOKENS = ((4, 7), (1, 6))
WIDTH = 7
"""Tokens of the longest completion."""
HALF = (torch.bfloat16, torch.float16)
NUDGES, TIMES_NOISE = 2, 2.0
"""How often rounding is measured, and how far beyond the largest change seen a difference may be. Right rows stayed
below 0.6 of the change itself, with every instruction set and model tried: docs/log.md, 2026-11-21."""
LOGP_FLOOR, GRADIENT_FLOOR, HALF_GRADIENT_FLOOR = 1e-4, 1e-3, 0.1
"""What is tolerated however little a model amplifies: nats, and the relative difference of gradients."""
HEAD_ROUNDINGS = 8.0
"""Roundings of the largest logit that the head's log-probabilities may be off: two of them for the logit and the sum
that it is taken from, and room for sums in another order."""
HEAD_FLOOR = 1e-2
"""Nats that a head may be off in any case: TRL's kernel on a GPU may multiply float32 in fewer bits than the model."""
MATMUL_EPS = {"tf32": 2.0**-10, "bf16": 2.0**-7}
"""Spacing, beside 1, of the numbers that float32 factors are rounded to where torch is told to."""


@dataclass(frozen=True, kw_only=True)
class LayoutCheck:
    """Rows against padding on two prompts with two completions each."""

    logp_difference: float
    """Largest absolute difference of a token's log-probability, in nats."""
    logp_tolerance: float
    gradient_difference: float | None
    """Norm of the difference over the norm, of the gradient of token embeddings; None where not computed."""
    gradient_tolerance: float
    logp_control: float = math.inf
    """What the other prompt changes in padded log-probabilities, in nats."""
    gradient_control: float | None = None
    """What the other prompt changes in padded gradients, relative; None where not computed."""
    windows_missing: int = 0
    """Layers with a sliding window that rows are not told of: it is in the mask alone, which rows replace."""

    @property
    def passed(self) -> bool:
        """Whether both are within tolerance, and the check is not blind; NaN is not within."""
        if self.windows_missing or self.blind:  # sequences of the check are too short to show a window
            return False
        return self._tolerated(self.logp_difference, self.gradient_difference)

    @property
    def blind(self) -> bool:
        """Whether rounding hides mistakes: a quarter of what another prompt changes would be within tolerance."""
        gradient = self.gradient_control
        return self._tolerated(self.logp_control / 4, None if gradient is None else gradient / 4)

    def _tolerated(self, logp: float, gradient: float | None) -> bool:
        return logp <= self.logp_tolerance and (gradient is None or gradient <= self.gradient_tolerance)

    def __str__(self) -> str:
        gradient = "not compared" if self.gradient_difference is None else f"{self.gradient_difference:.1e} relative"
        notes = [f"{self.windows_missing} sliding windows do not reach attention; "] if self.windows_missing else []
        if self.blind:
            notes += [f"rounding hides mistakes: another prompt changes {self.logp_control:.1e} nats; "]
        return "".join(notes) + (
            f"log-probabilities differ by {self.logp_difference:.1e} nats (tolerance {self.logp_tolerance:.1e}), "
            f"gradients: {gradient} (tolerance {self.gradient_tolerance:.1e})"
        )


def check_rows(model: Any, *, temperature: float, kernel: Kernel) -> LayoutCheck:
    """Compare rows with the model's padded forward; tolerances grow with the rounding that the model amplifies.

    That is the largest of the differences between one padded batch, one sequence at a time, and the batch with every
    module's output nudged. Gradients are compared where gradients are enabled; call it under ``torch.no_grad()`` on
    models that cannot be differentiated outside of a training step, such as sharded ones.
    The model comes after ``use_rows``, with a fused or scored head; its mode and gradients are left as they were.
    """
    prompts, completions = _sequences(model)
    half = _dtype(model) in HALF
    score = _padded_by_head if half else _padded
    windows: list[int] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scale: float | None, window: int | None) -> Tensor:
        windows.extend([] if window is None else [window])
        return kernel.attend(q, k, v, segments, scale, window)

    def rows() -> Tensor:
        row = build_row(prompts, completions, [0, 0, 1, 1])
        return row_log_probs(model, row, WIDTH, kernel=replace(kernel, attend=attend))[0]

    def one_at_a_time() -> Tensor:
        parts = [score(model, [p], [c], temperature) for p, c in zip(prompts, completions, strict=True)]
        return torch.cat([F.pad(part, (0, WIDTH - part.shape[1])) for part in parts])

    padded = partial(score, model, prompts, completions, temperature)
    with _evaluating(model):
        wanted = _with_embedding_gradient(model, padded)

        def difference(forward: Callable[[], Tensor]) -> tuple[float, float | None]:
            return _difference(_with_embedding_gradient(model, forward), wanted)

        logp, gradient = difference(rows)
        control = difference(partial(score, model, prompts[2:] + prompts[:2], completions, temperature))
        noise = [difference(one_at_a_time)]
        for seed in range(NUDGES):
            with _nudged(model, seed):
                noise.append(difference(padded))
    return LayoutCheck(
        logp_difference=logp,
        logp_tolerance=max(LOGP_FLOOR, TIMES_NOISE * max(n for n, _ in noise)),
        gradient_difference=gradient,
        gradient_tolerance=max(
            HALF_GRADIENT_FLOOR if half else GRADIENT_FLOOR, TIMES_NOISE * max(n or 0.0 for _, n in noise)
        ),
        logp_control=control[0],
        gradient_control=control[1],
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
    return _padded_logits(model, prompts, completions, temperature)[0]


def _padded_logits(
    model: Any, prompts: list[Tensor], completions: list[Tensor], temperature: float
) -> tuple[Tensor, float]:
    """The same, and the largest logit, divided by the temperature."""
    ids, mask = _padded_inputs(prompts, completions)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float() / temperature
    logp_NT = logits[:, :-1].log_softmax(2).gather(2, ids[:, 1:, None])[..., 0]
    return _of_completions(logp_NT, prompts, completions), float(logits.detach()[mask.bool()].abs().max())


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


def _with_embedding_gradient(model: Any, forward: Callable[[], Tensor]) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities, and the gradient of their weighted sum with respect to each token's embedding.

    Gradients of embeddings have passed through every layer, and taking them touches no parameter's ``.grad``.
    """
    inputs: list[tuple[Tensor, Tensor]] = []

    def capture(_module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        inputs.append((args[0], output.detach().requires_grad_(torch.is_grad_enabled())))
        return inputs[-1][1]

    embeddings = model.get_input_embeddings()
    with embeddings.register_forward_hook(capture):
        logp_NT = forward()
    if not torch.is_grad_enabled():
        return logp_NT.detach(), None
    weight_NT = torch.linspace(-1, 1, logp_NT.shape[0] * WIDTH, device=logp_NT.device).view(-1, WIDTH)
    with torch.autocast(logp_NT.device.type, enabled=False):  # as training does: a backward pass is not autocast
        gradients = torch.autograd.grad((logp_NT * weight_NT).sum(), [output for _, output in inputs])
    sums = torch.zeros(embeddings.weight.shape[0], gradients[0].shape[-1], device=logp_NT.device)
    for (ids, _), gradient in zip(inputs, gradients, strict=True):
        sums.index_add_(0, ids.flatten(), gradient.flatten(0, -2).float())
    return logp_NT.detach(), sums


def _difference(
    found: tuple[Tensor, Tensor | None], wanted: tuple[Tensor, Tensor | None]
) -> tuple[float, float | None]:
    """Largest absolute difference of log-probabilities, and the relative one of gradients where there are any."""
    logp = float((found[0] - wanted[0]).abs().max())
    if found[1] is None or wanted[1] is None:
        return logp, None
    return logp, float((found[1] - wanted[1]).norm() / wanted[1].norm())


@contextmanager
def _nudged(model: Any, seed: int) -> Iterator[None]:
    """Everything that a module without modules in it returns is rounded once more: up, down or not, at random."""
    draws = torch.Generator().manual_seed(seed)  # on the CPU, so that every device draws the same
    roundoff = _rounding(model)

    def nudge(_module: Any, _args: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return output
        direction = torch.randint(-1, 2, output.shape, generator=draws).to(output)
        return output + output * direction * roundoff  # as a factor, 1 + roundoff would itself be rounded to 1

    with ExitStack() as hooks:
        for module in model.modules():
            if next(module.children(), None) is None:
                hooks.enter_context(module.register_forward_hook(nudge))
        yield


def _rounding(model: Any) -> float:
    """How far, relative, rounding may move one product of the model.

    In half precision, half the spacing of numbers beside 1: sums are float32, and their result is rounded once. In
    float32 the sums are rounded as they grow, and factors too where torch is told to: a few spacings stand for that.
    """
    dtype, device = _dtype(model), model.get_input_embeddings().weight.device.type
    if dtype in HALF:
        return torch.finfo(dtype).eps / 2
    backend: Any = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    told = getattr(getattr(backend, "matmul", None), "fp32_precision", "") if dtype == torch.float32 else ""
    return max(4 * torch.finfo(dtype).eps, MATMUL_EPS.get(told, 0.0))


def _dtype(model: Any) -> torch.dtype:
    """What the model computes in: that of autocast where it is on, otherwise the coarser of embeddings and head."""
    weights = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
    device = weights[0].device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return max((w.dtype for w in weights if w.is_floating_point()), key=lambda dtype: torch.finfo(dtype).eps)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode, and the mode there was afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@dataclass(frozen=True, kw_only=True)
class HeadCheck:
    """Log-probabilities by the head alone against those of the model's own logits, in nats."""

    difference: float
    """Largest absolute one."""
    tolerance: float
    """What rounding of logits of this size, in what the model computes in, can make of it."""

    @property
    def passed(self) -> bool:
        """Whether it is within; NaN is not."""
        return self.difference <= self.tolerance

    def __str__(self) -> str:
        return f"{self.difference:.2g} nats from those of its own logits (rounding explains {self.tolerance:.2g})"


@torch.no_grad()
def check_head(model: Any, *, temperature: float) -> HeadCheck:
    """Compare the fused or scored head, on padded sequences, with the logits of the model's own forward.

    Layouts take a linear head on the last hidden states. A model with a layer between them, or with logits scaled in a
    way nobody knows of, has other log-probabilities: then nothing that layouts are compared with is right either.
    """
    prompts, completions = _sequences(model)
    with _evaluating(model):
        own, largest = _padded_logits(model, prompts, completions, temperature)
        found = _padded_by_head(model, prompts, completions, temperature)
    return HeadCheck(
        difference=float((found - own).abs().max()),
        tolerance=max(HEAD_FLOOR, HEAD_ROUNDINGS * _rounding(model) * largest),
    )
