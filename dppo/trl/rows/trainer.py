"""What trainers on rows have in common: TRL's loop and its order of rows, with a draw before each optimizer step.

TRL's loader says which rows a step is made of, by their places alone; the draw says which of them are trained on, and
only those are read. Of a stream it gives the rows themselves, and all are trained on.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dppo.errors import ConfigError, raise_problems
from dppo.methods import RowMethod
from dppo.methods.own import is_own, parts_in_words
from dppo.methods.settings import bias_problems
from dppo.packing import longest_processing_time
from dppo.packing.forward import Scored, metrics_of
from dppo.packing.rows import UNSCORED
from dppo.pruning import RecordedScores
from dppo.step import RowSource, row_metrics
from dppo.trl.batch import MicroBatch
from dppo.trl.forwards import ForwardPasses
from dppo.trl.hooks import count_tokens
from dppo.trl.metrics import PhaseClock, share_done
from dppo.trl.rows.data import IDLE, RowBatch, Rows, Sequence, batch_of
from dppo.trl.rows.metrics import MeasuredRows, PartMetrics
from dppo.trl.safeguards import NonFiniteGuard, end_at_exit
from dppo.trl.served import check_processes
from dppo.types import Draw


class StepCall(dict[str, Any]):
    """What one call of the loss trains on: ``micro_batches``, and which ``call`` of its step it is."""

    def __missing__(self, name: str) -> Any:
        raise ConfigError(
            f"a step has no {name!r}: its inputs are packed rows of what was drawn, not TRL's batch. Override "
            "loss_and_scores for another loss, or use TRL's own trainer."
        )


class RowTrainer(MeasuredRows):
    """A trainer of TRL whose rows are drawn by recorded scores; a subclass says what a row is and what its loss is.

    It goes before TRL's trainer among the bases, and calls ``start_rows`` when that one is made.
    """

    loss_is_scaled_for_ga = True
    temperature = 1.0
    length_setting = "max_length"
    columns: tuple[str, ...] = ()
    """Of a row, in TRL's prepared dataset."""
    batch_kind: type[RowBatch] = RowBatch
    """How the sequences of a step belong together."""
    aux_loss_enabled: bool
    router_aux_loss_coef: float
    # -- what a subclass defines --------------------------------------------------------------------------------

    def sequences_of(self, row: Mapping[str, Any]) -> list[Sequence]:
        """The sequences of a row with ``columns``, those that a router loss counts included where there is one."""
        raise NotImplementedError

    def measured(self, rows: Any, *, streamed: bool = False) -> Rows:
        """Rows with their hashes and counts; none is refused where they are all that is seen of a stream."""
        raise NotImplementedError

    def rows_of(self, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The rows, with ``columns``, that TRL's collator has put into a batch of a stream."""
        raise NotImplementedError

    def shares(self, trained_N: Tensor, part_N: Tensor, draw: Draw) -> Tensor:
        """(K, N) what sums over each row are multiplied by in the K terms of the loss, known before the draw.

        ``trained_N`` are trained tokens of the step's rows, ``part_N`` (int64) TRL's micro-batch of each over all
        processes.
        """
        raise NotImplementedError

    def loss_and_scores(self, batch: MicroBatch, scored: Scored, share_KB: Tensor) -> tuple[Tensor, Tensor]:
        """() the weighted loss of a micro-batch, and (b,) what its sequences add to the scores of their rows.

        Scores by the norm of a gradient are sums of squares.

        Args:
            batch: some sequences of this rank.
            scored: (b, T) log-probabilities of their tokens, and metrics if asked for.
            share_KB: (K, b) ``shares`` of their rows.
        """
        raise NotImplementedError

    @property
    def metrics_needed(self) -> bool:
        """Whether the loss itself needs metrics of tokens."""
        return False

    # -- what a subclass calls ----------------------------------------------------------------------------------

    def start_rows(self, rows: Rows | None, given: RowMethod | str | None = None) -> None:
        """Get ready to draw; TRL's trainer has been made.

        There are no ``rows`` of a stream. ``given`` is the trainer's argument ``method``.

        Raises:
            ConfigError: a model, or a way to spread it over processes, that is not served.
            CheckpointError: ``recorded_scores`` cannot be read, or are of another dataset.
        """
        args: Any = self.args
        check_processes(self)
        router = float(self.router_aux_loss_coef) if self.aux_loss_enabled else 0.0
        own = given if isinstance(given, RowMethod) else None
        method = replace(args.build_method(own), router_coef=router)
        self.method_in_words = {} if own is None and not is_own(args.method) else parts_in_words(method)
        self._streamed = rows is None
        self._unpruned = "" if args.row_prune_rate is not None else _unpruned(args, method, streamed=self._streamed)
        if self._unpruned:
            method = replace(method, rows=method.rows.at_rate(0.0))
        raise_problems(type(self).__name__, _router_problems(bias_problems(args, method.biases), method))
        self.clock = PhaseClock()
        nothing = np.ones(1)
        self._rows = rows or Rows(
            rows=[None], identities=nothing.astype(np.uint64), tokens=nothing, attended=nothing, trained=nothing
        )
        scores = RecordedScores(self._rows.identities, self._rows.tokens)
        if args.recorded_scores is not None and not self._streamed:
            scores.load(args.recorded_scores)
        self.source = RowSource(scores, method, seed=args.seed)
        self._block = self._part_N = torch.empty(0, dtype=torch.int64)
        self._place_B: list[int] = []
        self._scores: list[tuple[list[int], Tensor]] = []
        self._ended = False
        self.forwards = ForwardPasses(self, self._padded_forward)
        self.guard = NonFiniteGuard(self)
        self.add_callback(self.guard)
        end_at_exit()
        self.remember_settings()
        self._announce()

    # -- a step -------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """TRL's loader, which gives the places of rows in place of the rows; of a stream TRL's batches."""
        if self._streamed:
            return super().get_train_dataloader()
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
            self._take(batches, device)
            step, epoch = self.state.global_step, int(self.state.epoch or 0)
            draw = self.source.draw(self._block, step=step, epoch=epoch, done=share_done(self.state))
            metrics = row_metrics(self.source.scores.candidates(self._block), draw)
            self.add_metrics(metrics)
            count_tokens(self, int(self._rows.attended[self._block[draw.keep_N].numpy()].sum()))
            self._dropped = not bool(draw.keep_N.all())
            batch = self._own(draw)
            router = bool(self.method.router_coef)
            call_B = (self._part_N[self._place_B] % self._stride).to(device) if router else None
            calls, metrics = self.forwards.calls(batch, batch.weight_UB[0], self._calls, call_B=call_B)
        self.add_metrics(metrics)
        self._scores, self._loss_metrics = [], PartMetrics(self._stride)
        return [StepCall(micro_batches=each, call=call) for call, each in enumerate(calls)], None

    def _take(self, batches: list[Any], device: Any) -> None:
        """The rows of a step, of all processes, and the micro-batch of TRL's that each is of."""
        self._calls = len(batches)
        self._stride = max(self._calls, self.args.gradient_accumulation_steps)  # ranks may differ in their last step
        first = self.accelerator.process_index * self._stride
        if self._streamed:
            found = [self.rows_of(batch) for batch in batches]
            rows = [row for each in found for row in each]
            here = self.measured(rows, streamed=True)
            columns = np.stack([here.tokens, here.attended, here.trained], 1).astype(np.int64)
            counts = [len(each) for each in found]
        else:
            columns, rows = torch.cat([batch["row"] for batch in batches])[:, None], []
            counts = [len(batch["row"]) for batch in batches]
        part_N = torch.arange(first, first + self._calls).repeat_interleave(torch.tensor(counts))
        step = torch.cat([part_N[:, None].to(device), torch.as_tensor(columns).to(device)], 1)
        step = self._of_all_ranks(step)
        self._part_N, self._block = step[:, 0], step[:, 1]
        if self._streamed:
            self._rows = _of_stream(step, rows, self._mine())
            self._block = torch.arange(len(self._rows))
            scores = RecordedScores(self._rows.identities, self._rows.tokens)
            self.source = RowSource(scores, self.method, seed=self.source.seed)

    def _mine(self) -> list[int]:
        """Places of the step's rows that this process has loaded."""
        return (self._part_N // self._stride == self.accelerator.process_index).nonzero().flatten().tolist()

    def _of_all_ranks(self, step_NK: Tensor) -> Tensor:
        """The rows of a step: those of a last batch may not be as many on every rank (``even_batches: false``)."""
        padded: Any = self.accelerator.pad_across_processes(step_NK, dim=0, pad_index=-1)
        found: Any = self.accelerator.gather(padded)
        return found[found[:, 0] >= 0].cpu()

    def _own(self, draw: Draw) -> RowBatch:
        """The sequences of the kept rows that are this rank's: the dearest go to whoever has least."""
        kept = draw.keep_N.nonzero().flatten().tolist()
        tokens_N = self._rows.tokens[self._block.numpy()]
        if self._streamed or self.method.router_coef:  # nobody else has them, or they belong together
            places = sorted({*kept} & {*self._mine()})
        else:
            dealt = longest_processing_time(tokens_N[kept].tolist(), self.accelerator.num_processes)
            places = sorted(kept[which] for which in dealt[self.accelerator.process_index])
        found = [
            (place, each) for place in places for each in self.sequences_of(self._rows.rows[int(self._block[place])])
        ]
        weights = [float(draw.weight_N[place]) for place, _ in found]
        if not found:
            found, weights = [(0, IDLE)] * self.batch_kind.together, [0.0] * self.batch_kind.together
        self._place_B = [place for place, _ in found]
        trained_N = torch.from_numpy(self._rows.trained[self._block.numpy()]).double()
        device = self.accelerator.device
        self._share_KB = self.shares(trained_N, self._part_N, draw)[:, self._place_B].float().to(device)
        self._trained_B = trained_N[self._place_B].float().to(device)
        return batch_of(
            [each for _, each in found],
            torch.tensor(weights),
            row_tokens=[float(tokens_N[place]) for place in self._place_B],
            device=device,
            kind=self.batch_kind,
        )

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of one call: backward on all micro-batches but the last; in evaluation TRL's own."""
        if not isinstance(inputs, StepCall):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self._ended = inputs["call"] == self._calls - 1
        return self.backward_but_last(model, inputs["micro_batches"], lambda each: self._part(model, each))

    def end_call(self) -> None:
        """Record scores and metrics of an optimizer step after its last call."""
        if self._ended:
            self._ended = False
            self._record()
            self._log_metrics()

    def _part(self, model: Any, batch: MicroBatch) -> Tensor:
        """() the loss of a micro-batch; with a router loss all of it is of one micro-batch of TRL's."""
        router = self.method.router_coef
        metrics = self.metrics_needed or self._metrics_due()
        scored = self.forwards(model, batch, router=bool(router), metrics=metrics)
        loss, score_B = self.loss_and_scores(batch, scored, self._share_KB[:, batch.rows])
        places = [self._place_B[place] for place in batch.places]
        if scored.router_loss is not None:
            part = int(self._part_N[places[0]])
            of_part = self._block[self._part_N == part].numpy()
            balance = scored.router_loss / max(float(self._rows.attended[of_part].sum()), 1.0)
            loss = loss + router * balance / (self._calls * self.accelerator.num_processes)
            none, one = torch.zeros(1), torch.ones(1)
            self._loss_metrics.add("aux_loss", balance.view(1), none, one, torch.tensor([part % self._stride]))
        if not batch.idle:
            self._scores.append((places, score_B.detach()))
        return loss * self.accelerator.num_processes  # gradients are averaged over ranks

    def _record(self) -> None:
        """Remember the scores of the step on all ranks."""
        score_2N = torch.zeros(2, len(self._block), dtype=torch.float64)
        for places, score_B in self._scores:
            score_2N[0].index_add_(0, torch.tensor(places), score_B.cpu().double())
            score_2N[1, places] = 1.0
        if self.method.score == "norm":
            score_2N[0].sqrt_()
        score_N = score_2N.float().to(self.accelerator.device)
        found: Any = self.accelerator.reduce(score_N, reduction="sum")
        score_N, seen_N = found.cpu()
        self.source.record(self._block[seen_N > 0], score_N[seen_N > 0])

    # -- forward passes as TRL's --------------------------------------------------------------------------------

    def _padded_forward(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, width: int, compute_entropy: bool = False
    ) -> tuple[Tensor, None, dict[str, Tensor]]:
        """(b, width) log-probabilities of the last tokens of padded sequences, forwarded as TRL does, and metrics.

        That is padded on the right, so that positions that a model has learned begin at 0.
        """
        order_BT = attention_mask.argsort(dim=1, descending=True, stable=True)
        scored = attention_mask.clone()
        scored[:, :-width] = 0
        ids, mask, scored = (each.gather(1, order_BT) for each in (input_ids, attention_mask, scored))
        labels = ids.masked_fill(scored == 0, UNSCORED)
        with self.accelerator.autocast():
            output = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False, fused_lm_head=True)

        def back(value_BT: Tensor) -> Tensor:
            # Nothing predicts the first token; an adapter may have put tokens of its own before it.
            value_BT = F.pad(value_BT[:, 1 - ids.shape[1] :], (1, 0))
            return torch.zeros_like(value_BT).scatter(1, order_BT, value_BT)[:, -width:]

        return back(output.log_probs), None, metrics_of(output, back)


def _places(rows: list[int]) -> dict[str, Tensor]:
    """A batch of the loader: the places of its rows."""
    return {"row": torch.tensor(rows)}


def _of_stream(step_NK: Tensor, rows: list[Any], mine: list[int]) -> Rows:
    """The rows of one step of a stream: counts of all, and what this process has loaded."""
    of_all: list[Any] = [None] * len(step_NK)
    for place, row in zip(mine, rows, strict=True):
        of_all[place] = row
    tokens, attended, trained = step_NK[:, 1:].double().numpy().T
    identities = np.arange(len(of_all), dtype=np.uint64)
    return Rows(rows=of_all, identities=identities, tokens=tokens, attended=attended, trained=trained)


def _unpruned(args: Any, method: RowMethod, *, streamed: bool) -> str:
    """Why nothing is dropped where ``row_prune_rate`` is left out; "" where rows are."""
    if streamed:
        return "nothing pruned: a stream has no row to come back to"
    if method.router_coef and not args.accept_bias:
        return (
            "nothing pruned: the router loss is biased under pruning. To prune: router_aux_loss_coef: 0.0, or "
            "accept_bias: true"
        )
    return ""


def _router_problems(problems: list[str], method: RowMethod) -> list[str]:
    """The sentences that refuse a biased choice, with what trains without."""
    advice = " Or train without it, router_aux_loss_coef: 0.0, or on all rows, row_prune_rate: 0."
    return [each + advice if method.router_coef else each for each in problems]
