"""TRL's trainer opened at its joints, as ``checkpoints/hooks.py`` and ``served.py`` do: names that TRL keeps private.

``Joints`` gives them public names. What it relies on in TRL is listed in ``tests/trl/trl_methods.json`` and compared
with the installed TRL, so that another version is a change of this file, and a failing test says of which line.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from typing import Any, cast

import torch
from torch import Tensor, nn
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import use_adapter

from dppo.trl.batch import PADDED
from dppo.trl.checkpoints.hooks import CheckpointHooks
from dppo.trl.generation import prompts_read_once
from dppo.trl.grpo.plan import Recorder
from dppo.trl.grpo.rollouts import GeneratedBatch
from dppo.trl.instead import method_replaced
from dppo.trl.metrics import PhaseClock
from dppo.trl.safeguards import failures_named


class Joints(CheckpointHooks, GRPOTrainer):
    """``GRPOTrainer`` with public names for what a subclass puts in its place, while it trains.

    A subclass says what a call of the loss trains on (``next_inputs``), what that loss is (``loss_of``), and what goes
    into a checkpoint and comes back out of it. Evaluation is TRL's own.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.clock = PhaseClock()
        self.recorder = Recorder()
        self._deferring = False
        super().__init__(*args, **kwargs)

    # -- what a subclass defines --------------------------------------------------------------------------------

    def next_inputs(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """What this call of the loss trains on."""
        raise NotImplementedError

    def loss_of(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """() the loss of what ``next_inputs`` gave, to be differentiated."""
        raise NotImplementedError

    @contextmanager
    def generating(self) -> Iterator[None]:
        """A context around every generation of completions."""
        yield

    # -- what a subclass calls ----------------------------------------------------------------------------------

    def roll_out(self, examples: list[dict[str, Any]], *, equal_groups: bool = True) -> GeneratedBatch:
        """Completions of this rank's examples, with the rewards of all ranks.

        Log-probabilities of old and reference policies and the correction between sampler and trainer are not
        computed: that is done for the completions that are left.

        Args:
            examples: rows of the dataset, each repeated for every completion; as many on every rank.
            equal_groups: whether ``num_generations`` times; otherwise each completion is asked for by itself.
        """
        correction, generations = self.vllm_importance_sampling_correction, self.num_generations
        self._deferring, self.vllm_importance_sampling_correction = True, False
        self.num_generations = generations if equal_groups else 1
        try:
            with self._rewards_kept() as rewards:
                output = self._generate_and_score_completions(examples)
        finally:
            self._deferring, self.vllm_importance_sampling_correction = False, correction
            self.num_generations = generations
        # TRL shuffles here, and the next completions are sampled with the random numbers that come after it.
        order_B = torch.randperm(len(output["completion_ids"]))
        return GeneratedBatch(
            **{name: output[name] for name in PADDED},
            tool_mask=output.get("tool_mask"),
            sampler_logp=output.get("sampling_per_token_logps"),
            place_B=order_B.argsort().to(output["completion_ids"].device),
            reward_NF=rewards[-1].cpu(),
        )

    @contextmanager
    def _rewards_kept(self) -> Iterator[list[Tensor]]:
        """A context that keeps rewards as TRL is given them: what a subclass makes of them is what we train on."""
        calculate = self._calculate_rewards
        found: list[Tensor] = []

        def kept(*args: Any, **kwargs: Any) -> Tensor:
            with self.clock("reward"):
                found.append(calculate(*args, **kwargs))
            return found[-1]

        with method_replaced(self, "_calculate_rewards", kept):
            yield found

    def padded_forward(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """TRL's forward over padded sequences: log-probabilities, entropies and router loss, or None for each."""
        return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def correct_metric(self, name: str, value: float) -> None:
        """Put a metric in the place of the one that TRL has just added under its name."""
        self._metrics["train"][name][-1] = value

    def clear_samples(self) -> None:
        """Forget the completions kept for TRL's table: with other row counts it would mix two generations."""
        whole = [self._logs[name] for name in ("prompt", "completion", "advantages")]
        for log in (*whole, *self._logs["rewards"].values(), self._logs["extra"]):
            log.clear()  # of extra columns the names too: a reward may log them in some generations only

    def show_advantages(self, advantage_N: Tensor) -> None:
        """Put the advantages that are trained with into TRL's table of completions; (N,) of all ranks, in its order."""
        table = self._logs["advantages"]
        table.clear()
        table.extend(advantage_N.tolist())

    @contextmanager
    def without_empty_table(self) -> Iterator[None]:
        """TRL's table of completions is left out where there are none: those of a checkpoint were shown before it."""
        shown = self.log_completions
        self.log_completions = shown and bool(self._logs["prompt"])
        try:
            yield
        finally:
            self.log_completions = shown

    @property
    def loaded_dataset(self) -> Any:
        """The training set, with those columns that TRL's loader hands on."""
        return self._remove_unused_columns(cast(Any, self.train_dataset), description="training")

    @property
    def training(self) -> bool:
        """Whether the model is in training, and not in evaluation."""
        return cast(nn.Module, self.model).training

    @property
    def calls(self) -> int:
        """Calls of the loss so far, counted as TRL counts them: from 0 after a resume."""
        return self._step

    @calls.setter
    def calls(self, calls: int) -> None:
        self._step = calls

    @property
    def pad_token(self) -> int:
        """Id that pads prompts and completions."""
        return cast(int, self._tokenizer.pad_token_id)

    # -- in TRL's place -----------------------------------------------------------------------------------------

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not self.training:
            return super()._prepare_inputs(generation_batch)
        return self.next_inputs(generation_batch)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        # TRL leaves old and reference terms out of what it returns where they are None.
        return (None, None, None) if self._deferring else self.padded_forward(*args, **kwargs)

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        training = self.training
        with self.clock("rollout") if training else nullcontext(), self.generating():
            generated = super()._generate(*args, **kwargs)
        if training:
            self.recorder.rolled_out(*written_by_model(generated))
        return generated

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        # Tools and their errors are outside.
        with failures_named(self) if self.use_vllm else prompts_read_once(self):
            return super()._generate_single_turn(*args, **kwargs)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if not self.training:
            return super()._compute_loss(model, inputs)
        return self.loss_of(model, inputs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's evaluation, which a recorder does not count as training."""
        with self.recorder.phase("evaluate"):
            return super().evaluate(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with self.recorder.phase("save"):
            super()._save_checkpoint(model, trial)


def written_by_model(generated: Any) -> tuple[int, int]:
    """Completions that TRL has generated on this rank, and their tokens less those of tools."""
    completion_ids, tool_mask = generated[1], generated[2]
    return len(completion_ids), sum(map(len, completion_ids) if tool_mask is None else map(sum, tool_mask))


Look = Callable[..., Any]
"""What is called in place of a method, with the method as its first argument."""
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
}
"""Methods of TRL's own trainer that can be watched from outside, by our name for each."""


def watch(trainer: GRPOTrainer, **looks: Look) -> None:
    """Call methods of TRL's own trainer through others that look at what goes in and comes out."""
    for name, look in looks.items():
        method = getattr(trainer, WATCHED[name])
        setattr(trainer, WATCHED[name], wraps(method)(partial(look, method)))


@contextmanager
def reference_model(trainer: Any) -> Iterator[Any]:
    """The reference policy of a trainer: a model of its own, or the policy without its adapter."""
    if trainer.ref_model is not None:
        yield trainer.ref_model
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
        yield trainer.model


def loss_of_pairs(trainer: Any, model: Callable[..., Any], inputs: Mapping[str, Tensor]) -> tuple[Any, Any]:
    """TRL's loss of a batch of its collator and the metrics it would log, by name; ``model`` stands for the policy.

    What the trainer has measured before is forgotten.
    """
    trainer._metrics = {"train": defaultdict(list)}
    loss = DPOTrainer._compute_loss(trainer, model, inputs, False)
    return loss, trainer._metrics["train"]


def add_metrics(trainer: Any, metrics: Mapping[str, float]) -> None:
    """Add metrics of this step to a trainer's next log of training; several of one name are averaged.

    NaN, of a metric that is not known, is left out: TRL would log None if there is no other value.
    """
    for name, value in metrics.items():
        if not math.isnan(value):
            trainer._metrics["train"][name].append(value)


def count_tokens(trainer: Any, tokens: int) -> None:
    """Add tokens to those that a trainer on rows has trained on, which it logs as ``num_tokens``."""
    trainer._total_train_tokens += tokens
    trainer._metrics["train"]["num_tokens"] = [trainer._total_train_tokens]


def logged_prompts(trainer: GRPOTrainer) -> list[Any]:
    """Prompts of the latest generation, of all ranks, one for each completion."""
    return list(trainer._logs["prompt"])
