"""Held-out problems, and a model's accuracy on them; neither TRL nor a trainer is needed here."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dppo.errors import ConfigError
from dppo.lab.demo import task
from dppo.lab.demo.evaluate import BATCH_ROWS
from dppo.lab.gym import COLUMN, ReasoningGymTask, key
from dppo.lab.runs.embedded import TASKS
from dppo.lab.runs.gym_scorer import GymScorer
from dppo.lab.runs.models import prompt_tokens
from dppo.lab.runs.sampling import (
    Completion,
    Generate,
    Sampling,
    batches_of,
    embedded_sampler,
    sample_seed,
    text_key,
    transformers_sampler,
)

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
    split = task.make_split(seed, train=0, held_out=HELD_OUT if limit is None else limit, task=TASKS[name])
    questions, answers = ([getattr(p, part) for p in split.held_out] for part in ("question", "answer"))

    def score(texts: list[str], places: list[int]) -> list[tuple[float, bool]]:
        pairs = zip(texts, places, strict=True)
        return [(task.reward(text, answers[place]), "\\boxed" in text) for text, place in pairs]

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


def share_of(found: HeldOut, rank: int, processes: int) -> HeldOut:
    """The problems of one process."""
    places = range(len(found.questions))[rank::processes]

    def score(texts: list[str], own: list[int]) -> list[tuple[float, bool]]:
        return found.score(texts, [places[place] for place in own])

    questions, ids = ([values[place] for place in places] for values in (found.questions, found.ids))
    return replace(found, questions=questions, ids=ids, score=score)


def check_names(sets: Sequence[HeldOut]) -> None:
    """Raise a ``ConfigError`` if two sets have one name."""
    name, count = Counter(found.name for found in sets).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"benchmark {name} is named twice. Name it once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """A model that answers: the tokens of a question, completions of them, and how many at once."""

    encode: Callable[[str], list[int]]
    generate: Generate
    batch_size: int
    positions: int | None


def asker(model: Any, tokenizer: Any, *, embedded: bool, batch_size: int, options: dict[str, Any]) -> Asker:
    """The asker of a model in memory; ``options`` are of the chat template, ``embedded`` takes the demo's decoder."""

    def encode(question: str) -> list[int]:
        if tokenizer.chat_template is None:
            return prompt_tokens(tokenizer, PLAIN.replace("{prompt}", question))
        return prompt_tokens(tokenizer, [{"role": "user", "content": question}], options)

    generate = (embedded_sampler if embedded else transformers_sampler)(model, tokenizer)

    def cut(*given: Any) -> list[Completion]:
        return [replace(each, text=each.text.partition(PLAIN_STOP)[0]) for each in generate(*given)]

    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    size = BATCH_ROWS if embedded else batch_size
    return Asker(
        encode=encode,
        generate=generate if tokenizer.chat_template is not None else cut,
        batch_size=size,
        positions=positions,
    )


def sums(found: HeldOut, ask: Asker, sampling: Sampling, *, samples: int, seed: int) -> torch.Tensor:
    """(5,) completions, right, tokens, truncated, without an answer."""
    total = torch.zeros(5, dtype=torch.float64)
    prompts = [ask.encode(question) for question in found.questions]
    keys = [text_key(f"{found.name} {each}") for each in found.ids]
    for members, limit in batches_of(prompts, sampling, samples, size=ask.batch_size, positions=ask.positions):
        total[0] += len(members)
        if limit < 1:  # no room for an answer
            total[4] += len(members)
            continue
        seeds = [sample_seed(seed, keys[place], number) for place, number in members]
        new = replace(sampling, max_new_tokens=limit)
        made = ask.generate([prompts[place] for place, _ in members], seeds, new)
        scores = found.score([each.text for each in made], [place for place, _ in members])
        for each, (value, answered) in zip(made, scores, strict=True):
            total[1:] += torch.tensor([value == 1.0, each.tokens, each.truncated, not answered])
    return total
