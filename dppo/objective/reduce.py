"""A weighted sum of token losses over a denominator that was fixed before pruning; and weights of pairs."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dppo.errors import ShapeError
from dppo.typed import check_range


@dataclass(frozen=True, slots=True, kw_only=True)
class Normaliser:
    """Denominator of a sum of losses, and whether pruning of prompts leaves it exact."""

    name: str
    """TRL's ``loss_type`` with this denominator."""
    per_sequence: bool
    """True if a completion's token sum is first divided by its own number of tokens."""
    denominator: Callable[[int, float, int], float]
    """From sequences, loss tokens and the longest allowed completion of an optimizer step, before pruning."""
    prompt_exact: bool
    """True if the denominator is known although pruned prompts are never rolled out."""
    counts_tokens: bool = False
    """True if the denominator is a number of tokens: if prompts are pruned, the expected one of all candidates."""
    reason: str = ""
    """Why it is not exact under prompt pruning, one sentence; empty if it is."""


def weighted_sum(
    loss_BT: Tensor, mask_BT: Tensor, weight: Tensor, *, per_sequence: bool, counted_B: Tensor | None = None
) -> Tensor:
    """() weighted sum of completions' token sums, ``sum_i w_i sum_t loss_it``, with its gradient.

    Divide it by a denominator fixed before pruning: a division by what survived is a biased ratio of two random
    numbers. The weight multiplies the whole loss of a completion, so pass policy and KL terms added.

    ``loss_BT`` (B, T) is the loss per token, ignored at masked tokens, NaN included. ``weight`` (B,) is one over the
    probability of having been kept, 0 if dropped; (B, T) if tokens are drawn too. ``per_sequence`` divides each
    token sum by the completion's own tokens (at least 1) first: ``counted_B`` (B,) if tokens are drawn.
    """
    if mask_BT.shape != loss_BT.shape or weight.shape not in (loss_BT.shape, loss_BT.shape[:1]):
        shapes = f"loss {tuple(loss_BT.shape)}, mask {tuple(mask_BT.shape)} and weight {tuple(weight.shape)}"
        raise ShapeError(f"{shapes} do not match: expected (B, T), (B, T) and (B,).")
    carried_BT, weight = loss_BT.masked_fill(mask_BT == 0, 0.0), weight.to(loss_BT)
    by_token = weight.dim() == 2
    sum_B = (carried_BT * weight if by_token else carried_BT).sum(1)
    if per_sequence:
        sum_B = sum_B / ((mask_BT != 0).sum(1) if counted_B is None else counted_B).clamp(min=1)
    return (sum_B if by_token else sum_B * weight).sum()


def margin_weights(
    margin_B: Tensor, *, centre: float, scale: float, lowest: float = 0.2, highest: float = 1.8
) -> Tensor:
    """(B,) weights of preference pairs, ``clip(2 * sigmoid(-(margin - centre) / scale), lowest, highest)``.

    ``margin_B`` is the reward of the preferred answer less the other's, any unit. The weight is 1 at ``centre`` and
    larger below it. ``scale`` is > 0, ``lowest`` in (0, 1] and ``highest`` >= 1, else a ``ConfigError``.

    Source: in the style of Margin-Adaptive DPO (arXiv:2510.05342), whose own formula could not be seen.
    """
    ranges = {"scale": (scale, "(0, inf]"), "lowest": (lowest, "(0, 1]"), "highest": (highest, "[1, inf]")}
    for name, (value, allowed) in ranges.items():
        check_range("margin_weights", name, value, allowed, "scale=1.0, lowest=0.2, highest=1.8")
    return (2 * torch.sigmoid(-(margin_B - centre) / scale)).clamp(lowest, highest)


# Functions by name, so that methods can be pickled.


def _sequences(sequences: int, tokens: float, max_tokens: int) -> float:
    return float(sequences)


def _tokens(sequences: int, tokens: float, max_tokens: int) -> float:
    return max(float(tokens), 1.0)


def _longest(sequences: int, tokens: float, max_tokens: int) -> float:
    return float(sequences * max_tokens)


GRPO_MEAN = Normaliser(name="grpo", per_sequence=True, denominator=_sequences, prompt_exact=True)
LUSPO = replace(GRPO_MEAN, name="luspo", per_sequence=False)
DR_GRPO = replace(LUSPO, name="dr_grpo", denominator=_longest)
DAPO_TOKENS = replace(LUSPO, name="dapo", denominator=_tokens, counts_tokens=True)
BNPO = replace(DAPO_TOKENS, name="bnpo")

NORMALISERS = {each.name: each for each in (GRPO_MEAN, DR_GRPO, DAPO_TOKENS, BNPO, LUSPO)}
"""By TRL's ``loss_type``. ``bnpo`` divides by all tokens of the step here, as TRL does with one micro-batch."""
