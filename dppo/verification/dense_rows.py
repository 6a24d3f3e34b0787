"""Dense rows against padding on a given model, and wrong layouts that the check must find."""

import copy

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel
from trl.trainer.utils import add_fused_lm_head

from dppo.packing import SEGMENT_SDPA, Kernel, Segments
from dppo.packing.attention import unsupported, unwrapped, use_rows
from dppo.packing.check import LayoutCheck, check_rows
from dppo.packing.head import add_scored_head, unsupported_head
from dppo.packing.kernels import by_segment, segment_sdpa
from dppo.verification.tiny_model import build_model


def padded_because(model: PreTrainedModel) -> str:
    """The reason why a model cannot use rows, so that its training is padded; "" if it can."""
    return unsupported(unwrapped(model))


def served_model(model: PreTrainedModel) -> tuple[str, PreTrainedModel]:
    """Name and model to check rows on: the model, or a tiny one if the model cannot use rows."""
    return ("a tiny Qwen3", build_model(0)) if padded_because(model) else ("the model", model)


def rows_against_padding(model: PreTrainedModel, *, temperature: float, kernel: Kernel = SEGMENT_SDPA) -> LayoutCheck:
    """Compare log-probabilities and gradients by rows and by padding; the model is left unchanged."""
    # A copy, since rows replace the model's attention and head; of everything but the weights, which may be large.
    prepared = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    base = unwrapped(prepared)
    use_rows(base)
    if unsupported_head(base):
        add_fused_lm_head(base, temperature=temperature)
    else:
        add_scored_head(base, temperature=temperature)
    return check_rows(prepared, temperature=temperature, kernel=kernel)


def wrong_kernels() -> dict[str, Kernel]:
    """Kernels with a likely mistake, by its description."""
    return {
        "masks aligned at the top left": Kernel(name="top left", attend=_top_left),
        "a row taken for one sequence": Kernel(name="one sequence", attend=_one_sequence),
    }


def _top_left(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """``is_causal`` with fewer queries than keys: the first query attends to the first key only."""
    parts = by_segment(query, key, value, segments)
    return torch.cat([F.scaled_dot_product_attention(*part, is_causal=True, scale=scale) for part in parts], 2)


def _one_sequence(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None, window: int | None
) -> Tensor:
    """Every token attends to all tokens before it, those of other completions too."""
    return segment_sdpa(query, key, value, Segments(length_S=(segments.total,), trunk_S=(-1,)), scale, None)
