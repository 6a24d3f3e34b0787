"""A ``rollout_func`` for TRL: the demonstration's decoder in place of transformers' ``generate``."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from dppo.errors import ConfigError, raise_problems
from dppo.lab.demo.decode import Rollout, sample
from dppo.lab.demo.task import ArithmeticProblem, reward
from dppo.rng import Purpose, torch_generator
from dppo.verification.tiny_tokenizer import encode

MAX_NEW_TOKENS = 104
"""Longest completion of the embedded task, in tokens; 12 operands with all steps take at most 93."""
BATCH_ROWS = 256
"""Completions decoded at once: about 50 megabytes of keys and values."""
SERVED = {"top_p": (1.0,), "top_k": (0, None), "min_p": (None, 0.0), "repetition_penalty": (1.0,)}
"""The values of TRL's sampling fields that the decoder computes: it has a temperature and nothing else."""


class EmbeddedRollouts:
    """A ``rollout_func`` whose completions are a function of the weights, the seed, the step and the round.

    Nothing is drawn from a global generator. A round is a call within a step, so a method that rolls out again gets
    other completions. TRL's evaluations draw the same numbers at every step.
    """

    def __init__(self) -> None:
        self._at: tuple[int, bool] | None = None
        self._round = 0

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """A completion of each prompt of this process, conversations or texts, repeated for each of its group.

        Lists of token ids, and the log-probability of each token at the sampling temperature, in nats.
        """
        args, training = trainer.args, bool(trainer.model.training)
        model = trainer.accelerator.unwrap_model(trainer.model)
        check_embedded(model, args)
        step = int(trainer.state.global_step)
        self._round = self._round + 1 if self._at == (step, training) else 0
        self._at = (step, training)
        place = (Purpose.ROLLOUT, step) if training else (Purpose.EVALUATION,)
        sizes = [len(list(equal)) for _, equal in groupby(prompts)]
        prompt_ids = encode(trainer.processing_class, [prompt for prompt, _ in groupby(prompts)])
        made = sample(
            model,
            prompt_ids,
            torch_generator(args.seed, *place, self._round, trainer.accelerator.process_index, device=model.device),
            samples=sizes,
            max_new_tokens=args.max_completion_length,
            temperature=args.temperature,
        )
        lengths = made.length_N.tolist()
        return {
            "prompt_ids": [ids for ids, size in zip(prompt_ids, sizes, strict=True) for _ in range(size)],
            "completion_ids": made.token_lists,
            "logprobs": [row[:length] for row, length in zip(made.logp_NT.tolist(), lengths, strict=True)],
        }


def check_embedded(model: Any, args: Any) -> None:
    """Raise a ``ConfigError`` for a model or fields of TRL's ``args`` that the decoder does not compute."""
    if not isinstance(model, Qwen3ForCausalLM):
        raise ConfigError(
            f"rollout_func: embedded decodes for Qwen3ForCausalLM only, the model is {type(model).__name__}. "
            "Leave rollout_func out: transformers generates then."
        )
    problems = [
        f"{name}={getattr(args, name)!r} is not computed by rollout_func: embedded. Write {name}: {values[0]!r}"
        for name, values in SERVED.items()
        if getattr(args, name, values[0]) not in values
    ]
    if not args.temperature > 0:
        problems.append(f"temperature={args.temperature:g} must be > 0 to draw completions. Write temperature: 1.0")
    raise_problems("rollout_func: embedded", problems)


def rewards_of(rollout: Rollout, tokenizer: PreTrainedTokenizerFast, problems: Sequence[ArithmeticProblem]) -> Tensor:
    """(N,) rewards of completions, with the problem of each."""
    texts = tokenizer.batch_decode(rollout.token_lists, skip_special_tokens=True)
    return torch.tensor([reward(text, problem.answer) for text, problem in zip(texts, problems, strict=True)])
