"""A trainer watched from outside: its methods are called through others that look at what goes in and comes out.

Neither our trainer nor TRL's has code for it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from typing import Any, cast

import torch
from torch import Tensor, nn
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.lab.runs.generation import Generation, generation_of
from dppo.step import StepPlan, StepPrompts
from dppo.trl.grpo.rollouts import GeneratedBatch
from dppo.trl.grpo.trainer import DPPOTrainer
from dppo.trl.metrics import RECORD

Look = Callable[..., Any]
"""A function that is called in place of a method, with the method as its first argument."""
WATCHED = {
    "train": "train",
    "evaluate": "evaluate",
    "training_step": "training_step",
    "roll_out": "_generate_and_score_completions",
    "generate": "_generate",
    "generate_turn": "_generate_single_turn",
    "rewards": "_calculate_rewards",
    "log_probs": "_get_per_token_logps_and_entropies",
    "loss": "_compute_loss",
    "save": "_save_checkpoint",
    "plan": "_plan",
}
"""Methods that can be watched, by our name for each; ``plan`` is of our trainer alone."""


def watch(trainer: GRPOTrainer, **looks: Look) -> None:
    """Call methods of a trainer through functions, by names of ``WATCHED``."""
    for name, look in looks.items():
        method = getattr(trainer, WATCHED[name])
        setattr(trainer, WATCHED[name], wraps(method)(partial(look, method)))


class Recorder:
    """The calls that a watched trainer makes. Here each does nothing.

    A recorder must not change what is trained, nor draw from a global generator. All ranks call every method together.
    """

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """A context around ``train``, and inside it around what is not training: ``evaluate``, ``save``, ``record``."""
        return nullcontext()

    def rolled_out(self, completions: int, tokens: int) -> None:
        """Count completions that this rank has generated for training, and the tokens that the model wrote."""

    def generation(self, generation: Generation) -> None:
        """Look at a generation, after its draws and before it is trained on."""

    def trained(self, tokens: Tensor) -> None:
        """Count () completion tokens that one call of the loss on this rank trains on."""


class Watch:
    """Calls a recorder around the phases of a trainer, and for its rollouts and losses."""

    def __init__(self, trainer: GRPOTrainer, recorder: Recorder) -> None:
        self.trainer, self.recorder = trainer, recorder
        phases = {name: self._within(name) for name in ("train", "evaluate", "save")}
        watch(trainer, **phases, generate=self._generate, loss=self._loss)

    @property
    def training(self) -> bool:
        """True if the model is in training, and not in evaluation."""
        return cast(nn.Module, self.trainer.model).training

    def trained_tokens(self, inputs: dict[str, Any]) -> Tensor:
        """() completion tokens that carry loss among the inputs of a call of the loss."""
        raise NotImplementedError

    def _within(self, phase: str) -> Look:
        def within(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            with self.recorder.phase(phase):
                return method(*args, **kwargs)

        return within

    def _generate(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        generated = generate(*args, **kwargs)
        if self.training:
            completion_ids, tool_mask = generated[1], generated[2]
            tokens = sum(map(len, completion_ids) if tool_mask is None else map(sum, tool_mask))
            self.recorder.rolled_out(len(completion_ids), tokens)
        return generated

    def _loss(self, compute_loss: Callable[..., Tensor], model: Any, inputs: dict[str, Any]) -> Tensor:
        if self.training:
            self.recorder.trained(self.trained_tokens(inputs))
        return compute_loss(model, inputs)


class DPPOWatch(Watch):
    """Watches a ``DPPOTrainer``."""

    def __init__(self, trainer: DPPOTrainer, recorder: Recorder) -> None:
        super().__init__(trainer, recorder)
        self._dppo = trainer
        watch(trainer, plan=self._plan)

    def trained_tokens(self, inputs: dict[str, Any]) -> Tensor:
        tokens = torch.zeros((), dtype=torch.int64)
        for batch in inputs["micro_batches"]:
            tokens = tokens + (batch.rank_batch.loss_mask[batch.rows].sum(1) * (batch.weight > 0)).sum()
        return tokens

    def _plan(self, plan_of: Callable[..., StepPlan], prompts: StepPrompts, generated: GeneratedBatch) -> StepPlan:
        plan = plan_of(prompts, generated)
        with self.recorder.phase("record"), self._dppo.clock(RECORD):
            self.recorder.generation(generation_of(self._dppo, plan, generated))
        return plan
