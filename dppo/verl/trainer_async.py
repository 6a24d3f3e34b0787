"""verl's asynchronous trainers with pruning: prompts are asked for ahead of the step they train in.

verl asks for a block of prompts in each step, trains on whichever groups are back, and puts other prompts in the place
of groups that failed or are stale. The session knows with which probability each prompt in flight was asked.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transfer_queue  # pyright: ignore[reportMissingImports]
from torch import Tensor
from verl.trainer.ppo.v1.trainer_base import register_trainer  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.v1.trainer_colocate_async import (  # pyright: ignore[reportMissingImports]
    PPOTrainerColocateAsync,
)
from verl.trainer.ppo.v1.trainer_separate_async import (  # pyright: ignore[reportMissingImports]
    PPOTrainerSeparateAsync,
)
from verl.utils import tensordict_utils  # pyright: ignore[reportMissingImports]
from verl.utils.dataset.rl_dataset import collate_fn  # pyright: ignore[reportMissingImports]

from dppo.errors import CheckpointError, EngineError
from dppo.step.in_flight import InFlight
from dppo.verl.checkpoint import NAME
from dppo.verl.prompts import examples
from dppo.verl.settings import WHERE, keeps_all
from dppo.verl.trainer import PrunedTrainer

TRAIN = "train"
"""Partition of the queue with what is trained on."""


class AsksAhead(PrunedTrainer):
    """The part of an asynchronous trainer that asks for prompts, and says what an update is made of."""

    @property
    def ahead(self) -> InFlight:
        """Prompts that were requested and have not been trained on; there once the dataset is."""
        assert self.session.in_flight is not None, "verl requests prompts before its dataset is there"
        return self.session.in_flight

    @property
    def _ahead_of_training(self) -> float:
        return float(self.config.trainer.v1[self.mode].num_warmup_batches)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self.session.in_flight = InFlight(
            prompts=self.config.data.train_batch_size,
            generations=self.session.generations,
            updates=self.parameter_sync_step,
        )

    # -- asking -------------------------------------------------------------------------------------------------------

    def _add_async_warmup_batches(self, num_warmup_batches: int | float) -> None:
        """As many blocks as are to be ahead, less those that a checkpoint has in flight."""
        for _ in range(int(num_warmup_batches) - len(self.ahead.due)):
            self._add_batch_to_generate()

    def _next_train_batch(self, num_prompts: int | None = None) -> Any:
        """The prompts of the next block, or others in the place of ``num_prompts`` that verl has dropped."""
        if num_prompts is not None:
            return self._ask_instead_of(self._gone, num_prompts)
        number = self.ahead.asked + 1
        done = min((number - 1) / max(self.total_training_steps, 1), 1.0)
        prompts = self.session.prompts(number=number, done=done, multiple=self.ahead.updates)
        size_Q = prompts.size_Q
        if size_Q is None and self.method.sizes is not None:  # verl asks again by columns that all prompts have
            size_Q = torch.full((len(prompts.row_Q),), self.session.generations)
        batch, uid_Q = self._examples(prompts.row_Q, size_Q)
        self.session.request_ahead(prompts, uid_Q)
        return batch

    def _ask_instead_of(self, gone: list[str], count: int, row_Q: Tensor | None = None) -> Any:
        """Ask for prompts in the place of others, verl's names of ``count`` of which are given, by their probabilities.

        ``row_Q`` are rows of the dataset; default: the next ones.
        """
        if len(gone) != count:
            raise EngineError(
                f"verl asks for {count} prompts in the place of others, and {len(gone)} of those in flight have left "
                "its queue: it is not known with which probability they were asked. Write "
                "trainer.v1.sampler.custom_sampler.path=null."
            )
        row_Q = self.source.stream.take(count) if row_Q is None else row_Q
        sizes = {flight.uid: flight.size for flight in self.ahead.flights}
        size_Q = None if self.method.sizes is None else torch.tensor([sizes[uid] for uid in gone])
        batch, uid_Q = self._examples(row_Q, size_Q)
        self.session.request_instead(gone, row_Q, uid_Q)
        return batch

    def _examples(self, row_Q: Tensor, size_Q: Tensor | None) -> tuple[Any, list[str]]:
        """Rows of the dataset as verl sends them to samplers, and its names of them."""
        self.train_dataloader_it = iter([collate_fn(examples(self.train_dataset, row_Q, size_Q))])
        batch = self._fetch_one_gen_batch()
        tensordict_utils.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        return batch, [str(uid) for uid in batch["uid"]]

    @property
    def _queued(self) -> set[str]:
        """verl's names of the prompts in its queue, back or not."""
        found = transfer_queue.kv_list(TRAIN) or {}
        return {key for key, tag in found.get(TRAIN, {}).items() if tag.get("is_prompt")}

    @property
    def _gone(self) -> list[str]:
        """Prompts in flight that verl has taken out of its queue, in the order of the asking."""
        queued = self._queued
        return [uid for uid in self.ahead.uids if uid not in queued]

    # -- updates ------------------------------------------------------------------------------------------------------

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, Any], sample_batch_size: int) -> Any:
        """An update waits for as many groups as its part of the oldest block has, whichever come back first."""
        return super()._step_once(metrics, timing_raw, self.ahead.groups)

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], **options: Any) -> Any:
        """The first hook that knows which groups verl has taken."""
        self.requested = self.session.returned(self._gone, self.global_steps)
        metrics["rollout/in_flight"] = float(len(self.ahead.flights))
        return super()._balance_batch(batch, metrics, **options)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if not self.global_steps:
            return
        if not self.ahead.asked:  # the checkpoint is of a trainer that requests none
            self.session.in_flight = replace(self.ahead, asked=self.global_steps)
        self._check_flights(self._resumed_folder)

    def _check_flights(self, folder: Path) -> None:
        """Refuse prompts in flight that would be trained on without their weights."""
        weighted = [flight for flight in self.ahead.flights if flight.candidate.weight != 1]
        if weighted and keeps_all(self.method):
            raise CheckpointError(
                f"{folder} has {len(weighted)} prompts in flight that were drawn, and method={self.method.name!r} "
                f"would train on them without their weights. Write {WHERE}.method=dppo {WHERE}.completion_prune_rate=0."
            )
        unknown = sorted(self._queued - set(self.ahead.uids))
        if unknown:
            raise CheckpointError(
                f"{folder} has {len(unknown)} prompts in verl's queue that were asked for without dynamic pruning: it "
                f"is not known with which probability. Leave them out: rm -r {folder}/transfer_queue"
            )

    def _reissue_inflight_prompts(self, partition_id: str = TRAIN) -> int:
        """verl asks again for what its queue holds; what is in flight and not in its queue is asked for here."""
        again = super()._reissue_inflight_prompts(partition_id)
        lost = self._gone
        if lost:
            row_Q = torch.tensor([each.candidate.row for each in self.ahead.taken(lost)])
            again += self._submit_batch_to_rollout(self._ask_instead_of(lost, len(lost), row_Q))
        return again


@register_trainer(f"{NAME}_colocate_async")
class DynamicPruningColocateAsync(AsksAhead, PPOTrainerColocateAsync):
    """``trainer.v1.trainer_mode=dynamic_pruning_colocate_async``: samplers go on where they were after each update."""

    mode = "colocate_async"


@register_trainer(f"{NAME}_separate_async")
class DynamicPruningSeparateAsync(AsksAhead, PPOTrainerSeparateAsync):
    """``trainer.v1.trainer_mode=dynamic_pruning_separate_async``: samplers are apart, a step has several updates."""

    mode = "separate_async"
