"""The embedded task as data of a run: its names, and its problems as a dataset."""

from collections.abc import Mapping, Sequence

from datasets import Dataset

from dppo.lab.demo import task

EMBEDDED = "embedded"
TASKS: Mapping[str, task.ArithmeticTask] = {
    EMBEDDED: task.FULL,
    "embedded_quick": task.QUICK,
    "embedded_sparse": task.SPARSE,
    "embedded_silent": task.SILENT,
    "embedded_rare": task.RARE,
}
"""Names under which a configuration asks for the task, as ``dataset_name``, ``scratch:...`` and ``eval_benchmarks``."""


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
