"""The embedded task as a subject of verification: a policy warmed up within seconds."""

from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from dppo.environment import one_thread
from dppo.lab.demo.task import FULL, ArithmeticTask, make_split, reward
from dppo.lab.demo.warmup import warm_up
from dppo.lab.subject import SubjectSampling, frozen_subject
from dppo.verification.subject import Subject
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer, encode_questions

QUICK_TASK: ArithmeticTask = replace(FULL, easy=(2,), middle=(3,), hard=(4,), warm_up_steps=150)
"""Short chains, of which a policy gets some right after seconds of training."""


def quick_policy(seed: int) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """The embedded policy after a short warm-up on short chains, and its tokenizer."""
    model, tokenizer = build_model(seed), build_tokenizer()
    with one_thread():
        warm_up(model, tokenizer, QUICK_TASK, seed=seed, steps=QUICK_TASK.warm_up_steps)
    return model, tokenizer


def embedded_subject(seed: int = 0, *, prompts: int = 16) -> Subject:
    """Rollouts of the embedded policy after a short warm-up, on short chains of its task."""
    model, tokenizer = quick_policy(seed)
    problems = make_split(seed, train=max(prompts, 3), held_out=0, task=QUICK_TASK).train[:prompts]

    def scorer(prompt: list[int], tokens: list[list[int]]) -> Tensor:
        texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return torch.tensor([[reward(text, problems[p].answer)] for text, p in zip(texts, prompt, strict=True)])

    questions = encode_questions(tokenizer, [problem.question for problem in problems])
    sampling = SubjectSampling(generations=8, max_new_tokens=48, seed=seed)
    return frozen_subject(model, tokenizer, questions, scorer, sampling=sampling, title="embedded policy on its task")
