"""How often the embedded policy is right, and how difficult a set of problems is for it."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from dppo.demo.decode import sample
from dppo.demo.task import Problem, reward
from dppo.demo.tokenizer import encode_prompts

MAX_NEW_TOKENS = 104
"""Longest completion of the embedded task, in tokens; 12 operands with all steps take at most 93."""
BATCH_ROWS = 256
"""Completions decoded at once: about 50 megabytes of keys and values."""


def accuracy(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    samples: int,
    generator: torch.Generator | None,
) -> Tensor:
    """(P, samples) bool, True where a completion of the problem was right.

    Args:
        model: the policy.
        tokenizer: the one the policy was built for.
        problems: the P problems.
        samples: completions per problem, >= 1.
        generator: for sampling at temperature 1; None takes the most likely token instead (greedy), with samples=1.
    """
    right_PS = torch.zeros(len(problems), samples, dtype=torch.bool)
    # Similar lengths together: a batch lasts as long as its longest completion.
    order = sorted(range(len(problems)), key=lambda index: problems[index].level)
    at_once = max(1, BATCH_ROWS // samples)
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        prompts = encode_prompts(tokenizer, [problems[index].question for index in chosen])
        rollout = sample(
            model,
            prompts,
            generator,
            samples=samples,
            max_new_tokens=MAX_NEW_TOKENS,
            temperature=0.0 if generator is None else 1.0,
        )
        texts = tokenizer.batch_decode(rollout.token_lists, skip_special_tokens=True)
        for row, text in enumerate(texts):
            index = chosen[row // samples]
            right_PS[index, row % samples] = reward(text, problems[index].answer) == 1.0
    return right_PS


def difficulty_shares(success_P: Tensor) -> tuple[float, float, float]:
    """Shares of problems that are nearly always right (>= 0.9), in between, and nearly always wrong (<= 0.1).

    Args:
        success_P: (P,) success rate of each problem, in [0, 1], over enough samples to tell (32).
    """
    right = (success_P >= 0.9).double().mean().item()
    wrong = (success_P <= 0.1).double().mean().item()
    return right, 1.0 - right - wrong, wrong
