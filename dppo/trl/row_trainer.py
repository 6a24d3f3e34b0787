"""What trainers on rows have in common: TRL's loop and its order of rows, with a draw before each optimizer step.

TRL's loader says which rows a step is made of, by their places alone; the draw says which of them are trained on, and
only those are read.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor

from dppo import __version__
from dppo.errors import CheckpointError, ConfigError, DataError, FileError
from dppo.files import read_json, write_json
from dppo.methods import RowMethod
from dppo.packing import longest_processing_time
from dppo.packing.rows import UNSCORED
from dppo.pruning import RecordedScores
from dppo.step import RowSource, row_figures
from dppo.trl.batch import MicroBatch, RankBatch
from dppo.trl.checkpoint_files import OUR_STATE, advice
from dppo.trl.forwards import ForwardPasses
from dppo.trl.loop import TrainingLoop
from dppo.trl.metrics import PhaseClock, share_done
from dppo.trl.row_settings import OF_THE_DRAWS
from dppo.trl.safeguards import NonFiniteGuard, end_at_exit
from dppo.trl.sequences import Sequence, batch_of
from dppo.types import Draw


def check_dataset(dataset: Any, name: str) -> None:
    """Return where a training set has rows to come back to.

    Args:
        dataset: as given.
        name: of the trainer, for messages.

    Raises:
        ConfigError: it is streamed, or no dataset.
        DataError: it is empty.
    """
    if isinstance(dataset, datasets.Dataset):
        if not len(dataset):
            raise DataError("the dataset has 0 rows, and at least 1 is needed. Give it rows to train on.")
        return
    raise ConfigError(
        f"train_dataset is {type(dataset).__name__}, and {name} needs a datasets.Dataset: a streamed one has no rows "
        "to come back to. Load it with streaming=False."
    )


class RowTrainer(TrainingLoop):
    """A trainer of TRL whose rows are drawn by recorded scores; a subclass says what a row is and what its loss is.

    It goes before TRL's trainer among the bases, and calls ``start_rows`` when that one is made.
    """

    loss_is_scaled_for_ga = True
    temperature = 1.0
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

    def start_rows(self, identities: np.ndarray, tokens: np.ndarray) -> None:
        """Get ready to draw; TRL's trainer has been made.

        Args:
            identities: (size,) uint64 hashes of the rows.
            tokens: (size,) tokens that a forward pass over each computes.

        Raises:
            ConfigError: a model that is not served.
            CheckpointError: ``recorded_scores`` cannot be read, or are of another dataset.
        """
        args: Any = self.args
        if self.is_deepspeed_enabled:
            raise ConfigError("DeepSpeed is not served: its engine steps inside backward. Use DDP or FSDP2.")
        self.clock = PhaseClock()
        scores = RecordedScores(identities, tokens)
        if args.recorded_scores is not None:
            scores.load(args.recorded_scores)
        self.source = RowSource(scores, args.build_method(), seed=args.seed)
        data: Any = self.train_dataset
        self._rows: Any = data.select_columns(list(self.columns))
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
        """What each call of the loss of an optimizer step trains on: drawn among the rows that the loader gives.

        Args:
            epoch_iterator: over the loader.
            num_batches: calls of the loss.
            device: of the model.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not batches:
            return batches, None
        self.forwards.check_once()
        with self.clock("prune"):
            row_N: Any = self.accelerator.gather(torch.cat([batch["row"] for batch in batches]).to(device))
            self._block = row_N.cpu()
            step, epoch = self.state.global_step, int(self.state.epoch or 0)
            draw = self.source.draw(self._block, step=step, epoch=epoch, done=share_done(self.state))
            self.add_figures(row_figures(self.source.scores.candidates(self._block), draw))
            batch = self._own(draw)
            calls, figures = self.forwards.calls(batch, batch.weight_UB[0], len(batches))
        self.add_figures(figures)
        self._scores = {}
        return [{"micro_batches": each, "last": each is calls[-1]} for each in calls], None

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
        """The loss of one call: backward on all micro-batches but the last; in evaluation TRL's own.

        Args:
            model: the policy, as wrapped for training.
            inputs: from ``get_batch_samples``, or TRL's.
            return_outputs: as for TRL, in evaluation.
            num_items_in_batch: as for TRL, in evaluation.
        """
        if "micro_batches" not in inputs:
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
        """(b, width) log-probabilities of the last tokens of padded sequences."""
        predicts = slice(-width - 1, -1)
        labels = torch.full_like(input_ids, UNSCORED)
        labels[:, predicts] = input_ids[:, -width:].masked_fill(attention_mask[:, -width:] == 0, UNSCORED)
        with self.accelerator.autocast():
            output = model(
                input_ids=input_ids, attention_mask=attention_mask, shift_labels=labels, use_cache=False,
                fused_lm_head=True,
            )  # fmt: skip
        return output.log_probs[:, predicts], None, None

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

    def _settings(self) -> dict[str, Any]:
        found = {name: getattr(self.args, name, None) for name in OF_THE_DRAWS}
        return found | {"processes": self.accelerator.num_processes}

    def save_extra(self, folder: Path) -> None:
        """Write the recorded scores, the draw of the epoch and the settings that draws depend on."""
        if not self.accelerator.is_main_process:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self.source.save(folder)
        state = {"rows": len(self.source.scores), "skipped": self.guard.skipped, "listed": True}
        write_json(folder / OUR_STATE, state | {"settings": self._settings()})

    def load_extra(self, folder: Path) -> None:
        """Read what ``save_extra`` wrote; a checkpoint of TRL's own trainer has no scores, and the run says so.

        Raises:
            CheckpointError: a file is missing or damaged, or of another dataset.
        """
        path = folder / OUR_STATE
        if not path.exists():
            warnings.warn(
                f"{folder} was not written by {type(self).__name__}: no row has a recorded score, and all are kept "
                "until they have one.",
                stacklevel=2,
            )
            return
        try:
            state = read_json(path, advice="")
            before, skipped = dict(state["settings"]), int(state["skipped"])
        except (FileError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged ({error}). {advice(folder)}") from error
        for name, now in self._settings().items():
            if name in before and before[name] != now:
                warnings.warn(f"resumed with {name}: {before[name]!r} -> {now!r}; it holds from here", stacklevel=2)
        self.guard.skipped = skipped
        self.source.load(folder)


def _places(rows: list[int]) -> dict[str, Tensor]:
    """A batch of the loader: the places of its rows."""
    return {"row": torch.tensor(rows)}
