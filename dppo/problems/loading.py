"""Problems to train on: one dataset with a prompt and an answer, from a file, a folder, or the hub."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import datasets

from dppo.errors import ConfigError, DataError
from dppo.problems.catalogue import Benchmark, known_set
from dppo.problems.columns import gold_answers, read_part
from dppo.problems.sources import is_local, read_rows
from dppo.typed import typed


@typed("load_problems('problems.jsonl')")
def load_problems(
    source: str,
    *,
    split: str = "train",
    path: str | None = None,
    prompt_column: str | None = None,
    answer_column: str | None = None,
    extract: str | None = None,
    template: str | None = None,
    chat: bool = True,
) -> datasets.Dataset:
    r"""Problems as a dataset with the columns ``prompt`` and ``answer`` and every original column.

    An original column called ``prompt`` or ``answer`` that had to change is kept as ``original_prompt`` or
    ``original_answer``. Nothing is dropped and no row is judged: that is ``check_problems``.

    Args:
        source: a local .jsonl, .jsonl.gz, .json or .parquet file, a folder of those, the name of a set in
            ``catalogue.SETS``, or a hub dataset as ``owner/name`` or ``owner/name:config``.
        split: of a hub dataset or a folder.
        path: local copy that stands in for ``source``: nothing is fetched.
        prompt_column: column with the problem, as text or as messages. Default: see ``columns.COLUMNS``.
        answer_column: column with the answer. Default: see ``columns.COLUMNS``.
        extract: how the answer is taken from that column, a key of ``EXTRACTIONS``. Default: what a known set on the
            hub needs; else what the column's own texts call for, see ``columns.gold_answers``.
        template: text of the user's turn; ``{problem}`` is where the problem goes.
        chat: True gives ``prompt`` as a list of messages, for models with a chat template; False as plain text.

    Raises:
        ConfigError: a template without ``{problem}``, or an unknown ``extract``.
        DataError: nothing to be found there, or a column that is missing or not usable.
    """
    record = _record(source, path, {"problem": prompt_column, "answer": answer_column}, extract)
    advice = f"Without a network use a local copy: load_problems({source!r}, path='problems.jsonl')"
    dataset, where = read_rows(record, split, advice), record.path or f"dataset {source!r}"
    name, problems = read_part("problem", dataset, record.columns, where=where, how="prompt_column={!r}")
    prompts = _prompts(name, problems, template, chat)
    name, values = read_part("answer", dataset, record.columns, where=where, how="answer_column={!r}")
    answers = gold_answers(values, record.extract, where=f"{where}, column {name!r}", how="extract={!r}")
    return _with_column(_with_column(dataset, "prompt", prompts), "answer", answers)


def _record(source: str, path: str | None, columns: Mapping[str, str | None], extract: str | None) -> Benchmark:
    """What is known of a source, and what the caller says of it."""
    named = {part: column for part, column in columns.items() if column is not None}
    if path is not None or is_local(source):
        return Benchmark(name=source, path=path or source, columns=named, extract=extract)
    known = known_set(source) or Benchmark(name=source, hub=source, splits=())
    # How a known set's answers are read is known of its own column alone.
    extract = known.extract if extract is None and "answer" not in named else extract
    return replace(known, columns={**known.columns, **named}, extract=extract)


def _prompts(name: str, values: list[Any], template: str | None, chat: bool) -> list[Any]:
    """Prompts as asked for. A problem that is missing stays empty, template or not, so that it can be found."""
    if template is not None and "{problem}" not in template:
        raise ConfigError(f"template={template!r} does not say where the problem goes. Try template='{{problem}}'")
    if any(isinstance(value, list) for value in values):
        if template is not None or not chat:
            raise DataError(
                f"column {name!r} holds messages, which are used as they are: leave out template and chat=False, or "
                "name a column of plain text with prompt_column=..."
            )
        return [value or [] for value in values]
    wrong = next((row for row, value in enumerate(values) if isinstance(value, (dict, bytes))), None)
    if wrong is not None:
        raise DataError(f"column {name!r}, row {wrong} is {type(values[wrong]).__name__}, expected text or messages")
    texts = ["" if value is None else str(value) for value in values]
    if template is not None:
        texts = [template.replace("{problem}", text) if text.strip() else "" for text in texts]
    return [[{"role": "user", "content": text}] for text in texts] if chat else texts


def _with_column(dataset: datasets.Dataset, name: str, values: list[Any]) -> datasets.Dataset:
    """The dataset with this column; one of the same name that says something else is kept under another."""
    if name in dataset.column_names:
        if list(dataset[name]) == values:
            return dataset
        if f"original_{name}" in dataset.column_names:
            raise DataError(f"the columns {name!r} and 'original_{name}' are both taken: rename or remove one")
        dataset = dataset.rename_column(name, f"original_{name}")
    return dataset.add_column(name, values)
