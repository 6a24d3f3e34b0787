"""The trainer that SFT and DPO share: TRL's loop and order of rows, with a draw before each optimizer step.

TRL's loader gives indices of rows, and only drawn ones are read. A stream gives the rows, and all are trained on.
"""

import warnings
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn import functional as F

from dppo import __version__
from dppo.errors import ConfigError, DataError
from dppo.files import write_json
from dppo.methods import RowMethod
from dppo.methods.own import assigned, is_own, parts_in_words
from dppo.packing import longest_processing_time
from dppo.packing.forward import Scored, metrics_of
from dppo.packing.rows import UNSCORED
from dppo.pruning import RecordedScores
from dppo.step import RowSource, row_metrics
from dppo.step.resumed import changed, warn_of
from dppo.step.rows import SCORES_FILE
from dppo.trl.batch import MicroBatch
from dppo.trl.checkpoints.files import OUR_STATE
from dppo.trl.checkpoints.state import fingerprint, optimizer_effect, read_state, settings_of
from dppo.trl.loop import TrainingLoop
from dppo.trl.metrics import STEP, logs_next_step, share_done
from dppo.trl.rows.config import check_dataset, method_of_run
from dppo.trl.rows.data import IDLE, ReadRow, RowBatch, RowMetrics, StepRows, read_all
from dppo.trl.safeguards import models_named
from dppo.trl.served import check_overrides, check_processes
from dppo.typed import check
from dppo.types import Draw


class StepCall(dict[str, Any]):
    """Inputs of one call of the loss: its ``micro_batches``."""

    def __missing__(self, name: str) -> Any:
        raise ConfigError(f"a step has no {name!r}: its inputs are rows that were drawn. Override loss_and_scores.")


class RowTrainer(TrainingLoop):
    """A trainer of TRL whose rows are drawn by recorded scores, weighted, and forwarded as dense rows.

    It goes before TRL's trainer among the bases. A subclass defines what raises ``NotImplementedError`` here.
    """

    loss_is_scaled_for_ga = True
    temperature = 1.0
    batch_kind: type[RowBatch] = RowBatch
    use_weighting = False
    """Field of TRL's ``DPOTrainer``: True if the loss itself needs the head's metrics of tokens."""

    def __init__(
        self, model: Any, args: Any, train_dataset: Any, method: RowMethod | str | None, **kwargs: Any
    ) -> None:
        name, trl = type(self).__name__, cast(Any, self)
        check("method", method, RowMethod | str | None, f'{name}(..., method=ROW_METHODS["uniform"]).')
        args = args if method is None else args.with_method(method)
        check_overrides(type(self))
        size = check_dataset(train_dataset, name, args.row_prune_rate)
        with models_named(model, kwargs.get("ref_model")):
            super().__init__(model, args=args, train_dataset=train_dataset, **kwargs)
        check_processes(self)
        self.train_dataset, self.columns = self.prepared(self.train_dataset)
        self.table: Any = None
        """The rows of the dataset, in ``columns``; None for a stream."""
        self.content = ""
        """A fingerprint of all rows as they are trained on; empty for a stream."""
        scores = RecordedScores(np.ones(1, np.uint64), np.ones(1))  # of a stream, before its first step
        if size is not None:
            if not len(self.train_dataset):
                why = f"TRL drops rows whose prompt alone fills max_length={args.max_length}"
                raise DataError(f"none of the {size} rows is left: {why}. Write max_length: null to cut nothing.")
            self.table = self.train_dataset.with_format(None).select_columns(list(self.columns))
            identities, self._counts = read_all(self.table, self.read)
            self.content = fingerprint(identities)
            scores = RecordedScores(identities, self._counts[:, 0])
            if args.recorded_scores is not None:
                scores.load(args.recorded_scores)
        own = method if isinstance(method, RowMethod) else None
        router = float(trl.router_aux_loss_coef) if trl.aux_loss_enabled else 0.0
        made, note = method_of_run(args, own, router_coef=router, streamed=self.table is None)
        self.method_in_words = {} if own is None and not is_own(args.method) else parts_in_words(made)
        self.source = RowSource(scores, made, seed=args.seed)
        self._tokens_counted = 0
        self.start_loop()
        if made.rows.rate:
            note = f"{scores.seen} of the {len(scores)} rows have a recorded score; the others are all kept"
            if not scores.seen:
                note = f"none of the {len(scores)} rows has a recorded score: the first epoch is not pruned"
        for line in filter(None, [*made.describe().splitlines(), note, str(self.forwards.layout)]):
            self.accelerator.print(f"dppo | {line}")

    def prepared(self, dataset: Any) -> tuple[Any, tuple[str, ...]]:
        """The training set as TRL has prepared it, checked, and the columns that rows are read from."""
        raise NotImplementedError

    def read(self, row: Mapping[str, Any]) -> ReadRow:
        """A row of ``columns``. With a router loss its sequences without a trained token are included."""
        raise NotImplementedError

    def rows_of(self, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The rows that TRL's collator has put into a batch of a stream."""
        raise NotImplementedError

    def shares(self, rows: StepRows, draw: Draw) -> Tensor:
        """(K, N) factors of the sums over each row in the K terms of the loss, known before the draw."""
        raise NotImplementedError

    def loss_and_scores(self, batch: MicroBatch, scored: Scored, share_KB: Tensor) -> tuple[Tensor, Tensor]:
        """() the weighted loss of b sequences, and (u,) or (u, n) terms that they add to the scores of u rows.

        There is one row for ``together`` sequences. Scores by the norm of a gradient are sums of squares. ``share_KB``
        are the ``shares`` of their rows. TRL's metrics are added to ``step_metrics``, those of tokens if measured.
        """
        raise NotImplementedError

    def get_train_dataloader(self) -> Any:
        """TRL's loader, over indices of rows; of a stream TRL's batches."""
        if self.table is None:
            return super().get_train_dataloader()
        rows = range(len(self.table))
        with patch.object(self, "train_dataset", rows), patch.object(self, "data_collator", _indices):
            return super().get_train_dataloader()

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], None]:
        """The inputs of each call of the loss in an optimizer step, drawn among the rows that the loader gives."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not batches:
            return batches, None
        self.forwards.check_once()
        before = self.clock.total["prune"]
        with self.clock("prune"):
            rows = self.rows = self._loaded(batches)
            step, epoch = self.state.global_step, int(self.state.epoch or 0)
            draw = self.source.draw(rows.row_N, step=step, epoch=epoch, done=share_done(self.state))
            self.add_metrics(row_metrics(self.source.scores.candidates(rows.row_N), draw))
            self._count_tokens(int(rows.attended_N[draw.keep_N].sum()))
            batch = self._dealt(draw)
            last = step + 1 >= self.state.max_steps
            # Metrics of tokens cost time, unless the head is TRL's: it computes them in any case.
            due = not self.forwards.heads or last or logs_next_step(self.args, self.state)
            self._of_tokens = self.use_weighting or due
            call_N, call_B = rows.part_N % rows.stride, None  # of the loss, on the rank of each row
            if self.method.router_coef:  # its loss is over all tokens of one micro-batch of TRL's: they stay together
                call_B = call_N[self._place_B].to(device)
            self.step_metrics = RowMetrics(call_N, draw.weight_N, self._place_B)
            calls, metrics = self.forwards.calls(batch, batch.weight_UB[0], rows.calls, call_B=call_B)
        self.clock.add(STEP, self.clock.total["prune"] - before)  # TRL's step begins with the inputs of its calls
        self.add_metrics(metrics)
        self._scores, self._calls_left = list[tuple[list[int], Tensor]](), rows.calls
        return [StepCall(micro_batches=each) for each in calls], None

    def _loaded(self, batches: list[Any]) -> StepRows:
        """The rows of a step on all ranks, from the micro-batches that TRL's loader gives this one."""
        calls, rank = len(batches), self.accelerator.process_index
        stride = max(calls, self.args.gradient_accumulation_steps)
        if self.table is None:
            # Rows of a stream stay with the rank that has read them: the others need their counts alone.
            own = [(rank * stride + call, row) for call, batch in enumerate(batches) for row in self.rows_of(batch)]
            part_N, *counts = zip(*gather_object([(part, *self.read(row).counts) for part, row in own]), strict=True)
            row_N, count_3N, here = torch.arange(len(part_N)), torch.tensor(counts).double(), iter(own)
            data = [next(here)[1] if part // stride == rank else None for part in part_N]
            self.source.scores = RecordedScores(row_N.numpy().astype(np.uint64), count_3N[0].numpy())
        else:
            own = [(rank * stride + call, row) for call, batch in enumerate(batches) for row in batch["row"].tolist()]
            part_N, row_N = torch.tensor(gather_object(own)).T
            data, count_3N = self.table, torch.from_numpy(self._counts[row_N.numpy()].T)
        counts = dict(zip(("tokens_N", "attended_N", "trained_N"), count_3N, strict=True))
        return StepRows(data=data, row_N=row_N, part_N=torch.as_tensor(part_N), calls=calls, stride=stride, **counts)

    def _dealt(self, draw: Draw) -> RowBatch:
        """The sequences of this rank's share of the kept rows, in about equal tokens per rank."""
        rows, rank = self.rows, self.accelerator.process_index
        kept, tokens_N = draw.keep_N.nonzero().flatten().tolist(), rows.tokens_N
        if self.table is None or self.method.router_coef:  # no other rank has them, or they belong together
            places = [place for place in kept if rows.part_N[place] // rows.stride == rank]
        else:
            dealt = longest_processing_time(tokens_N[kept].tolist(), self.accelerator.num_processes)
            places = sorted(kept[which] for which in dealt[rank])
        found = [(place, each) for place in places for each in self.read(rows.data[int(rows.row_N[place])]).sequences]
        weight_N = draw.weight_N if found else torch.zeros_like(draw.weight_N)
        here, sequences = zip(*(found or [(0, IDLE)] * self.batch_kind.together), strict=True)
        self._place_B, device = list(here), self.accelerator.device
        self._share_KB = self.shares(rows, draw)[:, self._place_B].float().to(device)
        return self.batch_kind.of(list(sequences), weight_N[self._place_B], tokens_N[self._place_B], device)

    def places_of(self, batch: MicroBatch) -> list[int]:
        """Places among the rows of the step, for each group of ``together`` sequences of a micro-batch."""
        return [self._place_B[place] for place in batch.places[:: batch.rank_batch.together]]

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """() the loss of one call: ``backward_but_last``; in evaluation TRL's own."""
        if not isinstance(inputs, StepCall):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        return self.backward_but_last(model, inputs["micro_batches"], lambda each: self._part(model, each))

    def end_call(self) -> None:
        """Record scores and metrics of an optimizer step after its last call."""
        self._calls_left -= 1
        if self._calls_left:
            return
        found: dict[int, float] = defaultdict(float)  # by row, whose sequences may be in several passes
        for places, score_U in self._scores:
            for place, score in zip(places, score_U.cpu().double().view(len(places), -1).sum(1).tolist(), strict=True):
                found[place] += score
        place_K, score_K = torch.tensor(sorted(gather_object([*found.items()])), dtype=torch.float64).view(-1, 2).T
        score_K = score_K.sqrt() if self.method.score == "norm" else score_K
        self.source.scores.record(self.rows.row_N[place_K.long()], score_K)
        metrics = self.step_metrics.reduced()
        for _ in range(self.rows.calls):  # TRL logs one value per micro-batch: a shorter step counts less
            self.add_metrics(metrics)

    def _part(self, model: Any, batch: MicroBatch) -> Tensor:
        router, rows, processes = self.method.router_coef, self.rows, self.accelerator.num_processes
        scored = self.forwards(model, batch, router=bool(router), metrics=self._of_tokens)
        loss, score_U = self.loss_and_scores(batch, scored, self._share_KB[:, batch.rows])
        places = self.places_of(batch)
        if scored.router_loss is not None:
            in_part_N = rows.part_N == rows.part_N[places[0]]
            attended = max(float(rows.attended_N[in_part_N].sum()), 1.0)
            balance = scored.router_loss / attended / (rows.calls * processes)
            loss = loss + router * balance
            self.step_metrics.add_sum("aux_loss", balance)
        if not batch.idle:
            self._scores.append((places, score_U.detach()))
        return loss * processes  # gradients are averaged over ranks

    @property
    def method(self) -> RowMethod:
        """The method that drops rows."""
        return self.source.method

    @method.setter
    def method(self, method: RowMethod) -> None:
        raise assigned(method)

    def card(self) -> str:
        """Method, biases and paper, for the card of the model."""
        lines = [f"- {line}" for line in self.method.describe().splitlines()]
        head = f"With dppo {__version__}, `{self.method.name}` ({self.method.paper}), on the rows of a dataset:"
        return "\n".join(["## How it was trained: dppo", "", head, "", *lines, ""])

    def save_extra(self, folder: Path) -> None:
        """Write scores, draw of the epoch, and settings that the run depends on."""
        if not self.args.should_save:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if self.table is not None:
            self.source.save(folder)
        state = {"skipped": self.guard.skipped, "num_tokens": self._tokens_counted, "settings": settings_of(self)}
        write_json(folder / OUR_STATE, state)

    def load_extra(self, folder: Path) -> None:
        """Read what ``save_extra`` wrote; warn if TRL's own trainer wrote the checkpoint."""
        lost = any("optimizer" in part for part in self.lacking)

        def made(found: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
            return dict(found["settings"]), int(found["skipped"]), int(found["num_tokens"])

        start = "no row has a recorded score, and all are kept until they have one."
        if (state := read_state(folder, made, trainer=type(self).__name__, without=start)) is None:
            return
        before, self.guard.skipped, tokens = state
        self._count_tokens(tokens - self._tokens_counted)
        warn_of(changed(before, settings_of(self)), partial(optimizer_effect, new_optimizer=lost))
        if self.table is None or SCORES_FILE in self.lacking:
            return
        known, rows = self.source.load(folder), len(self.source.scores)
        if known < rows:
            found = f"{known} of its {rows} rows were in the checkpoint's"
            warnings.warn(f"resumed on another dataset: {found}. The others have no recorded score.", stacklevel=2)

    def _count_tokens(self, tokens: int) -> None:
        self._tokens_counted += tokens
        self._add_tokens(tokens)

    def padded_forward(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, width: int, compute_entropy: bool = False
    ) -> tuple[Tensor, None, dict[str, Tensor]]:
        """As ``PaddedLayout.padded_forward``. TRL pads on the right here: positions begin at 0, as in its training."""
        order_BT = attention_mask.argsort(dim=1, descending=True, stable=True)
        labels = input_ids.masked_fill(attention_mask == 0, UNSCORED)
        labels[:, :-width] = UNSCORED
        ids, mask, labels = (each.gather(1, order_BT) for each in (input_ids, attention_mask, labels))
        with self.accelerator.autocast():
            output = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False, fused_lm_head=True)

        def back(value_BT: Tensor) -> Tensor:
            # Nothing predicts the first token; an adapter may have put tokens of its own before it.
            value_BT = F.pad(value_BT[:, 1 - ids.shape[1] :], (1, 0))
            return torch.zeros_like(value_BT).scatter(1, order_BT, value_BT)[:, -width:]

        return back(output.log_probs), None, metrics_of(output, back)


def _indices(rows: list[int]) -> dict[str, Tensor]:
    """A batch of the loader: indices of its rows. Processes of the loader need a function of a module."""
    return {"row": torch.tensor(rows)}
