"""The self-check: rows against the model's own padded forward, log-probabilities and gradients, before any training.

Rows depend on private agreements of transformers; if one breaks, log-probabilities are off by nats without a warning.
Correct rows differ from padding by rounding, which a model amplifies. So the tolerance is measured: the padded forward
again, with every module's output moved by one rounding. Above the effect of another prompt it would hide mistakes.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.rnn import pad_sequence
from torch.utils.hooks import RemovableHandle

from dppo.packing.attention import sliding_layers
from dppo.packing.forward import row_log_probs
from dppo.packing.kernels import Kernel
from dppo.packing.rows import UNSCORED, Segments, build_row

PROMPT_TOKENS, COMPLETION_TOKENS = (5, 9), (4, 7, 1, 6)
WIDTH = max(COMPLETION_TOKENS)
HALF = (torch.bfloat16, torch.float16)
NUDGES, TIMES_NOISE = 2, 2.0
"""Measurements of rounding, and the tolerance over the largest change found. Correct rows stayed below 0.6 of that
change, with every instruction set and model tried: docs/log.md, 2026-11-21."""
LOGP_FLOOR, GRADIENT_FLOOR, HALF_GRADIENT_FLOOR = 1e-4, 1e-3, 0.1
"""Smallest tolerances: nats, and relative differences of gradients."""
HEAD_ROUNDINGS = 8.0
"""Tolerance of the head in roundings of the largest logit: two for logit and sum, and room for sums in other orders."""
HEAD_FLOOR = 1e-2
"""Smallest tolerance of the head in nats: TRL's kernel on a GPU may multiply float32 in fewer bits than the model."""
MATMUL_EPS = {"tf32": 2.0**-10, "bf16": 2.0**-7}
"""Spacing beside 1 of the numbers that torch may round float32 factors to, by its precision setting."""


@dataclass(frozen=True, kw_only=True)
class LayoutCheck:
    """Log-probabilities, and gradients if compared, against the model's padded forward: two prompts, twice each."""

    logp_difference: float
    """Largest absolute difference of a token's log-probability, in nats."""
    logp_tolerance: float
    gradient_difference: float | None = None
    """Norm of the difference over the norm, of the gradient of token embeddings; None if not compared."""
    gradient_tolerance: float = 0.0
    logp_control: float = math.inf
    """Effect of another prompt on the padded forward: the difference of log-probabilities, and that of gradients."""
    gradient_control: float = 0.0
    windows_missing: int = 0
    """Layers whose sliding window does not reach attention. The compared sequences are too short to show it."""

    @property
    def passed(self) -> bool:
        """True if both are within tolerance, no window is missing, and the check is not blind; NaN is not within."""
        logp = self.logp_difference <= self.logp_tolerance
        gradient = (self.gradient_difference or 0.0) <= self.gradient_tolerance
        return logp and gradient and not self.windows_missing and not self.blind

    @property
    def blind(self) -> bool:
        """True if rounding hides mistakes: a quarter of the effect of another prompt is within tolerance."""
        gradient = self.gradient_control / 4 <= self.gradient_tolerance
        return self.logp_control / 4 <= self.logp_tolerance and gradient

    def __str__(self) -> str:
        windows = f"{self.windows_missing} sliding windows do not reach attention; " if self.windows_missing else ""
        hidden = f"rounding hides mistakes: another prompt changes {self.logp_control:.1e} nats; " if self.blind else ""
        logp = f"log-probabilities differ by {self.logp_difference:.1e} nats (tolerance {self.logp_tolerance:.1e})"
        gradient = "not compared"
        if self.gradient_difference is not None:
            gradient = f"{self.gradient_difference:.1e} relative (tolerance {self.gradient_tolerance:.1e})"
        return f"{windows}{hidden}{logp}, gradients: {gradient}"


def check_rows(model: Any, *, temperature: float, kernel: Kernel) -> LayoutCheck:
    """Compare rows with the model's padded forward; tolerances grow with the rounding that the model amplifies.

    Rounding is the largest difference between one padded batch, one sequence at a time, and the batch with nudged
    outputs. Gradients are compared if they are enabled: a sharded model is checked under ``torch.no_grad()``. The model
    has ``use_rows`` and a fused or scored head; its mode and gradients stay as they were.
    """
    prompts, completions = _sequences(model)
    half = _dtype(model) in HALF
    windows: list[int | None] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scale: float | None, window: int | None) -> Tensor:
        windows.append(window)
        return kernel.attend(q, k, v, segments, scale, window)

    def rows() -> Tensor:
        row = build_row(prompts, completions, [0, 0, 1, 1])
        return row_log_probs(model, row, WIDTH, kernel=replace(kernel, attend=attend))[0]

    def padded(prompts: list[Tensor] = prompts, completions: list[Tensor] = completions) -> Tensor:
        # In half precision a model rounds its logits and a float32 head does not: no matter of the layout.
        return _log_probs(model, prompts, completions, None if half else temperature)[0]

    with _evaluating(model):
        wanted_NT, wanted = _with_embedding_gradient(model, padded)

        def difference(forward: Callable[[], Tensor]) -> tuple[float, float]:
            """Largest absolute difference of log-probabilities, and the relative one of gradients, 0 if disabled."""
            logp_NT, gradient = _with_embedding_gradient(model, forward)
            off = 0.0 if wanted is None or gradient is None else float((gradient - wanted).norm() / wanted.norm())
            return float((logp_NT - wanted_NT).abs().max()), off

        logp, gradient = difference(rows)
        control = difference(partial(padded, prompts[2:] + prompts[:2]))
        noise = [difference(lambda: torch.cat([padded([p], [c]) for p, c in zip(prompts, completions, strict=True)]))]
        for seed in range(NUDGES):
            with _nudged(model, seed):
                noise.append(difference(padded))
    floor = HALF_GRADIENT_FLOOR if half else GRADIENT_FLOOR
    return LayoutCheck(
        logp_difference=logp,
        logp_tolerance=max(LOGP_FLOOR, TIMES_NOISE * max(n for n, _ in noise)),
        gradient_difference=gradient if torch.is_grad_enabled() else None,
        gradient_tolerance=max(floor, TIMES_NOISE * max(n for _, n in noise)),
        logp_control=control[0],
        gradient_control=control[1],
        windows_missing=max(0, sliding_layers(model) - sum(window is not None for window in windows)),
    )


def _sequences(model: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Four prompts, two and two alike, and four completions, of random tokens."""
    draws = torch.Generator().manual_seed(0)
    weight = model.get_input_embeddings().weight
    drawn = [torch.randint(weight.shape[0], (size,), generator=draws) for size in PROMPT_TOKENS + COMPLETION_TOKENS]
    first, second, *completions = (tokens.to(weight.device) for tokens in drawn)
    return [first, first, second, second], completions


def _log_probs(
    model: Any, prompts: list[Tensor], completions: list[Tensor], temperature: float | None
) -> tuple[Tensor, float]:
    """(N, WIDTH) log-probabilities by the padded forward, and the largest logit over the temperature."""
    sequences = [torch.cat(pair) for pair in zip(prompts, completions, strict=True)]
    ids, mask = (pad_sequence(each, batch_first=True) for each in (sequences, [torch.ones_like(s) for s in sequences]))
    inputs = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    if temperature is None:  # by the head that rows use, which divides by its own and gives no logits
        labels = pad_sequence([s[1:] for s in sequences], batch_first=True, padding_value=UNSCORED)
        output = model(**inputs, shift_labels=F.pad(labels, (0, 1), value=UNSCORED), fused_lm_head=True)
        logp_NT, largest = output.log_probs.float(), math.nan
    else:
        logits = model(**inputs).logits.float() / temperature
        logp_NT = logits[:, :-1].log_softmax(2).gather(2, ids[:, 1:, None])[..., 0]
        largest = float(logits.detach()[mask.bool()].abs().max())
    parts = zip(logp_NT, prompts, completions, strict=True)
    return torch.stack([F.pad(row[len(p) - 1 :][: len(c)], (0, WIDTH - len(c))) for row, p, c in parts]), largest


def _with_embedding_gradient(model: Any, forward: Callable[[], Tensor]) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities, and the gradient of their weighted sum with respect to each token's embedding."""
    inputs: list[tuple[Tensor, Tensor]] = []

    def capture(_module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        inputs.append((args[0], output.detach().requires_grad_(torch.is_grad_enabled())))
        return inputs[-1][1]

    # Gradients of embeddings have passed through every layer, and computing them touches no parameter's ``.grad``.
    embeddings = model.get_input_embeddings()
    with embeddings.register_forward_hook(capture):
        logp_NT = forward()
    if not torch.is_grad_enabled():
        return logp_NT.detach(), None
    weight_NT = torch.linspace(-1, 1, logp_NT.numel(), device=logp_NT.device).view_as(logp_NT)
    with torch.autocast(logp_NT.device.type, enabled=False):  # as in training: a backward pass is not autocast
        gradients = torch.autograd.grad((logp_NT * weight_NT).sum(), [output for _, output in inputs])
    sums = torch.zeros(embeddings.weight.shape[0], gradients[0].shape[-1], device=logp_NT.device)
    for (ids, _), gradient in zip(inputs, gradients, strict=True):
        sums.index_add_(0, ids.flatten(), gradient.flatten(0, -2).float())
    return logp_NT.detach(), sums


def _nudged(model: Any, seed: int) -> RemovableHandle:
    """Add -1, 0 or 1 rounding error at random to the output of each innermost module until the handle is removed."""
    draws = torch.Generator().manual_seed(seed)  # on the CPU, so that every device draws the same
    roundoff = _rounding(model)

    def nudge(module: Any, _args: Any, output: Any) -> Any:
        outer = next(module.children(), None) is not None
        if outer or not isinstance(output, Tensor) or not output.is_floating_point():
            return output
        direction = torch.randint(-1, 2, output.shape, generator=draws).to(output)
        return output + output * direction * roundoff  # as a factor, 1 + roundoff would itself be rounded to 1

    return register_module_forward_hook(nudge)


def _rounding(model: Any) -> float:
    """Relative rounding error of one product of the model."""
    dtype, device = _dtype(model), model.get_input_embeddings().weight.device.type
    if dtype in HALF:
        return torch.finfo(dtype).eps / 2  # sums are float32, and their result is rounded once
    backend: Any = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    precision = getattr(getattr(backend, "matmul", None), "fp32_precision", "") if dtype == torch.float32 else ""
    # Sums are rounded as they grow, and by a setting of torch factors are rounded too.
    return max(4 * torch.finfo(dtype).eps, MATMUL_EPS.get(precision, 0.0))


def _dtype(model: Any) -> torch.dtype:
    """The dtype of the model's arithmetic: autocast's if it is on, else the coarser of embeddings and head."""
    weights = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
    device = weights[0].device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return max((w.dtype for w in weights if w.is_floating_point()), key=lambda dtype: torch.finfo(dtype).eps)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Put the model into evaluation mode, and each module back into its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@torch.no_grad()
def check_head(model: Any, *, temperature: float) -> LayoutCheck:
    """Compare the fused or scored head, on padded sequences, with the logits of the model's own forward.

    A model with a layer behind its last hidden states, or with scaled logits, has other log-probabilities. Then the
    reference of ``check_rows`` is wrong too.
    """
    prompts, completions = _sequences(model)
    with _evaluating(model):
        own, largest = _log_probs(model, prompts, completions, temperature)
        found, _ = _log_probs(model, prompts, completions, None)
    return LayoutCheck(
        logp_difference=float((found - own).abs().max()),
        logp_tolerance=max(HEAD_FLOOR, HEAD_ROUNDINGS * _rounding(model) * largest),
    )


def problem_of(check: Callable[..., LayoutCheck], model: Any, **options: Any) -> str:
    """The problem that ``check_head`` or ``check_rows`` finds, or ""; memory that runs out stays an error."""
    try:
        found = check(model, **options)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # unexpected inputs make a forward fail in any way
        return f"{type(error).__name__}: {error}"
    return "" if found.passed else str(found)
