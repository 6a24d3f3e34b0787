"""A trainer watched from outside, without code in it: functions around its methods see what goes in and comes out."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import TrainerCallback
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.trl.grpo.rollouts import loss_mask
from dppo.trl.loop import TrainingLoop
from dppo.trl.metrics import PhaseClock, wall

Look = Callable[..., Any]
"""A function that is called in place of a method, with the method as its first argument."""
WATCHED = {
    "train": "train", "evaluate": "evaluate", "training_step": "training_step", "save": "_save_checkpoint",
    "roll_out": "_generate_and_score_completions", "generate": "_generate", "generate_turn": "_generate_single_turn",
    "rewards": "_calculate_rewards", "log_probs": "_get_per_token_logps_and_entropies", "loss": "_compute_loss",
    "plan": "_plan",
}  # fmt: skip
"""Methods that can be watched, by our name for each; ``plan`` is of our trainer alone."""


def watch(trainer: GRPOTrainer, **looks: Look) -> None:
    """Call methods of a trainer through functions, by names of ``WATCHED``."""
    for name, look in looks.items():
        method = getattr(trainer, WATCHED[name])
        setattr(trainer, WATCHED[name], wraps(method)(partial(look, method)))


def is_training(trainer: GRPOTrainer) -> bool:
    """True if the model is in training, and not in evaluation."""
    return cast(nn.Module, trainer.model).training


def trained_tokens(inputs: dict[str, Any]) -> Tensor:
    """() completion tokens that carry loss among the inputs of a call of the loss, of our trainer or TRL's own."""
    if "micro_batches" not in inputs:
        return loss_mask(inputs["completion_mask"], inputs.get("tool_mask")).sum()
    tokens = torch.zeros((), dtype=torch.int64)
    for batch in inputs["micro_batches"]:
        tokens = tokens + (batch.rank_batch.loss_mask[batch.rows].sum(1) * (batch.weight > 0)).sum()
    return tokens


class StockPhases(TrainerCallback):
    """Logs ``time/*`` and ``rows/*`` of TRL's own ``GRPOTrainer``; the inputs of its loss go to ``forward``."""

    def __init__(self, trainer: GRPOTrainer, now: Callable[[], float] = wall) -> None:
        self.trainer = trainer
        self._clock, self._forwards, self._seen_2 = PhaseClock(now), 0, torch.zeros(2, dtype=torch.int64)
        timed = {"rewards": "reward", "roll_out": "rollout", "training_step": "forward_backward"}
        looks = {name: partial(self._timed, phase) for name, phase in timed.items()}
        watch(trainer, **looks, log_probs=self._log_probs)
        trainer.add_callback(self)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = self._clock.now()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the metrics of the step."""
        self._clock.add("optimizer", self._clock.now() - self._began)
        gathered = cast(Tensor, self.trainer.accelerator.gather(self._seen_2[None]))
        padded, unpadded = map(float, gathered.sum(0).tolist())
        phases = {name: seconds for name, seconds in self._clock.flush().items() if name != "time/prune"}
        rows = {"tokens": padded, "forwards": float(self._forwards)}
        rows |= {"padded_tokens": padded, "sequence_tokens": unpadded}
        TrainingLoop.add_metrics(self.trainer, phases | {f"rows/{name}": value for name, value in rows.items()})
        self._forwards, self._seen_2 = 0, torch.zeros_like(self._seen_2)

    def forward(self, inputs: dict[str, Any]) -> None:
        """Count the tokens of a call of the loss in training, with padding and without."""
        masks = inputs["prompt_mask"], inputs["completion_mask"]
        padded = torch.tensor(sum(mask.numel() for mask in masks), device=masks[0].device)
        unpadded = masks[0].sum() + masks[1].sum()
        self._seen_2 = self._seen_2.to(masks[0].device) + torch.stack([padded, unpadded])
        self._forwards += 1

    def _timed(self, phase: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._clock(phase) if is_training(self.trainer) else nullcontext():
            return method(*args, **kwargs)

    def _log_probs(self, score: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before_the_loss = is_training(self.trainer) and not torch.is_grad_enabled()
        with self._clock("log_probs") if before_the_loss else nullcontext():
            return score(*args, **kwargs)
