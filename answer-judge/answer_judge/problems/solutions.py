"""Worked solutions to learn from: problems with a prompt and a completion each, for supervised training."""

from typing import Any

import datasets

from answer_judge.errors import DataError
from answer_judge.grading.answers import worked_solution
from answer_judge.problems.loading import load_problems

SOLUTION_COLUMNS = ("solution", "original_answer")
"""Where worked solutions are looked for; ``load_problems`` keeps under the second what it took an answer out of."""


def load_solutions(
    source: str,
    *,
    split: str = "train",
    path: str | None = None,
    solution_column: str | None = None,
    template: str | None = None,
    chat: bool = True,
) -> datasets.Dataset:
    r"""Problems and their worked solutions as a dataset with the columns ``prompt`` and ``completion``, and no others.

    Calculator notes such as ``<<48/2=24>>`` are left out, and the answer is in ``\boxed{...}``: GSM8K's ``#### 24``
    becomes ``\boxed{24}``.

    Args:
        source: as for ``load_problems``: a local file or folder, a known set, or a hub dataset.
        split: of a hub dataset or a folder.
        path: local copy that stands in for ``source``: nothing is fetched.
        solution_column: column with the solution. Default: the first of ``SOLUTION_COLUMNS`` that is there.
        template: text of the user's turn; ``{problem}`` is where the problem goes.
        chat: True gives lists of messages, for models with a chat template; False plain text.

    Raises:
        ConfigError: as ``load_problems``.
        DataError: as ``load_problems``; there is no column of solutions, or some are empty.
    """
    problems = load_problems(source, split=split, path=path, template=template, chat=chat)
    looked = SOLUTION_COLUMNS if solution_column is None else (solution_column,)
    column = next((name for name in looked if name in problems.column_names), None)
    if column is None:
        raise DataError(
            f"{path or source} has no column {' or '.join(map(repr, looked))} with worked solutions, only "
            f"{', '.join(map(repr, problems.column_names))}. Name it: load_solutions({source!r}, solution_column='...')"
        )
    solutions = list(problems[column])
    empty = [row for row, text in enumerate(solutions) if not (isinstance(text, str) and text.strip())]
    if empty:
        raise DataError(
            f"column {column!r} is empty in {len(empty)} of {len(solutions)} rows (from 0: {empty[0]}, ...). Leave "
            "those rows out of the file."
        )
    texts = [worked_solution(*pair) for pair in zip(solutions, map(str, problems["answer"]), strict=True)]
    completions: list[Any] = [[{"role": "assistant", "content": text}] for text in texts] if chat else texts
    return datasets.Dataset.from_dict({"prompt": list(problems["prompt"]), "completion": completions})
