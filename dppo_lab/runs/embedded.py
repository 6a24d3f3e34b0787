"""The embedded task as parts of a run: problems, held-out problems to follow while training, judge and engine."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from datasets import Dataset

from answer_judge.evaluation import Benchmark, Engine, Generated, Problem, ProblemSet, Request, Sampling, content_hash
from answer_judge.grading import Verdict
from dppo.errors import ConfigError
from dppo.rng import Purpose, torch_generator
from dppo.verification.tiny_tokenizer import encode_questions
from dppo_lab.demo import task
from dppo_lab.demo.decode import sample
from dppo_lab.demo.evaluate import BATCH_ROWS
from dppo_lab.demo.rollouts import check_embedded

EMBEDDED = "embedded"
TASKS: Mapping[str, task.ArithmeticTask] = MappingProxyType(
    {
        EMBEDDED: task.FULL,
        "embedded_quick": task.QUICK,
        "embedded_sparse": task.SPARSE,
        "embedded_silent": task.SILENT,
        "embedded_rare": task.RARE,
    }
)
"""Names under which a configuration asks for the task, as ``dataset_name``, ``scratch:...`` and ``eval_benchmarks``."""
HELD_OUT = 192
"""Held-out problems where no limit is set."""


def held_out_set(name: str, seed: int, limit: int | None) -> ProblemSet:
    """Held-out problems of an embedded task, drawn by the seed, in the task's shares of its bands of difficulty.

    No run of any seed trains on one of them: see ``task.is_held_out``. A ``limit`` of None is ``HELD_OUT``.
    """
    split = task.make_split(seed, train=0, held_out=HELD_OUT if limit is None else limit, task=TASKS[name])
    problems = tuple(
        Problem(id=f"{name}/{p.question}", problem=p.question, answer=str(p.answer), level=str(p.level))
        for p in split.held_out
    )
    content = content_hash((problem.problem, problem.answer) for problem in problems)
    return ProblemSet(Benchmark(name=name, template="{problem}", samples=1), problems, content, ())


def embedded_rows(problems: Sequence[task.ArithmeticProblem], name: str = EMBEDDED) -> Dataset:
    """Problems of an embedded task as a dataset with a conversational ``prompt`` and an ``answer``.

    ``teacher_rate`` is what public sets have as the solve rate of another model, for ``prompt_prior``.
    """
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": p.question}],
                "answer": str(p.answer),
                "level": p.level,
                "teacher_rate": task.teacher_rate(p, TASKS[name]),
            }
            for p in problems
        ]
    )


class EmbeddedJudge:
    """Judges by the task's own reward, which is exact and cheap, in this process."""

    def verify_many(self, completions: Sequence[str], answers: Sequence[str], **ignored: Any) -> list[Verdict]:
        """A verdict for each completion, a text without special tokens; benchmark and details make no difference."""
        rewards = [task.reward(text, int(answer)) for text, answer in zip(completions, answers, strict=True)]
        named = ["wrong" if "\\boxed" in text else "no_answer" for text in completions]
        return [Verdict(value, "right" if value == 1.0 else no) for value, no in zip(rewards, named, strict=True)]


def embedded_engine(model: Any, tokenizer: Any, args: Any) -> Engine:
    """The engine that answers with the demonstration's decoder, for a model that may be trained between calls.

    A batch draws from one generator that is seeded by its requests: every evaluation uses the same random numbers.
    TRL's sampling fields in ``args`` must be such that the decoder computes them.
    """
    check_embedded(model, args)

    def generate(requests: Sequence[Request], sampling: Sampling) -> list[Generated]:
        key = [request.seed % 2**32 for request in requests]
        made = sample(
            model,
            [list(request.prompt) for request in requests],
            torch_generator(key[0], Purpose.EVALUATION, *key[1:], device=model.device),
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
        )
        texts = tokenizer.batch_decode(made.token_lists, skip_special_tokens=True)
        ended = [row[-1] == tokenizer.eos_token_id for row in made.token_lists]
        return [
            Generated(text, len(row), "stop" if end else "length")
            for text, row, end in zip(texts, made.token_lists, ended, strict=True)
        ]

    return Engine(
        name="embedded",
        encode=lambda texts: encode_questions(tokenizer, texts),
        generate=generate,
        batch_size=BATCH_ROWS,
        longest=model.config.max_position_embeddings,
        facts={"torch": torch.__version__},
    )


def check_alone(names: Sequence[str]) -> str | None:
    """The embedded benchmark among ``names``, or None. It must be the only one: its model can read no other."""
    found = [name for name in names if name in TASKS]
    if found and len(names) > 1:
        raise ConfigError(
            f"eval_benchmarks: {', '.join(names)}: {found[0]} is answered by the demonstration's decoder and stands "
            f"alone. Write eval_benchmarks: [{found[0]}]"
        )
    return found[0] if found else None
