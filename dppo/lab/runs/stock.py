"""TRL's own trainer watched from outside: its phases, forward passes and generations."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import torch
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.lab.runs.generation import WHY, Generation
from dppo.lab.runs.watch import Recorder, Watch, watch
from dppo.rewards import identities
from dppo.trl.batch import PADDED
from dppo.trl.grpo.rollouts import loss_mask
from dppo.trl.grpo.schedule import AccumulationSchedule
from dppo.trl.hooks import add_metrics
from dppo.trl.metrics import RECORD, PhaseClock, wall

NOT_TIMED = "time/prune"
"""A phase that this trainer does not have."""


class StockWatch(Watch, TrainerCallback):
    """Logs ``time/*`` and ``rows/*`` of a ``GRPOTrainer`` and calls a recorder as ``DPPOWatch`` does."""

    def __init__(self, trainer: GRPOTrainer, recorder: Recorder, now: Callable[[], float] = wall) -> None:
        super().__init__(trainer, recorder)
        self._clock, self._cycle = PhaseClock(now), AccumulationSchedule.of_arguments(cast(GRPOConfig, trainer.args))
        self._row_of = rows_by_content(trainer.train_dataset)
        self._generations, self._forwards = 0, 0
        self._reward_N, self._seen_2 = torch.empty(0), torch.zeros(2, dtype=torch.int64)
        watch(
            trainer,
            rewards=self._rewards,
            log_probs=self._log_probs,
            roll_out=self._generation,
            training_step=self._timed_step,
        )
        trainer.add_callback(self)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` after gradient clipping."""
        self._clock.start("optimizer")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` when the weights have moved: the step's metrics go to the log."""
        self._clock.stop("optimizer")
        gathered = cast(Tensor, self.trainer.accelerator.gather(self._seen_2[None]))
        padded, unpadded = gathered.sum(0).tolist()
        metrics = {name: seconds for name, seconds in self._clock.flush().items() if name != NOT_TIMED} | {
            "rows/tokens": float(padded),
            "rows/forwards": float(self._forwards),
            "rows/padded_tokens": float(padded),
            "rows/sequence_tokens": float(unpadded),
        }
        add_metrics(self.trainer, metrics)
        self._forwards, self._seen_2 = 0, torch.zeros_like(self._seen_2)

    def _rewards(self, calculate: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        if not self.training:
            return calculate(*args, **kwargs)
        with self._clock("reward"):
            rewards = calculate(*args, **kwargs)
        weighted = (rewards * self.trainer.reward_weights.to(rewards.device)).nansum(1)
        self._reward_N = weighted.masked_fill(rewards.isnan().all(1), torch.nan).cpu().double()
        return rewards

    def _log_probs(self, score: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before_the_loss = self.training and not torch.is_grad_enabled()
        with self._clock("log_probs") if before_the_loss else nullcontext():
            return score(*args, **kwargs)

    def _generation(self, generate: Callable[..., dict[str, Any]], *args: Any, **kwargs: Any) -> dict[str, Any]:
        if not self.training:
            return generate(*args, **kwargs)
        with self._clock("rollout"):
            output = generate(*args, **kwargs)
        with self.recorder.phase("record"), self._clock(RECORD):
            self.recorder.generation(self._record(output))
        self._generations += 1
        return output

    def trained_tokens(self, inputs: dict[str, Any]) -> Tensor:
        masks = inputs["prompt_mask"], inputs["completion_mask"]
        padded = torch.tensor(sum(mask.numel() for mask in masks), device=masks[0].device)
        unpadded = masks[0].sum() + masks[1].sum()
        self._seen_2 = self._seen_2.to(masks[0].device) + torch.stack([padded, unpadded])
        self._forwards += 1
        return loss_mask(inputs["completion_mask"], inputs.get("tool_mask")).sum()

    def _timed_step(self, training_step: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        with self._clock("forward_backward"):
            return training_step(*args, **kwargs)

    def _record(self, output: dict[str, Any]) -> Generation:
        """The generation as a record: every prompt was rolled out, and every completion is kept."""
        trainer, mask = self.trainer, output["completion_mask"]
        gather = cast(Callable[[Tensor], Tensor], trainer.accelerator.gather)
        group, count = int(trainer.num_generations or 1), len(self._reward_N)
        ones_N = torch.ones(count, dtype=torch.float64)
        logged = list(cast(Any, trainer)._logs["prompt"])  # of all ranks
        prompts = identities(logged[::group]).tolist()
        row_Q = torch.tensor([self._row_of.get(each, -1) for each in prompts], dtype=torch.int64)
        return Generation(
            step=trainer.state.global_step + 1,
            steps=self._cycle.passes.steps,
            number=self._generations,
            epoch=trainer.state.epoch,
            size_Q=torch.full_like(row_Q, group),
            candidate_P=row_Q,
            prob_P=ones_N[: len(row_Q)],
            keep_P=ones_N[: len(row_Q)].bool(),
            row_Q=row_Q,
            reward_N=self._reward_N,
            advantage_N=gather(output["advantages"]).cpu().double(),
            prob_N=ones_N,
            weight_N=ones_N,
            why_N=torch.full((count,), WHY.index("kept")),
            tokens_N=gather(loss_mask(mask, output.get("tool_mask")).sum(1)).cpu(),
            first_row=trainer.accelerator.process_index * len(mask),
            **{name: output[name] for name in PADDED},
        )


def rows_by_content(dataset: Any) -> dict[int, int]:
    """Rows of a dataset by the content of their prompts, of equal ones the first; none without a ``prompt`` column."""
    known = isinstance(dataset, Dataset) and "prompt" in dataset.column_names
    keys = identities(dataset["prompt"]).tolist() if known else []
    return dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
