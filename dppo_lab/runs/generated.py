"""Tasks of reasoning-gym as parts of a run or an evaluation: training problems, and sets of held-out ones.

TRL is not needed here.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence

from datasets import Dataset

from answer_judge.evaluation import Benchmark, Problem, ProblemSet, choose, content_hash, load_set
from answer_judge.problems.loading import is_local
from dppo.errors import ConfigError
from dppo_lab.gym import CHECK, COLUMN, ReasoningGymTask, is_gym, key
from dppo_lab.runs.embedded import TASKS

SCORED = "the task's own score is 1"


def at_hand(source: str) -> bool:
    """True if problems come from this machine: an embedded task, a task of reasoning-gym, or a file."""
    return source in TASKS or is_gym(source) or is_local(source)


def gym_dataset(task: ReasoningGymTask, *, held_out: bool, template: str | None, chat: bool) -> Dataset:
    """Problems of a task with a ``prompt``; ``answer`` is there only if each problem has one.

    ``template`` is the text of the user's turn, with ``{problem}`` where the question goes. ``chat`` is True for
    prompts as messages, and False for plain text.
    """
    rows, asked = task.rows(held_out=held_out), Benchmark(name=task.name, template=template)
    answered = all(row["answer"] is not None for row in rows)
    found = []
    for row in rows:
        text = asked.prompt(row["problem"])
        answer = {"answer": str(row["answer"])} if answered else {}
        found.append({"prompt": [{"role": "user", "content": text}] if chat else text, COLUMN: row[COLUMN], **answer})
    return Dataset.from_list(found)


def gym_set(task: ReasoningGymTask, *, limit: int | None, template: str | None) -> ProblemSet:
    """The held-out problems of a task, at most ``limit``, judged by the task's own score.

    ``ConfigError``: a limit below 1.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit} must be at least 1. Leave it out for all problems")
    rows = task.rows(held_out=True)
    # The judge reads the row from the answer, as for every rule that calls a function.
    found = [
        Problem(id=key(row["problem"]), problem=row["problem"], answer=json.dumps({COLUMN: row[COLUMN]}))
        for row in rows
    ]
    content = content_hash((problem.problem, problem.answer) for problem in found)
    asked = template or "{problem}"
    record = Benchmark(name=task.name, template=asked, rule=CHECK, correct=SCORED, samples=1)
    notes = () if limit is None or limit >= len(found) else (f"{limit} of {len(found)} problems",)
    return ProblemSet(record, tuple(found[:limit]), content, notes)


def problem_sets(
    names: Sequence[str],
    own: Sequence[str],
    task: Callable[[str], ReasoningGymTask],
    *,
    folder: str | None,
    template: str | None,
    limit: int | None,
) -> list[ProblemSet]:
    """The sets of an evaluation: ``names`` of benchmarks or tasks of reasoning-gym, and ``own`` files.

    ``task`` makes the task of a name. The others are those of ``choose`` and ``load_set``.
    """
    made = [name for name in names if is_gym(name)]
    read = [name for name in names if not is_gym(name)]
    records = choose(read, [*own], folder=folder, template=template) if read or own or not made else []
    sets = [load_set(record, limit=limit) for record in records]
    sets += [gym_set(task(name), limit=limit, template=template) for name in made]
    name, count = Counter(found.benchmark.name for found in sets).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"benchmark {name} is named twice. Name it once")
    return sets
