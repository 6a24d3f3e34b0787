"""Hooks in TRL's ``GRPOTrainer``: its private names under public ones.

``tests/trl/trl_methods.json`` lists what they rely on, and a test compares it with the installed TRL.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.trl.generation import prompts_read_once
from dppo.trl.grpo.rollouts import GeneratedBatch, loss_mask
from dppo.trl.loop import TrainingLoop
from dppo.trl.pictures import Pictures, listed_pictures
from dppo.trl.safeguards import failures_named


class GRPOHooks(TrainingLoop, GRPOTrainer):
    """``GRPOTrainer`` with public names for what a subclass overrides in training. Evaluation is TRL's own."""

    _deferring = False
    """True while completions are rolled out: their log-probabilities are computed later, for those kept."""

    def start_loop(self) -> None:
        if self._is_vlm:
            self._tokenizer.padding_side = "left"  # TRL pads prompts so, and the processor the kinds of their tokens
            if self.args.ddp_find_unused_parameters is None:
                self.args.ddp_find_unused_parameters = True  # the pass that synchronizes may have no picture
        super().start_loop()

    def next_inputs(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Inputs of the next call of the loss."""
        raise NotImplementedError

    def loss_of(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """() the loss of the inputs that ``next_inputs`` gave, to be differentiated."""
        raise NotImplementedError

    @contextmanager
    def generating(self) -> Iterator[None]:
        """A context in which the model has the attention that it was loaded with: generation is not in rows."""
        entered = self.forwards.layout.leave()
        try:
            yield
        finally:
            if entered:
                self.forwards.layout.enter()

    def _examples(self, row_Q: Tensor, generations: int | Tensor) -> list[dict[str, Any]]:
        """This rank's equal, contiguous slice of some rows of the dataset, each repeated for every completion."""
        row_N, accelerator = row_Q.repeat_interleave(torch.as_tensor(generations)), self.accelerator
        here = row_N.split(len(row_N) // accelerator.num_processes)[accelerator.process_index].tolist()
        dataset = self._remove_unused_columns(cast(Any, self.train_dataset), description="training")
        read = {row: dataset[row] for row in set(here)}  # reading a row costs more than copying it
        return [copy.deepcopy(read[row]) for row in here]

    def roll_out(self, examples: list[dict[str, Any]], *, equal_groups: bool = True) -> GeneratedBatch:
        """Completions of this rank's examples, with the rewards of all ranks.

        Log-probabilities, and the correction between sampler and trainer, are computed later, for completions kept.
        Without ``equal_groups`` of ``num_generations`` repeated examples each completion is requested alone.
        """
        calculate, rewards = self._calculate_rewards, list[Tensor]()  # as a subclass may have changed them

        def calculated(*args: Any, **kwargs: Any) -> Tensor:
            with self.clock("reward"):
                rewards.append(calculate(*args, **kwargs))
            return rewards[-1]

        with (
            patch.object(self, "_calculate_rewards", calculated),
            patch.object(self, "_deferring", True),
            patch.object(self, "vllm_importance_sampling_correction", False),
            patch.object(self, "num_generations", self.num_generations if equal_groups else 1),
        ):
            output = self._generate_and_score_completions(examples)
        # TRL shuffles here, and the next completions are sampled with the random numbers that come after it.
        order_B = torch.randperm(len(output["completion_ids"]))
        return GeneratedBatch(
            **{name: output[name] for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")},
            pictures=Pictures.of_output(output) if self._is_vlm else None,
            loss_mask=loss_mask(output["completion_mask"], output.get("tool_mask")),
            sampler_logp=output.get("sampling_per_token_logps"),
            place_B=order_B.argsort().to(output["completion_ids"].device),
            reward_NF=rewards[-1].cpu(),
        )

    def padded_forward(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """TRL's forward over padded sequences: log-probabilities, entropies and router loss, or None for each."""
        return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def correct_metric(self, name: str, value: float) -> None:
        """Replace the value that TRL has just added under this name."""
        self._metrics["train"][name][-1] = value

    def clear_samples(self) -> None:
        """Clear TRL's table of completions, which would mix two generations."""
        for name in ("prompt", "completion", "advantages", "extra"):
            self._logs[name].clear()  # of extra columns the names too: a reward may log them in some generations only
        for values in self._logs["rewards"].values():
            values.clear()

    def show_advantages(self, advantage_N: Tensor) -> None:
        """Put the (N,) advantages that are trained with, of all ranks, into TRL's table of completions."""
        self._logs["advantages"].clear()
        self._logs["advantages"].extend(advantage_N.tolist())

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As TRL's, without an empty table of completions."""
        with patch.object(self, "log_completions", self.log_completions and bool(self._logs["prompt"])):
            super().log(logs, *args, **kwargs)

    @property
    def training(self) -> bool:
        """True if the model is in training, and not in evaluation."""
        return cast(nn.Module, self.model).training

    @property
    def calls(self) -> int:
        """Calls of the loss so far; TRL counts from 0 after a resume."""
        return self._step

    @calls.setter
    def calls(self, calls: int) -> None:
        self._step = calls

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.next_inputs(generation_batch) if self.training else super()._prepare_inputs(generation_batch)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super()._generate_and_score_completions(listed_pictures(inputs) if self._is_vlm else inputs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        # TRL returns no old and reference terms if they are None.
        return (None, None, None) if self._deferring else self.padded_forward(*args, **kwargs)

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        with self.clock("rollout") if self.training else nullcontext(), self.generating():
            *others, images, tool_images = super()._generate(*args, **kwargs)
        return *others, images and [each or [] for each in images], tool_images

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        # Tools and their errors are outside.
        with failures_named(self) if self.use_vllm else prompts_read_once(self):
            return super()._generate_single_turn(*args, **kwargs)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        return self.loss_of(model, inputs) if self.training else super()._compute_loss(model, inputs)
