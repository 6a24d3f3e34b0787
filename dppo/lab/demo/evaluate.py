"""Rewards of completions of the embedded task, and how long and how many at once they may be."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from dppo.lab.demo.decode import Rollout
from dppo.lab.demo.task import ArithmeticProblem, reward

MAX_NEW_TOKENS = 104
"""Longest completion of the embedded task, in tokens; 12 operands with all steps take at most 93."""
BATCH_ROWS = 256
"""Completions decoded at once: about 50 megabytes of keys and values."""


def rewards_of(rollout: Rollout, tokenizer: PreTrainedTokenizerFast, problems: Sequence[ArithmeticProblem]) -> Tensor:
    """(N,) rewards of completions, with the problem of each."""
    texts = tokenizer.batch_decode(rollout.token_lists, skip_special_tokens=True)
    return torch.tensor([reward(text, problem.answer) for text, problem in zip(texts, problems, strict=True)])
