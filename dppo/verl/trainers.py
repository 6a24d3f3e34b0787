"""verl's trainers with pruning: the synchronous one requests the prompts of a step when it begins, the others ahead.

The others train on the groups that come back first, and replace failed or stale groups by other prompts.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transfer_queue  # pyright: ignore[reportMissingImports]
from torch import Tensor
from verl.trainer.ppo.v1 import trainer_colocate_async as colocate  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.v1 import trainer_separate_async as separate  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.v1.trainer_base import register_trainer  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync  # pyright: ignore[reportMissingImports]

from dppo.errors import CheckpointError, EngineError
from dppo.step import StepPrompts
from dppo.step.in_flight import InFlight, Requested
from dppo.verl.checkpoint import NAME
from dppo.verl.settings import WHERE, keeps_all
from dppo.verl.trainer_base import PrunedTrainer

TRAIN = "train"
"""Partition of the queue with the rows to train on."""


@register_trainer(NAME)
class DynamicPruningTrainer(PrunedTrainer, PPOTrainerSync):
    """``trainer.v1.trainer_mode=dynamic_pruning``."""

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self._row_of: dict[str, int] = {}
        """Rows of the prompts that were requested since the last step, by verl's names, if verl filters groups."""

    def _fetch_one_gen_batch(self) -> Any:
        """The prompts of this step, or a single prompt if verl filters groups, which takes as many as it needs."""
        if self.filters_groups:
            row_Q = self.source.stream.take(1)
            batch, (uid,) = self._fetch_rows(row_Q, None)
            self._row_of[uid] = int(row_Q)
            return batch
        prompts = self.session.prompts(number=self.global_steps, done=self._done(self.global_steps), parts=self._parts)
        batch, uid_Q = self._fetch_rows(prompts.row_Q, prompts.size_Q)
        self._request(prompts, uid_Q)
        return batch

    def _request(self, prompts: StepPrompts, uid_Q: list[str]) -> None:
        size_Q = [self.session.generations] * len(uid_Q) if prompts.size_Q is None else prompts.size_Q.tolist()
        self.requested = Requested(prompts=prompts, uid_Q=uid_Q, size_Q=size_Q)

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, Any], sample_batch_size: int) -> Any:
        """verl's, which waits for the prompts that were requested instead of for those of a whole block."""
        wanted = sample_batch_size if self.filters_groups else len(self.requested.uid_Q)
        return super()._step_once(metrics, timing_raw, wanted)

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], **options: Any) -> Any:
        """If verl filters groups, the prompts of the step are those left, in the order of the requests."""
        if self.filters_groups:
            left = {key.rsplit("_", 2)[0] for key in batch.keys}
            row_of, self._row_of = {uid: row for uid, row in self._row_of.items() if uid in left}, {}
            row_Q, generations = torch.tensor(list(row_of.values())), self.session.generations
            prompts = self.source.given(self.method, row_Q, self.global_steps, generations=generations)
            self._request(prompts, list(row_of))
        return super()._balance_batch(batch, metrics, **options)


class RequestsAhead(PrunedTrainer):
    """The common part of the asynchronous trainers."""

    @property
    def ahead(self) -> InFlight:
        """Prompts that were requested and have not been trained on."""
        assert self.session.in_flight is not None, "verl requests prompts before its dataset is there"
        return self.session.in_flight

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self.session.in_flight = InFlight(
            prompts=self.config.data.train_batch_size,
            generations=self.session.generations,
            updates=self.parameter_sync_step,
        )

    def _add_async_warmup_batches(self, num_warmup_batches: int | float) -> None:
        """Request the blocks that should be ahead, less those that a checkpoint has in flight."""
        for _ in range(int(num_warmup_batches) - len(self.ahead.due)):
            self._add_batch_to_generate()

    def _next_train_batch(self, num_prompts: int | None = None) -> Any:
        """The prompts of the next block, or others in place of ``num_prompts`` that verl has dropped."""
        if num_prompts is not None:
            return self._request_instead(self._gone, num_prompts)
        number = self.ahead.asked + 1
        prompts = self.session.prompts(number=number, done=self._done(number), multiple=self.ahead.updates)
        size_Q = prompts.size_Q
        if size_Q is None and self.method.sizes is not None:  # verl requests again by columns that all prompts have
            size_Q = torch.full((len(prompts.row_Q),), self.session.generations)
        batch, uid_Q = self._fetch_rows(prompts.row_Q, size_Q)
        self.session.in_flight = self.ahead.after_block(prompts, uid_Q)
        return batch

    def _request_instead(self, gone: list[str], count: int, row_Q: Tensor | None = None) -> Any:
        """Prompts in place of ``gone``, with the probabilities of these; default of ``row_Q``: the next rows."""
        if len(gone) != count:
            raise EngineError(
                f"verl asks for {count} prompts in place of others, and {len(gone)} of those in flight have left its "
                "queue: their probabilities are not known. Write trainer.v1.sampler.custom_sampler.path=null."
            )
        row_Q = self.source.stream.take(count) if row_Q is None else row_Q
        sizes = {flight.uid: flight.size for flight in self.ahead.flights}
        size_Q = None if self.method.sizes is None else torch.tensor([sizes[uid] for uid in gone])
        batch, uid_Q = self._fetch_rows(row_Q, size_Q)
        self.session.request_instead(gone, row_Q, uid_Q)
        return batch

    @property
    def _queued(self) -> set[str]:
        """verl's names of the prompts in its queue, back or not."""
        found = transfer_queue.kv_list(TRAIN) or {}
        return {key for key, tag in found.get(TRAIN, {}).items() if tag.get("is_prompt")}

    @property
    def _gone(self) -> list[str]:
        """Prompts in flight that verl has taken out of its queue, in the order of the requests."""
        queued = self._queued
        return [uid for uid in self.ahead.uids if uid not in queued]

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, Any], sample_batch_size: int) -> Any:
        """verl's, which waits for as many groups as the oldest block's part has."""
        return super()._step_once(metrics, timing_raw, self.ahead.groups)

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], **options: Any) -> Any:
        self.requested = self.session.returned(self._gone, self.global_steps)
        metrics["rollout/in_flight"] = float(len(self.ahead.flights))
        return super()._balance_batch(batch, metrics, **options)

    def _load_session(self, folder: Path) -> None:
        """The session, unless prompts in flight would be trained on without their weights."""
        super()._load_session(folder)
        if not self.ahead.asked:  # the checkpoint is of a trainer that requests none
            self.session.in_flight = replace(self.ahead, asked=self.global_steps)
        weighted = [flight for flight in self.ahead.flights if flight.weight != 1]
        if weighted and keeps_all(self.method):
            drawn = f"{folder} has {len(weighted)} prompts in flight that were drawn, and method={self.method.name!r}"
            advice = f"Write {WHERE}.method=dppo {WHERE}.completion_prune_rate=0."
            raise CheckpointError(f"{drawn} would train on them without their weights. {advice}")
        if unknown := self._queued - set(self.ahead.uids):
            others = f"{folder} has {len(unknown)} prompts in verl's queue that were requested without dynamic pruning"
            advice = f"their probabilities are not known. Leave them out: rm -r {folder}/transfer_queue"
            raise CheckpointError(f"{others}: {advice}")

    def _reissue_inflight_prompts(self, partition_id: str = TRAIN) -> int:
        """verl's, for prompts in its queue; the others are requested again here."""
        again = super()._reissue_inflight_prompts(partition_id)
        if lost := self._gone:
            row_Q = torch.tensor([each.row for each in self.ahead.taken(lost)])
            again += self._submit_batch_to_rollout(self._request_instead(lost, len(lost), row_Q))
        return again


@register_trainer(f"{NAME}_colocate_async")
class DynamicPruningColocateAsync(RequestsAhead, colocate.PPOTrainerColocateAsync):
    """``trainer.v1.trainer_mode=dynamic_pruning_colocate_async``: samplers resume interrupted rollouts."""

    mode = "colocate_async"


@register_trainer(f"{NAME}_separate_async")
class DynamicPruningSeparateAsync(RequestsAhead, separate.PPOTrainerSeparateAsync):
    """``trainer.v1.trainer_mode=dynamic_pruning_separate_async``: samplers are apart, a step has several updates."""

    mode = "separate_async"
