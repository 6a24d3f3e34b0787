"""TRL's figures of a step (``entropy``, ``kl``, ``clip_ratio/*``, ...), estimated from the completions kept."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from trl.trainer.utils import nanmax, nanmin

from dppo.methods import Method
from dppo.objective import (
    Tokens,
    cispo,
    clipped_surrogate,
    clipped_tokens,
    off_policy_masked,
    sequence_ratio,
    vespo,
    weighted_sum,
)
from dppo.objective.losses import vespo_weight
from dppo.trl.metrics import WeightedSums

OF_KEPT = {"entropy", "kl", "vespo/phi_seq_mean", "aux_loss"}
"""Means over completions kept, each by its weight: they estimate the mean over all that have a gradient. The others are
shares of all tokens, or completions, of the full batch: one without an advantage is never clipped."""


class LossFigures:
    """Collects the figures of one optimizer step, which do not depend on how its completions fall into calls."""

    def __init__(self, method: Method) -> None:
        loss = method.token_loss
        if isinstance(loss, partial) and loss.func is off_policy_masked:
            loss = loss.keywords["loss"]
        self._loss, self._constants = (loss.func, loss.keywords) if isinstance(loss, partial) else (loss, {})
        self._method, self._sums = method, WeightedSums()
        self._units: dict[str, str] = {}
        self._clipped_shares: list[Tensor] = []

    @torch.no_grad()
    def add(
        self,
        tokens: Tokens,
        weight_B: Tensor,
        entropy_BT: Tensor | None,
        router_loss: Tensor | None,
        attended_B: Tensor,
    ) -> None:
        """Add a micro-batch.

        Args:
            tokens: of it.
            weight_B: (B,) weights of its completions.
            entropy_BT: (B, T) nats; None in steps that are not logged.
            router_loss: () of the weighted tokens, times the sum of their weights; None where there is none.
            attended_B: (B,) tokens of each prompt and completion together.
        """
        values = self._clipping(tokens, weight_B) | ({} if entropy_BT is None else {"entropy": entropy_BT})
        if self._method.beta:
            values["kl"] = self._method.kl(tokens)
        self._units |= {name: self._unit(name) for name in values}
        counts = {"kept tokens": torch.ones_like(tokens.logp_BT), "kept sequences": torch.ones_like(weight_B)[:, None]}
        for name, value in (values | counts).items():
            self._sums.add(name, value, tokens.mask_BT, weight_B)
        if self._method.entropy_coef:  # the loss that is logged has the bonus in it
            per_sequence = self._method.normaliser.per_sequence
            loss = weighted_sum(self._method.loss(tokens), tokens.mask_BT, weight_B, per_sequence=per_sequence)
            self._sums.add("policy_loss", loss.view(1, 1), tokens.mask_BT, weight_B.new_ones(1))
        if router_loss is not None:
            self._units["aux_loss"] = "attended"
            self._sums.add("aux_loss", router_loss.view(1, 1), tokens.mask_BT, weight_B.new_ones(1))
            self._sums.add("kept attended", attended_B[:, None], tokens.mask_BT, weight_B)

    def _clipping(self, tokens: Tokens, weight_B: Tensor) -> dict[str, Tensor]:
        """What the loss cuts off, (B, T) or (B, 1) each."""
        constants = self._constants
        if self._loss is clipped_surrogate:
            low, high = clipped_tokens(tokens, **{key: constants[key] for key in ("ratio", "clip_low", "clip_high")})
            counted_B1 = tokens.mask_BT.sum(1, keepdim=True).clamp(min=1)
            each = [
                x if x.shape[1] == 1 else (x * tokens.mask_BT).sum(1, keepdim=True) / counted_B1 for x in (low, high)
            ]
            self._clipped_shares.append(torch.cat(each, 1)[weight_B > 0].float())
            return {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low | high}
        if self._loss is cispo:
            clipped = constants["ratio"](tokens) > constants["ratio_max"]
            return {"cispo_clip_ratio": clipped & (tokens.advantage_B[:, None] > 0)}
        return {"vespo/phi_seq_mean": vespo_weight(tokens, **constants)} if self._loss is vespo else {}

    def _unit(self, name: str) -> str:
        """What a figure is a mean over. Its shape does not tell: completions may all be one token long."""
        of_sequences = self._loss is vespo or self._constants.get("ratio") is sequence_ratio
        return "sequences" if of_sequences and name not in ("entropy", "kl") else "tokens"

    def reduced(self, accelerator: Any, *, tokens: float, sequences: float, denominator: float) -> dict[str, float]:
        """The figures over all ranks. All ranks call together.

        Args:
            accelerator: of the run.
            tokens: of the full batch in this step, those of dropped completions included. Where it has none, figures
                are 0 as in TRL; where only what is forwarded has none, they are not known.
            sequences: the same in completions.
            denominator: of this step's share of the loss.
        """
        sums = self._sums.reduced(accelerator)
        totals = {"tokens": tokens, "sequences": sequences}
        found = {}
        if self._method.entropy_coef:
            found |= {"entropy_coef": self._method.entropy_coef, "policy_loss": sums["policy_loss"] / denominator}
        for name, unit in self._units.items():
            total = sums[f"kept {unit}"] if name in OF_KEPT else totals[unit]
            found[name] = sums[name] / total if total > 0 else float("nan") if tokens else 0.0
        if self._clipped_shares:
            share_B2 = torch.cat(self._clipped_shares)
            none = share_B2.new_full((2,), torch.nan)  # a rank may have no completion to forward
            ends = torch.stack([share_B2[:, 0].min(), share_B2[:, 1].max()]) if len(share_B2) else none
            ends_of_ranks = accelerator.gather(ends[None])
            found |= {
                "clip_ratio/low_min": nanmin(ends_of_ranks[:, 0]).item(),
                "clip_ratio/high_max": nanmax(ends_of_ranks[:, 1]).item(),
            }
        return found
