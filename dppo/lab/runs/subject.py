"""A run as a subject of verification: its model, problems and rewards."""

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from peft import get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, TrainerState
from trl.trainer.utils import get_peft_config

from dppo.environment import SMALL
from dppo.errors import ConfigError
from dppo.lab.demo.scratch import SCRATCH
from dppo.lab.demo.subject import quick_policy
from dppo.lab.runs.data import load_dataset
from dppo.lab.runs.embedded import EMBEDDED
from dppo.lab.runs.follow import no_progress_bars
from dppo.lab.runs.models import cannot_load, chat_options, hub_options, load_tokenizer, model_of, prompt_tokens
from dppo.lab.runs.parsing import Run
from dppo.lab.runs.parts import START_FOLDER
from dppo.lab.runs.rewards import load_rewards
from dppo.lab.subject import Scorer, SubjectSampling, frozen_subject
from dppo.rewards import guarded
from dppo.rng import Purpose, generator
from dppo.verification.subject import Subject

FEW_PARAMETERS = (16, SubjectSampling(generations=8, max_new_tokens=128))
"""Prompts and sampling for models that roll out in a second or two."""
MANY_PARAMETERS = (8, SubjectSampling(generations=4, max_new_tokens=64, limit_seconds=25.0))
"""The same for models of millions of parameters: a verification takes minutes on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutParts:
    """Model, prompts, scorer and sampling of a run."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    prompts: list[list[int]]
    """Token ids of each prompt."""
    scorer: Scorer
    weights: Sequence[float]
    """Of the reward functions."""
    sampling: SubjectSampling
    examples: Sequence[dict[str, Any]] = ()
    """Row of the dataset of each prompt."""


def rollout_parts(run: Run, prompts: int | None = None) -> RolloutParts:
    """A run's model, some of its problems and its rewards.

    The model is loaded in float32, without quantisation and with its adapters. ``prompts`` are problems to roll out,
    >= 2, with the run's group size and length and without a time limit. None rolls out fewer and shorter completions
    than in training: ``FEW_PARAMETERS``, ``MANY_PARAMETERS``.
    """
    if prompts is not None and prompts < 2:
        raise ConfigError(f"--prompts {prompts} must be at least 2. Try --prompts 8")
    with no_progress_bars():
        model, tokenizer = _load(run)
    dataset, training = load_dataset(run, tokenizer=tokenizer), run.training
    small = sum(parameter.numel() for parameter in model.parameters()) <= SMALL
    count, sampling = FEW_PARAMETERS if small else MANY_PARAMETERS
    group, longest = max(training.num_generations or 2, 2), training.max_completion_length or sampling.max_new_tokens
    if prompts is None:
        group, longest = min(group, sampling.generations), min(longest, sampling.max_new_tokens)
    else:
        count, sampling = prompts, SubjectSampling(limit_seconds=math.inf)
    rows = generator(training.seed, Purpose.CHECK, 5).permutation(len(dataset))[:count]
    examples = [cast(dict[str, Any], dataset[int(row)]) for row in rows]
    functions, template = load_rewards(run, dataset), chat_options(run, tokenizer)
    given = {"max_new_tokens": longest, "temperature": training.temperature, "seed": training.seed}
    return RolloutParts(
        model=model,
        tokenizer=tokenizer,
        examples=examples,
        prompts=[prompt_tokens(tokenizer, example["prompt"], template) for example in examples],
        scorer=_scorer_of(examples, functions, tokenizer),
        weights=training.reward_weights or [1.0] * len(functions),
        sampling=replace(sampling, generations=group, **given),
    )


def subject_from_run(run: Run, prompts: int | None = None) -> Subject:
    """Rollouts of a run's model on its problems, scored by its rewards; ``prompts`` as for ``rollout_parts``."""
    parts = rollout_parts(run, prompts)
    return frozen_subject(
        parts.model,
        parts.tokenizer,
        parts.prompts,
        parts.scorer,
        sampling=parts.sampling,
        reward_weights=parts.weights,
        title=f"{run.model.model_name_or_path} on {run.data.dataset_name or run.data.dataset_path}",
    )


def _load(run: Run) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The run's model in float32, and its tokenizer."""
    name = model_of(run)
    if name.startswith(SCRATCH):
        made = Path(run.training.output_dir or "") / START_FOLDER
        if not made.exists() and name == f"{SCRATCH}{EMBEDDED}":
            return quick_policy(run.training.seed)
        if not made.exists():
            raise ConfigError(f"model_name_or_path={name!r} is made in {made} when training starts. Start it first")
        name = str(made)
    tokenizer = load_tokenizer(run, name)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            name, dtype=torch.float32, attn_implementation=run.model.attn_implementation, **hub_options(run)
        )
    except (OSError, ValueError) as error:
        raise ConfigError(cannot_load(name, error)) from None
    if (adapters := get_peft_config(run.model)) is not None:
        model = get_peft_model(model, adapters)
    model.to("cuda" if torch.cuda.is_available() and not run.training.use_cpu else "cpu")
    return model, tokenizer


def _scorer_of(
    examples: Sequence[dict[str, Any]], functions: Sequence[Callable[..., Any]], tokenizer: PreTrainedTokenizerBase
) -> Scorer:
    """The rewards of each function, called as TRL calls it; NaN for None."""
    safe, chat = [guarded(function) for function in functions], not isinstance(examples[0]["prompt"], str)

    def scorer(prompt: list[int], tokens: list[list[int]]) -> Tensor:
        texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        columns = {name: [examples[index][name] for index in prompt] for name in examples[0]}
        columns["prompts"] = columns.pop("prompt")
        columns["completions"] = [[{"role": "assistant", "content": text}] for text in texts] if chat else texts
        found = [function(completion_ids=tokens, trainer_state=TrainerState(), **columns) for function in safe]
        scores = [asyncio.run(values) if inspect.iscoroutine(values) else values for values in found]
        return torch.tensor(
            [[math.nan if value is None else float(value) for value in each] for each in scores], dtype=torch.float64
        ).T

    return scorer
