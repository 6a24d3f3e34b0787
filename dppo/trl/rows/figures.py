"""TRL's figures of a trainer on rows, under TRL's names: of each of its micro-batches, over all processes.

A figure is a quotient of two sums, of values and of what they are counted in (tokens, pairs), each row by its weight:
with nothing pruned it is TRL's figure.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerState

from dppo.packing.forward import Scored
from dppo.trl.batch import MicroBatch
from dppo.trl.metrics import logs_next_step
from dppo.trl.rows.saved import SavedRows

OF_TOKENS = ("entropy", "mean_token_accuracy")
"""TRL's figures of tokens: the head computes them in steps that are logged, or in all where that is free."""


class PartFigures:
    """Sums of figures of the micro-batches that TRL's loader gives in one optimizer step."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(parts, 2, dtype=torch.float64))

    def add(self, name: str, value_B: Tensor, count_B: Tensor, weight_B: Tensor, part_B: Tensor) -> None:
        """Add values of B sequences or pairs.

        Args:
            name: TRL's.
            value_B: (B,) sums over what is counted.
            count_B: (B,) what they are counted in.
            weight_B: (B,) of their rows.
            part_B: (B,) int64, the micro-batch of each, on a CPU.
        """
        value_B, count_B, weight_B = (each.detach().cpu().double() for each in (value_B, count_B, weight_B))
        self._sums[name].index_add_(0, part_B, torch.stack([value_B, count_B], 1) * weight_B[:, None])

    def reduced(self, accelerator: Any, names: tuple[str, ...]) -> list[dict[str, float]]:
        """The figures of each micro-batch over all processes; left out where nothing of it is kept.

        All processes call together, with the same names, of which those that none has are left out.
        """
        here = torch.stack([self._sums[name] for name in names]).float().to(accelerator.device)
        total: Any = accelerator.reduce(here, reduction="sum")
        value_KP, count_KP = total.cpu().double().unbind(2)
        found: list[dict[str, float]] = [{} for _ in range(self._parts)]
        for name, value_P, count_P in zip(names, value_KP.tolist(), count_KP.tolist(), strict=True):
            for figures, value, count in zip(found, value_P, count_P, strict=True):
                if count:
                    figures[name] = value / count
        return found


class MeasuredRows(SavedRows):
    """A trainer on rows that logs TRL's figures, those of each of TRL's micro-batches by themselves, as TRL does."""

    figure_names: tuple[str, ...] = OF_TOKENS
    """TRL's figures that ``loss_and_scores`` may add."""
    state: TrainerState
    _calls: int
    _stride: int
    _figures: PartFigures
    _part_N: Tensor
    _place_B: list[int]

    def add_part_figure(
        self, batch: MicroBatch, name: str, value_B: Tensor, count_B: Tensor, *, every: int = 1
    ) -> None:
        """Add sums over sequences, and what they are counted in, to a figure of TRL's; every so many for pairs."""
        places = [self._place_B[row] for row in batch.rows.tolist()[::every]]
        part_B = self._part_N[places] % self._stride
        self._figures.add(name, value_B, count_B, batch.weight[::every], part_B)

    def _figures_due(self) -> bool:
        """Whether figures of tokens are wanted: in steps that are logged, and the last, whose log ends the run."""
        last = self.state.global_step + 1 >= self.state.max_steps
        return self.forwards.measures_freely or last or logs_next_step(self.args, self.state)

    def add_token_figures(self, batch: MicroBatch, scored: Scored) -> None:
        """Add entropies, and how often the likeliest token was right, where the head was asked for them."""
        if scored.figures is None:
            return
        mask_BT = batch.completion(batch.rank_batch.loss_mask)
        count_B = mask_BT.sum(1)
        for name, of_head in zip(OF_TOKENS, ("entropy", "is_top1"), strict=True):
            self.add_part_figure(batch, name, (scored.figures[of_head] * mask_BT).sum(1), count_B)

    def _log_figures(self) -> None:
        """Add the step's figures to the next log, those of each of TRL's micro-batches by themselves, as TRL does."""
        names = self.figure_names
        if self.method.router_coef:
            names += ("aux_loss",)
            none, one = torch.zeros(self._calls), torch.ones(self._calls)
            self._figures.add("aux_loss", none, one, one, torch.arange(self._calls))
        for figures in self._figures.reduced(self.accelerator, names):
            self.add_figures(figures)
