"""Accuracy of the embedded policy, and how difficult a set of problems is for it."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from dppo.verification.tiny_tokenizer import encode_questions
from dppo_lab.demo.decode import Rollout, sample
from dppo_lab.demo.task import ArithmeticProblem, reward

MAX_NEW_TOKENS = 104
"""Longest completion of the embedded task, in tokens; 12 operands with all steps take at most 93."""
BATCH_ROWS = 256
"""Completions decoded at once: about 50 megabytes of keys and values."""


def rewards_of(rollout: Rollout, tokenizer: PreTrainedTokenizerFast, problems: Sequence[ArithmeticProblem]) -> Tensor:
    """(N,) rewards of completions, with the problem of each."""
    texts = tokenizer.batch_decode(rollout.token_lists, skip_special_tokens=True)
    return torch.tensor([reward(text, problem.answer) for text, problem in zip(texts, problems, strict=True)])


def accuracy(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[ArithmeticProblem],
    samples: int,
    generator: torch.Generator,
) -> Tensor:
    """(P, G) bool, which of G = ``samples`` completions of each problem, drawn at temperature 1, are right."""
    right_PG = torch.zeros(len(problems), samples, dtype=torch.bool)
    # Similar lengths together: a batch takes as long as its longest completion.
    order = sorted(range(len(problems)), key=lambda index: problems[index].level)
    at_once = max(1, BATCH_ROWS // samples)
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        asked = [problems[index] for index in chosen]
        rollout = sample(
            model,
            encode_questions(tokenizer, [problem.question for problem in asked]),
            generator,
            samples=samples,
            max_new_tokens=MAX_NEW_TOKENS,
        )
        each = [problem for problem in asked for _ in range(samples)]
        right_PG[chosen] = (rewards_of(rollout, tokenizer, each) == 1.0).view(-1, samples)
    return right_PG


def difficulty_shares(success_P: Tensor) -> tuple[float, float, float]:
    """Shares of problems that are nearly always right (>= 0.9), in between, and nearly always wrong (<= 0.1)."""
    right = (success_P >= 0.9).double().mean().item()
    wrong = (success_P <= 0.1).double().mean().item()
    return right, 1.0 - right - wrong, wrong
