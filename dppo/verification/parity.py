"""Our trainer beside TRL's on the same model and completions, and dense rows beside padding, with their gradients."""

import contextlib
import copy
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.utils import logging as transformers_logging
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from dppo.environment import SMALL
from dppo.packing import SEGMENT_SDPA, Kernel
from dppo.packing.attention import unwrapped, use_rows
from dppo.packing.check import LayoutCheck, check_rows
from dppo.packing.head import add_scored_head, unsupported_head
from dppo.rng import Purpose, generator
from dppo.verification.subject import Subject, log_probs
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import TOKENS, build_tokenizer

LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
}
"""Compared losses, by the settings of TRL that choose them."""
Gradient = dict[str, Tensor]
"""Parameter names to gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Completions and rewards that both trainers get in place of generation."""

    title: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    prompt_tokens: tuple[list[int], ...]
    completion_tokens: tuple[tuple[list[int], ...], ...]
    """Completions of each prompt, the same number of each."""
    reward_PG: Tensor


def script_of(subject: Subject, prompts: int = 4) -> Script:
    """The subject's rollouts of the prompts whose rewards differ most; of a tiny model if the subject's is large."""
    if sum(p.numel() for p in subject.model.parameters()) > SMALL:
        return tiny_script()
    count, spread_P = subject.generations, subject.reward_PG.nan_to_num(0.0).std(1)
    chosen = spread_P.argsort(descending=True, stable=True)[:prompts].tolist()
    return Script(
        title="the model",
        model=subject.model,
        tokenizer=subject.tokenizer,
        prompt_tokens=tuple(subject.prompt_tokens[row] for row in chosen),
        completion_tokens=tuple(subject.completion_tokens[row * count :][:count] for row in chosen),
        reward_PG=subject.reward_PG[chosen],
    )


def tiny_script(prompts: int = 4) -> Script:
    """Random completions of random lengths, four of each prompt, on the untrained embedded model."""
    rng = generator(0, Purpose.CHECK, 4)

    def words(count: int, least: int, most: int) -> tuple[list[int], ...]:
        return tuple(rng.integers(4, len(TOKENS), int(rng.integers(least, most))).tolist() for _ in range(count))

    return Script(
        title="a tiny Qwen3",
        model=build_model(0),
        tokenizer=build_tokenizer(),
        prompt_tokens=words(prompts, 3, 9),
        completion_tokens=tuple(words(4, 2, 16) for _ in range(prompts)),
        reward_PG=torch.from_numpy(rng.integers(0, 3, (prompts, 4)).astype(float)),
    )


class TrainerStep(NamedTuple):
    """Result of one step of a trainer."""

    gradient: Gradient
    loss: float
    trainer: Any


def one_step(
    trainer_class: type[GRPOTrainer], config_class: type[GRPOConfig], script: Script, **options: Any
) -> TrainerStep:
    """Loss and gradient of one step over all completions of a script. The weights do not move."""
    recorder, size = _Recorder(), script.reward_PG.shape
    rollouts, rewards = _scripted(script)
    with tempfile.TemporaryDirectory() as folder, _quiet():
        args = config_class(
            output_dir=folder,
            per_device_train_batch_size=size.numel(),
            num_generations=size[1],
            max_completion_length=max(len(tokens) for group in script.completion_tokens for tokens in group),
            max_steps=1,
            learning_rate=0.0,
            optim="sgd",
            max_grad_norm=0.0,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            disable_dropout=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            **options,
        )
        trainer = trainer_class(
            model=copy.deepcopy(script.model).cpu().float(),
            reward_funcs=rewards,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": [str(index) for index in range(size[0])]}),
            processing_class=copy.deepcopy(script.tokenizer),
            rollout_func=rollouts,
            callbacks=[recorder],
        )
        loss = float(trainer.train().training_loss)
    return TrainerStep(recorder.gradient, loss, trainer)


def relative_difference(left: Gradient, right: Gradient) -> float:
    """Norm of the difference of two gradients over the norm of the second; infinite if they are of other parameters."""
    if left.keys() != right.keys() or not right:
        return float("inf")
    difference = sum(float((left[name].double() - right[name].double()).square().sum()) for name in right)
    return (difference / sum(float(value.double().square().sum()) for value in right.values())) ** 0.5


def weighted_sum_of_completions(step: TrainerStep) -> Gradient:
    """The gradient by the weights of our trainer's step, summed here one completion at a time.

    Every ratio must be 1, and the loss must have the slope ``-advantage`` there.
    """
    trainer = step.trainer
    batch, model = trainer.in_use.batch, trainer.model
    model.zero_grad()
    for row in batch.weight_UB[0].nonzero().squeeze(1).tolist():
        prompt = batch.prompt_ids[row][batch.prompt_mask[row].bool()].tolist()
        completion = batch.completion_ids[row][batch.completion_mask[row].bool()].tolist()
        factor = -float(batch.weight_UB[0, row] * batch.advantage_B[row]) / batch.sizes.denominator
        if trainer.method.normaliser.per_sequence:
            factor /= len(completion)
        (factor * log_probs(model, prompt, completion).sum()).backward()
    return _gradient(model)


def _gradient(model: torch.nn.Module) -> Gradient:
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


class _Recorder(TrainerCallback):
    """Keeps a copy of the gradient before the optimizer uses it."""

    gradient: Gradient

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.gradient = _gradient(model)


def _scripted(script: Script) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A rollout function and a reward function that return the script's values for prompts by their numbers."""

    def places(prompts: list[str]) -> list[tuple[int, int]]:
        """Prompt and completion of each place of a batch: the first, second, ... of its prompt."""
        return [(int(prompt), prompts[:place].count(prompt)) for place, prompt in enumerate(prompts)]

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        completions = [script.completion_tokens[row][number] for row, number in places(prompts)]
        return {
            "prompt_ids": [script.prompt_tokens[int(prompt)] for prompt in prompts],
            "completion_ids": completions,
            "logprobs": [[-1.0] * len(tokens) for tokens in completions],
        }

    def scripted_rewards(prompts: list[str], **columns: Any) -> list[float]:
        return [float(script.reward_PG[place]) for place in places(prompts)]

    return rollouts, scripted_rewards


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Neither trainer prints, warns, or uses torch's global generator."""
    level, nowhere = transformers_logging.get_verbosity(), io.StringIO()
    transformers_logging.set_verbosity_error()
    streams = contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere)
    try:
        with warnings.catch_warnings(action="ignore"), streams[0], streams[1], torch.random.fork_rng():
            yield
    finally:
        transformers_logging.set_verbosity(level)


def rows_against_padding(model: PreTrainedModel, *, temperature: float, kernel: Kernel = SEGMENT_SDPA) -> LayoutCheck:
    """Compare log-probabilities and gradients by rows and by padding; the model is left unchanged."""
    # A copy, since rows replace the model's attention and head; of everything but the weights, which may be large.
    prepared = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    base = unwrapped(prepared)
    use_rows(base)
    add_head = add_fused_lm_head if unsupported_head(base) else add_scored_head
    add_head(base, temperature=temperature)
    return check_rows(prepared, temperature=temperature, kernel=kernel)
