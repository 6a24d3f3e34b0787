"""What trainers on rows say of themselves, their part of a checkpoint, and TRL's metrics under TRL's names.

Metrics are of each of TRL's micro-batches, over all processes. A metric is a quotient of two sums, of values and of
what they are counted in (tokens, pairs), each row by its weight: with nothing pruned it is TRL's metric.
"""

import warnings
from collections import defaultdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dppo import __version__
from dppo.files import write_json
from dppo.methods import RowMethod
from dppo.methods.own import assigned
from dppo.packing.forward import Scored
from dppo.step import RowSource
from dppo.step.resumed import changed, warn_of
from dppo.step.rows import SCORES_FILE
from dppo.trl.batch import MicroBatch
from dppo.trl.checkpoints.files import OUR_STATE
from dppo.trl.checkpoints.state import fingerprint, optimizer_effect, read_state, settings_of
from dppo.trl.loop import TrainingLoop
from dppo.trl.metrics import logs_next_step
from dppo.trl.safeguards import NonFiniteGuard

OF_TOKENS = ("entropy", "mean_token_accuracy")
"""TRL's metrics of tokens: the head computes them in steps that are logged, or in all where that is free."""


class PartMetrics:
    """Sums of metrics of the micro-batches that TRL's loader gives in one optimizer step."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._added: dict[str, list[tuple[Tensor, ...]]] = defaultdict(list)

    def add(self, name: str, value_B: Tensor, count_B: Tensor, weight_B: Tensor, part_B: Tensor) -> None:
        """Add sums of B sequences or pairs over what they are counted in, by the weights of their rows.

        ``part_B`` is (B,) int64, the micro-batch of each, on a CPU. The others stay where they are until the step's
        end: nothing waits for the device.
        """
        self._added[name].append((part_B, *(each.detach() for each in (value_B, count_B, weight_B))))

    def _sums(self, name: str) -> Tensor:
        """(parts, 2) float64: values, and what they are counted in."""
        sums_P2 = torch.zeros(self._parts, 2, dtype=torch.float64)
        for part_B, *added in self._added[name]:
            value_B, count_B, weight_B = (each.cpu().double() for each in added)
            sums_P2.index_add_(0, part_B, torch.stack([value_B, count_B], 1) * weight_B[:, None])
        return sums_P2

    def reduced(self, accelerator: Any, names: tuple[str, ...], *, dropped: bool) -> list[dict[str, float]]:
        """The metrics of each micro-batch over all processes.

        Where rows were ``dropped``, those of the whole step for each: over the one or two rows that are kept of a
        micro-batch their weights would cancel. All processes call together, with the same names, of which those that
        none has are left out.
        """
        here = torch.stack([self._sums(name) for name in names]).float().to(accelerator.device)
        total: Any = accelerator.reduce(here, reduction="sum")
        value_KP, count_KP = total.cpu().double().unbind(2)
        if dropped:
            value_KP, count_KP = (each.sum(1, keepdim=True).expand_as(each) for each in (value_KP, count_KP))
        found: list[dict[str, float]] = [{} for _ in range(self._parts)]
        for name, value_P, count_P in zip(names, value_KP.tolist(), count_KP.tolist(), strict=True):
            for metrics, value, count in zip(found, value_P, count_P, strict=True):
                if count:
                    metrics[name] = value / count
        return found


class MeasuredRows(TrainingLoop):
    """A trainer on rows that says how it draws, saves its scores with checkpoints, and logs TRL's metrics.

    Those are of each of TRL's micro-batches by itself, as in TRL.
    """

    figure_names: tuple[str, ...] = OF_TOKENS
    """TRL's metrics that ``loss_and_scores`` may add."""
    args: Any
    source: RowSource
    guard: NonFiniteGuard
    _total_train_tokens: int
    _streamed: bool
    _unpruned: str
    _calls: int
    _stride: int
    _loss_metrics: PartMetrics
    _part_N: Tensor
    _place_B: list[int]
    _dropped: bool
    """Whether rows of the step are left out."""

    @property
    def method(self) -> RowMethod:
        """How rows are dropped."""
        return self.source.method

    @method.setter
    def method(self, method: RowMethod) -> None:
        raise assigned(method)

    def _announce(self) -> None:
        """Print once how rows are drawn, and whether the first epoch can be pruned."""
        scores, lines = self.source.scores, self.method.describe().splitlines()
        if self.method.rows.rate and not scores.seen:
            lines.append(f"none of the {len(scores)} rows has a recorded score: the first epoch is not pruned")
        elif self._unpruned:
            lines.append(self._unpruned)
        elif self.method.rows.rate:
            lines.append(f"{scores.seen} of the {len(scores)} rows have a recorded score; the others are all kept")
        for line in [*lines, str(self.forwards.layout)]:
            self.accelerator.print(f"dppo | {line}")

    def card(self) -> str:
        """Method, biases and paper, for the card of the model."""
        lines = [f"- {line}" for line in self.method.describe().splitlines()]
        head = f"With dppo {__version__}, `{self.method.name}` ({self.method.paper}), on the rows of a dataset:"
        return "\n".join(["## How it was trained: dppo", "", head, "", *lines, ""])

    @cached_property
    def content(self) -> str:
        """A fingerprint of all rows as they are trained on; of a stream none."""
        return "" if self._streamed else fingerprint(self.source.scores.identities)

    def save_extra(self, folder: Path) -> None:
        """Write the recorded scores, the draw of the epoch and the settings that the run depends on."""
        if not self.args.should_save:
            return
        folder.mkdir(parents=True, exist_ok=True)
        rows = 0
        if not self._streamed:
            self.source.save(folder)
            rows = len(self.source.scores)
        state = {"rows": rows, "skipped": self.guard.skipped, "settings": settings_of(self)}
        state["num_tokens"] = self._total_train_tokens
        write_json(folder / OUR_STATE, state)

    def load_extra(self, folder: Path) -> None:
        """Read what ``save_extra`` wrote; a checkpoint of TRL's own trainer has no scores, and the run says so.

        Raises:
            CheckpointError: a file is missing or damaged, or of another dataset.
        """
        lost = any("optimizer" in part for part in self.lacking)
        state = read_state(
            folder,
            lambda found: (dict(found["settings"]), int(found["skipped"]), int(found.get("num_tokens", 0))),
            trainer=type(self).__name__,
            without="no row has a recorded score, and all are kept until they have one.",
        )
        if state is None:
            return
        before, self.guard.skipped, self._total_train_tokens = state
        warn_of(changed(before, settings_of(self)), partial(optimizer_effect, new_optimizer=lost))
        if self._streamed:
            return
        if self.lacks(SCORES_FILE):
            return
        known, rows = self.source.load(folder), len(self.source.scores)
        if known < rows:
            warnings.warn(
                f"resumed on another dataset: {known} of its {rows} rows were in the checkpoint's. The others have no "
                "recorded score, and the order of rows is a new one.",
                stacklevel=2,
            )

    def add_part_metric(
        self, batch: MicroBatch, name: str, value_B: Tensor, count_B: Tensor, *, every: int = 1
    ) -> None:
        """Add sums over sequences, and what they are counted in, to a metric of TRL's; every so many for pairs."""
        places = [self._place_B[place] for place in batch.places[::every]]
        part_B = self._part_N[places] % self._stride
        self._loss_metrics.add(name, value_B, count_B, batch.weight[::every], part_B)

    def _metrics_due(self) -> bool:
        """Whether metrics of tokens are wanted: in steps that are logged, and the last, whose log ends the run."""
        last = self.state.global_step + 1 >= self.state.max_steps
        return self.forwards.measures_freely or last or logs_next_step(self.args, self.state)

    def add_token_metrics(self, batch: MicroBatch, scored: Scored) -> None:
        """Add entropies, and how often the likeliest token was right, where the head was asked for them."""
        if scored.metrics is None:
            return
        mask_BT = batch.completion(batch.rank_batch.loss_mask)
        count_B = mask_BT.sum(1)
        for name, of_head in zip(OF_TOKENS, ("entropy", "is_top1"), strict=True):
            self.add_part_metric(batch, name, (scored.metrics[of_head] * mask_BT).sum(1), count_B)

    def _log_metrics(self) -> None:
        """Add the step's metrics to the next log, those of each of TRL's micro-batches by themselves, as TRL does."""
        names = self.figure_names
        if self.method.router_coef:
            names += ("aux_loss",)
            none, one = torch.zeros(self._calls), torch.ones(self._calls)
            self._loss_metrics.add("aux_loss", none, one, one, torch.arange(self._calls))
        for metrics in self._loss_metrics.reduced(self.accelerator, names, dropped=self._dropped):
            self.add_metrics(metrics)
