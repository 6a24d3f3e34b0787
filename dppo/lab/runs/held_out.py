"""Held-out problems, and a model's accuracy on them; neither TRL nor a trainer is needed here."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from dppo.errors import ConfigError
from dppo.lab.demo import task
from dppo.lab.demo.decode import sample
from dppo.lab.demo.rollouts import BATCH_ROWS
from dppo.lab.gym import COLUMN, GymScorer, ReasoningGymTask, key
from dppo.lab.runs.embedded import TASKS
from dppo.lab.runs.models import prompt_tokens
from dppo.lab.subject import SubjectSampling, end_tokens, generate
from dppo.rng import Purpose, generator, torch_generator

PLAIN = "Problem:\n{prompt}\n\nSolution:\n"
"""Text that a model without a chat template reads."""
PLAIN_STOP = "\nProblem:"
"""Ends the answer of such a model, which goes on with another problem."""
HELD_OUT = 192
"""Held-out problems of an embedded task if no limit is set."""
Score = Callable[[list[str], list[int]], list[tuple[float, bool]]]
"""``score(texts, places)``: of each completion of the problem at its place, the reward and True if it has an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Problems that no seed trains on, and how their answers are judged. A reward of 1 counts as right."""

    name: str
    questions: Sequence[str]
    """Texts of the user's turn."""
    ids: Sequence[str]
    """Identities of the problems, from which the seeds of their completions follow."""
    score: Score


def embedded_set(name: str, seed: int, limit: int | None) -> HeldOut:
    """Held-out problems of an embedded task, drawn by the seed, in the task's shares of its bands of difficulty."""
    problems = task.make_split(seed, train=0, held_out=HELD_OUT if limit is None else limit, task=TASKS[name]).held_out

    def score(texts: list[str], places: list[int]) -> list[tuple[float, bool]]:
        pairs = zip(texts, places, strict=True)
        return [(task.reward(text, problems[place].answer), "\\boxed" in text) for text, place in pairs]

    questions = [problem.question for problem in problems]
    return HeldOut(name=name, questions=questions, ids=[f"{name}/{question}" for question in questions], score=score)


def gym_set(gym: ReasoningGymTask, scorer: GymScorer, *, limit: int | None, template: str | None) -> HeldOut:
    """The held-out problems of a task of reasoning-gym, at most ``limit``, judged by the task's own score."""
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit} must be at least 1. Leave it out for all problems")
    rows = gym.rows(held_out=True)[:limit]

    def score(texts: list[str], places: list[int]) -> list[tuple[float, bool]]:
        found = scorer.scores(texts, [rows[place][COLUMN] for place in places])
        return [(value or 0.0, True) for value in found]

    questions = [(template or "{problem}").replace("{problem}", row["problem"]) for row in rows]
    return HeldOut(name=gym.name, questions=questions, ids=[key(row["problem"]) for row in rows], score=score)


def check_names(sets: Sequence[HeldOut]) -> None:
    """Raise a ``ConfigError`` if two sets have one name."""
    names = [found.name for found in sets]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"benchmark {twice[0]} is named twice. Name it once")


class Completion(NamedTuple):
    """A completion: its text, its generated tokens with the end token, and True if it was cut off at the limit."""

    text: str
    tokens: int
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """A model that answers: the tokens of a question, completions of them, and how many at once."""

    encode: Callable[[str], list[int]]
    generate: Callable[[list[list[int]], list[int], SubjectSampling], list[Completion]]
    """``generate(prompts, seeds, sampling)``: a completion of each prompt, given as token ids."""
    batch_size: int
    positions: int | None


def asker(model: Any, tokenizer: Any, *, embedded: bool, batch_size: int, options: dict[str, Any]) -> Asker:
    """The asker of a model in memory; ``options`` are of the chat template, ``embedded`` takes the demo's decoder.

    A batch draws from one generator that is seeded by its requests, and torch's own is left as it was.
    """
    chat = tokenizer.chat_template is not None
    ends = [tokenizer.eos_token_id] if embedded else end_tokens(model, tokenizer)

    def encode(question: str) -> list[int]:
        prompt: Any = [{"role": "user", "content": question}] if chat else PLAIN.replace("{prompt}", question)
        return prompt_tokens(tokenizer, prompt, options)

    def answer(prompts: list[list[int]], seeds: list[int], sampling: SubjectSampling) -> list[Completion]:
        if embedded:
            key = [seed % 2**32 for seed in seeds]
            rng = torch_generator(key[0], Purpose.EVALUATION, *key[1:], device=model.device)
            limits = {"max_new_tokens": sampling.max_new_tokens, "temperature": sampling.temperature}
            rows = sample(model, prompts, rng, **limits).token_lists
        else:
            training = model.training
            timeless = replace(sampling, seed=seeds[0], limit_seconds=math.inf)
            rows = generate(model.eval(), tokenizer, prompts, 1, timeless)
            model.train(training)
        texts = tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        texts = texts if chat else [text.partition(PLAIN_STOP)[0] for text in texts]
        pairs = zip(texts, rows, strict=True)
        return [Completion(text, len(row), not row or row[-1] not in ends) for text, row in pairs]

    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    size = BATCH_ROWS if embedded else batch_size
    return Asker(encode=encode, generate=answer, batch_size=size, positions=positions)


def sums(
    found: HeldOut, ask: Asker, sampling: SubjectSampling, *, samples: int, seed: int, rank: int = 0, processes: int = 1
) -> torch.Tensor:
    """(5,) completions, right, tokens, truncated, without an answer; of this process's share of the problems."""
    total = torch.zeros(5, dtype=torch.float64)
    own = range(len(found.questions))[rank::processes]
    prompts = [ask.encode(found.questions[place]) for place in own]
    # Prompts of similar length are together, the longest first: a function of the prompts alone.
    order = sorted(range(len(prompts)), key=lambda prompt: -len(prompts[prompt]))
    requests = [(prompt, number) for prompt in order for number in range(samples)]
    for members in (requests[start : start + ask.batch_size] for start in range(0, len(requests), ask.batch_size)):
        total[0] += len(members)
        room = math.inf if ask.positions is None else ask.positions - len(prompts[members[0][0]])
        if room < 1:  # no room for an answer
            total[4] += len(members)
            continue
        seeds = [sample_seed(seed, f"{found.name} {found.ids[own[prompt]]}", number) for prompt, number in members]
        new = replace(sampling, max_new_tokens=int(min(sampling.max_new_tokens, room)))
        made = ask.generate([prompts[prompt] for prompt, _ in members], seeds, new)
        scores = found.score([each.text for each in made], [own[prompt] for prompt, _ in members])
        for each, (value, answered) in zip(made, scores, strict=True):
            total[1:] += torch.tensor([value == 1.0, each.tokens, each.truncated, not answered])
    return total


def sample_seed(seed: int, problem: str, number: int) -> int:
    """Seed of one completion, in [0, 2**62), by the run's seed, its problem and its number within that."""
    hashed = int.from_bytes(bytes.fromhex(key(problem)), "little")
    return int(generator(seed, Purpose.EVALUATION, 0, hashed, number).integers(2**62))
