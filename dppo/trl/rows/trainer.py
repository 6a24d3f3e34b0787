"""What trainers on rows have in common: TRL's loop and its order of rows, with a draw before each optimizer step.

TRL's loader says which rows a step is made of, by their places alone; the draw says which of them are trained on, and
only those are read.
"""

import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dppo import __version__
from dppo.errors import ConfigError
from dppo.methods import RowMethod
from dppo.packing import longest_processing_time
from dppo.packing.rows import UNSCORED
from dppo.pruning import RecordedScores
from dppo.step import RowSource, row_figures
from dppo.trl.batch import MicroBatch, RankBatch
from dppo.trl.checkpoints.state import fingerprint, read_row_state, settings_of, write_row_state
from dppo.trl.forwards import ForwardPasses, TrainingLoop
from dppo.trl.hooks import count_tokens
from dppo.trl.metrics import PhaseClock, share_done
from dppo.trl.rows.data import Sequence, batch_of
from dppo.trl.safeguards import NonFiniteGuard, end_at_exit
from dppo.types import Draw


class StepCall(dict[str, Any]):
    """What one call of the loss trains on: ``micro_batches``, and whether it is the ``last`` of its step."""

    def __missing__(self, name: str) -> Any:
        raise ConfigError(
            f"a step has no {name!r}: its inputs are packed rows of what was drawn, not TRL's batch. Override "
            "loss_and_scores for another loss, or use TRL's own trainer."
        )


class RowTrainer(TrainingLoop):
    """A trainer of TRL whose rows are drawn by recorded scores; a subclass says what a row is and what its loss is.

    It goes before TRL's trainer among the bases, and calls ``start_rows`` when that one is made.
    """

    loss_is_scaled_for_ga = True
    temperature = 1.0
    length_setting = "max_length"
    columns: tuple[str, ...] = ()
    """Of a row, in TRL's prepared dataset."""
    batch_kind: type[RankBatch] = RankBatch
    """How the sequences of a step belong together."""
    source: RowSource

    @property
    def method(self) -> RowMethod:
        """How rows are dropped."""
        return self.source.method

    # -- what a subclass defines --------------------------------------------------------------------------------

    def sequences_of(self, row: Mapping[str, Any]) -> list[Sequence]:
        """The sequences of a row, as many for every row.

        Args:
            row: with ``columns``.
        """
        raise NotImplementedError

    def denominator(self, row_N: Tensor, draw: Draw) -> float:
        """What the sum of weighted losses over a step is divided by.

        Args:
            row_N: (N,) the step's rows.
            draw: among them.
        """
        raise NotImplementedError

    def loss_and_scores(self, model: Any, batch: MicroBatch, logp_BT: Tensor) -> tuple[Tensor, Tensor]:
        """() the weighted sum of a micro-batch over the step's denominator, and (b,) what is recorded of its sequences.

        Args:
            model: the policy, as wrapped for training.
            batch: some sequences of this rank.
            logp_BT: (b, T) log-probabilities of their tokens.
        """
        raise NotImplementedError

    def step_ended(self) -> None:
        """Called after the last loss of an optimizer step, on all ranks."""

    # -- what a subclass calls ----------------------------------------------------------------------------------

    def start_rows(self, rows: Any, identities: np.ndarray, tokens: np.ndarray) -> None:
        """Get ready to draw; TRL's trainer has been made.

        Args:
            rows: of ``prepared_rows``.
            identities: (size,) uint64 hashes of the rows.
            tokens: (size,) tokens that a forward pass over each computes.

        Raises:
            ConfigError: a model, or a way to spread it over processes, that is not served.
            CheckpointError: ``recorded_scores`` cannot be read, or are of another dataset.
        """
        args: Any = self.args
        if self.is_deepspeed_enabled:
            raise ConfigError("DeepSpeed is not served: its engine steps inside backward. Use DDP or FSDP2.")
        if self.get_tp_size() * self.get_cp_size() * self.get_sp_size() > 1:
            raise ConfigError(
                "tensor, context and sequence parallelism are not served: each process gets rows of its own. Use DDP "
                "or FSDP2 (accelerate config)."
            )
        self.clock = PhaseClock()
        scores = RecordedScores(identities, tokens)
        if args.recorded_scores is not None:
            scores.load(args.recorded_scores)
        self.source = RowSource(scores, args.build_method(), seed=args.seed)
        self._rows = rows
        self._block = torch.empty(0, dtype=torch.int64)
        self._place_B: list[int] = []
        self._scores: dict[int, float] = {}
        self.forwards = ForwardPasses(self, self._padded_forward)
        self.guard = NonFiniteGuard(self)
        self.add_callback(self.guard)
        end_at_exit()
        self._announce()

    # -- a step -------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """TRL's loader, which gives the places of rows in place of the rows."""
        data, collator = self.train_dataset, self.data_collator
        self.train_dataset, self.data_collator = range(len(self._rows)), _places  # pyright: ignore
        try:
            return super().get_train_dataloader()
        finally:
            self.train_dataset, self.data_collator = data, collator

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], None]:
        """What each call of the loss of an optimizer step trains on: drawn among the rows that the loader gives."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not batches:
            return batches, None
        self.forwards.check_once()
        with self.clock("prune"):
            self._block = self._of_all_ranks(torch.cat([batch["row"] for batch in batches]).to(device))
            step, epoch = self.state.global_step, int(self.state.epoch or 0)
            draw = self.source.draw(self._block, step=step, epoch=epoch, done=share_done(self.state))
            figures = row_figures(self.source.scores.candidates(self._block), draw)
            self.add_figures(figures)
            count_tokens(self, int(figures["prune/tokens_trained"]))
            batch = self._own(draw)
            calls, figures = self.forwards.calls(batch, batch.weight_UB[0], len(batches))
        self.add_figures(figures)
        self._scores = {}
        return [StepCall(micro_batches=each, last=each is calls[-1]) for each in calls], None

    def _of_all_ranks(self, row_N: Tensor) -> Tensor:
        """The rows of a step: those of a last batch may not be as many on every rank (``even_batches: false``)."""
        padded: Any = self.accelerator.pad_across_processes(row_N, dim=0, pad_index=-1)
        found: Any = self.accelerator.gather(padded)
        return found[found >= 0].cpu()

    def _own(self, draw: Draw) -> RankBatch:
        """The sequences of the kept rows that are this rank's: the dearest go to whoever has least."""
        kept = draw.keep_N.nonzero().flatten().tolist()
        cost = self.source.scores.tokens[self._block[kept].numpy()].tolist()
        dealt = longest_processing_time(cost, self.accelerator.num_processes)[self.accelerator.process_index]
        places = sorted(kept[which] for which in dealt)
        idle = not places  # a rank without rows forwards one of another's, at weight 0
        sequences, self._place_B, weights = [], [], []
        for place in places or [0]:
            for each in self.sequences_of(self._rows[int(self._block[place])]):
                sequences.append(each)
                self._place_B.append(place)
                weights.append(0.0 if idle else float(draw.weight_N[place]))
        return batch_of(
            sequences,
            torch.tensor(weights),
            denominator=self.denominator(self._block, draw),
            device=self.accelerator.device,
            kind=self.batch_kind,
        )

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of one call: backward on all micro-batches but the last; in evaluation TRL's own."""
        if not isinstance(inputs, StepCall):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss = self.backward_but_last(model, inputs["micro_batches"], lambda each: self._part(model, each))
        if inputs["last"]:
            self._record()
            self.step_ended()
        return loss

    def _part(self, model: Any, batch: MicroBatch) -> Tensor:
        loss, score_B = self.loss_and_scores(model, batch, self.forwards(model, batch).logp_BT)
        for row, weight, score in zip(batch.rows.tolist(), batch.weight.tolist(), score_B.tolist(), strict=True):
            if weight:
                self._scores[self._place_B[row]] = score
        return loss * self.accelerator.num_processes  # gradients are averaged over ranks

    def _record(self) -> None:
        """Remember the scores of the step on all ranks."""
        score_N = torch.zeros(2, len(self._block), device=self.accelerator.device)
        for place, score in self._scores.items():
            score_N[:, place] = torch.tensor([score, 1.0])
        found: Any = self.accelerator.reduce(score_N, reduction="sum")
        score_N, seen_N = found.cpu()
        self.source.record(self._block[seen_N > 0], score_N[seen_N > 0])

    def _padded_forward(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, width: int, compute_entropy: bool = False
    ) -> tuple[Tensor, None, None]:
        """(b, width) log-probabilities of the last tokens of padded sequences, forwarded as TRL does.

        That is padded on the right, so that positions that a model has learned begin at 0.
        """
        order_BT = attention_mask.argsort(dim=1, descending=True, stable=True)
        scored = attention_mask.clone()
        scored[:, :-width] = 0
        ids, mask, scored = (each.gather(1, order_BT) for each in (input_ids, attention_mask, scored))
        labels = ids.masked_fill(scored == 0, UNSCORED)
        with self.accelerator.autocast():
            output = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False, fused_lm_head=True)
        # Nothing predicts the first token; an adapter may have put tokens of its own before it.
        logp_BT = F.pad(output.log_probs[:, 1 - ids.shape[1] :], (1, 0))
        return torch.zeros_like(logp_BT).scatter(1, order_BT, logp_BT)[:, -width:], None, None

    # -- around TRL's loop --------------------------------------------------------------------------------------

    def _announce(self) -> None:
        """Print once how rows are drawn, and whether the first epoch can be pruned."""
        scores, lines = self.source.scores, self.method.describe().splitlines()
        if self.method.rows.rate and not scores.seen:
            lines.append(f"none of the {len(scores)} rows has a recorded score: the first epoch is not pruned")
        elif self.method.rows.rate:
            lines.append(f"{scores.seen} of the {len(scores)} rows have a recorded score; the others are all kept")
        for line in [*lines, str(self.forwards.layout)]:
            self.accelerator.print(f"dppo | {line}")

    def card(self) -> str:
        """Method, biases and paper, for the card of the model."""
        lines = [f"- {line}" for line in self.method.describe().splitlines()]
        head = f"With dppo {__version__}, `{self.method.name}` ({self.method.paper}), on the rows of a dataset:"
        return "\n".join(["## How it was trained: dppo", "", head, "", *lines, ""])

    # -- checkpoints --------------------------------------------------------------------------------------------

    @cached_property
    def content(self) -> str:
        """A fingerprint of all rows as they are trained on."""
        return fingerprint(self.source.scores.identities)

    def save_extra(self, folder: Path) -> None:
        """Write the recorded scores, the draw of the epoch and the settings that the run depends on."""
        if not self.accelerator.is_main_process:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self.source.save(folder)
        rows, skipped = len(self.source.scores), self.guard.skipped
        write_row_state(folder, rows=rows, skipped=skipped, settings=settings_of(self))

    def load_extra(self, folder: Path) -> None:
        """Read what ``save_extra`` wrote; a checkpoint of TRL's own trainer has no scores, and the run says so.

        Raises:
            CheckpointError: a file is missing or damaged, or of another dataset.
        """
        lost = any("optimizer" in part for part in self.lacking)
        skipped = read_row_state(folder, settings_of(self), trainer=type(self).__name__, new_optimizer=lost)
        if skipped is None:
            return
        self.guard.skipped = skipped
        known, rows = self.source.load(folder), len(self.source.scores)
        if known < rows:
            warnings.warn(
                f"resumed on another dataset: {known} of its {rows} rows were in the checkpoint's. The others have no "
                "recorded score, and the order of rows is a new one.",
                stacklevel=2,
            )


def _places(rows: list[int]) -> dict[str, Tensor]:
    """A batch of the loader: the places of its rows."""
    return {"row": torch.tensor(rows)}
