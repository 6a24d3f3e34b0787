"""verl's synchronous trainer with pruning: the prompts of a step are requested when it begins."""

from typing import Any

import torch
from verl.trainer.ppo.v1.trainer_base import register_trainer  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync  # pyright: ignore[reportMissingImports]

from dppo.step import StepPrompts
from dppo.step.in_flight import Requested
from dppo.verl.checkpoint import NAME
from dppo.verl.trainer_base import PrunedTrainer


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
            prompts = self.session.given_prompts(torch.tensor(list(row_of.values())), self.global_steps)
            self._request(prompts, list(row_of))
        return super()._balance_batch(batch, metrics, **options)
