"""TRL's metrics of trainers on rows: weighted means over the rows of an optimizer step."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

OF_TOKENS = ("entropy", "mean_token_accuracy")
"""TRL's metrics of tokens. The head computes them in steps that are logged, or in all if that is free."""


class RowMetrics:
    """Metrics of one optimizer step. Sums stay on the device until its end, so that nothing waits for them.

    Args:
        counts: by metric, (N,) units of each row that its mean is over, dropped rows included: tokens, or 1.
        call_N: (N,) int64 micro-batch of TRL's loader; those of equal number on all ranks are one.
        weight_N: (N,) weights of the draw, 0 for rows that are dropped. If all are, there is no metric.
        place_B: row, among the N, of each sequence of this rank.
        device: of the sums.
        sums: further metrics, of which only ``add_sum`` adds.
    """

    def __init__(
        self,
        counts: Mapping[str, Tensor],
        call_N: Tensor,
        weight_N: Tensor,
        place_B: list[int],
        device: torch.device,
        sums: Iterable[str] = (),
    ) -> None:
        factors = {name: mean_factors(count_N, call_N, weight_N)[place_B] for name, count_N in counts.items()}
        self._factor = {name: factor_B.float().to(device) for name, factor_B in factors.items()}
        names = [*counts, *sums] if weight_N.any() else []  # equal on all ranks, which reduce them together
        self._sums = {name: torch.zeros((), device=device) for name in names}

    def add(self, name: str, value_U: Tensor, weight_U: Tensor, row_U: Tensor) -> None:
        """Add the (u,) sums over some rows, with their weights; ``row_U`` are their first sequences on this rank."""
        self.add_sum(name, (value_U.detach() * weight_U * self._factor[name][row_U]).sum())

    def add_sum(self, name: str, value: Tensor) -> None:
        """Add a term of a metric that is a sum over all ranks."""
        if name in self._sums:
            self._sums[name] = self._sums[name] + value.detach().float()

    def reduced(self, accelerator: Any) -> dict[str, float]:
        """The metrics over all ranks, which call together."""
        if not self._sums:
            return {}
        found: Any = accelerator.reduce(torch.stack([*self._sums.values()]), reduction="sum")
        return dict(zip(self._sums, found.tolist(), strict=True))


def mean_factors(count_N: Tensor, call_N: Tensor, weight_N: Tensor) -> Tensor:
    """(N,) factors that make weighted sums over each kept row a mean over all rows of a step.

    With nothing dropped it is the mean over micro-batches of their own means, as TRL logs it. Micro-batches count as
    before the draw: over one kept row of a micro-batch its weight would cancel.
    """
    total_C = torch.zeros(int(call_N.max()) + 1, dtype=torch.float64).index_add(0, call_N, count_N.double())
    factor_N = total_C.clamp(min=1.0)[call_N].reciprocal()
    # Weights add up to the number of rows on average only: their sum is divided out, once for the whole step.
    kept = (factor_N * count_N * weight_N).sum()
    return factor_N / kept if kept > 0 else torch.zeros_like(factor_N)
