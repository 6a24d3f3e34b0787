"""Problems to train on: one dataset with a prompt and an answer, from a file, a folder, or the hub."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import datasets

from dppo.data.answers import after_hashes, last_boxed
from dppo.data.sources import is_local, public_set, read_hub, read_local
from dppo.errors import ConfigError, DataError

PROMPT_COLUMNS = ("prompt", "problem", "question")
ANSWER_COLUMNS = ("answer", "final_answer", "ground_truth", "solution")
"""Where the problem and the answer are looked for when no column is named, in this order."""

EXTRACTIONS: MappingProxyType[str, Callable[[str], str | None]] = MappingProxyType(
    {"hashes": after_hashes, "boxed": last_boxed, "verbatim": str.strip}
)
r"""How an answer is taken from its column: after the last ``####``, from the last ``\boxed{...}``, or as it is."""


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
        source: a local .jsonl, .jsonl.gz, .json or .parquet file, a folder of those, the name of a public set
            (``sources.PUBLIC_SETS``), or a hub dataset as ``owner/name`` or ``owner/name:config``.
        split: of a hub dataset or a folder.
        path: local copy that stands in for ``source``: nothing is fetched.
        prompt_column: column with the problem, as text or as messages. Default: the first of ``PROMPT_COLUMNS``.
        answer_column: column with the answer. Default: the first of ``ANSWER_COLUMNS``.
        extract: how the answer is taken from that column, a key of ``EXTRACTIONS``. Default: what a public set on the
            hub is known to need; else, where most rows have a ``####`` line, ``hashes``; where most have a
            ``\boxed{...}``, ``boxed``; where none has, ``verbatim``.
        template: text of the user's turn; ``{problem}`` is where the problem goes.
        chat: True gives ``prompt`` as a list of messages, for models with a chat template; False as plain text.

    Raises:
        ConfigError: a template without ``{problem}``, or an unknown ``extract``.
        DataError: nothing to be found there, or a column that is missing or not usable.
    """
    if path is not None or is_local(source):
        known, dataset = None, read_local(path or source, split)
    else:
        known, dataset = public_set(source), read_hub(source, split)
    prompt_column = prompt_column or (known.prompt if known else None)
    prompt_name = _column(dataset, "prompt", prompt_column, PROMPT_COLUMNS)
    default = answer_column is None and known is not None
    answer_name = _column(dataset, "answer", known.answer if default and known else answer_column, ANSWER_COLUMNS)
    rule = extract or (known.extract if default and known else None)
    prompts = _prompts(prompt_name, list(dataset[prompt_name]), template, chat)
    answers = _answers(answer_name, list(dataset[answer_name]), rule)
    return _with_column(_with_column(dataset, "prompt", prompts), "answer", answers)


def _column(dataset: datasets.Dataset, role: str, named: str | None, guesses: tuple[str, ...]) -> str:
    """The column that plays a role: the one named, else the first guess there is."""
    present = dataset.column_names
    found = named if named in present else next((name for name in guesses if name in present and not named), None)
    if found is None:
        looked = f"{role}_column={named!r}" if named else f"column {' or '.join(map(repr, guesses))}"
        raise DataError(
            f"the dataset has no {looked}. Its columns are {', '.join(map(repr, present))}. "
            f"Name the one with the {role}: {role}_column={present[0]!r}"
        )
    return found


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


def _answers(name: str, values: list[Any], rule: str | None) -> list[str]:
    """Answers as text; empty where there is none."""
    values = [value[0] if isinstance(value, list) and len(value) == 1 else value for value in values]
    wrong = next((row for row, value in enumerate(values) if isinstance(value, (dict, list, bytes))), None)
    if wrong is not None:
        raise DataError(
            f"column {name!r}, row {wrong} is {type(values[wrong]).__name__}, expected one answer as text or number: "
            "name another column with answer_column=..."
        )
    texts = ["" if value is None else str(value) for value in values]
    if rule is None:
        rule = _needed(name, texts)
    if rule not in EXTRACTIONS:
        raise ConfigError(f"extract={rule!r} is unknown: use one of {', '.join(map(repr, EXTRACTIONS))}")
    return [EXTRACTIONS[rule](text) or "" for text in texts]


def _needed(name: str, texts: list[str]) -> str:
    """The extraction that a column's own texts call for."""
    for rule in ("hashes", "boxed"):
        count = sum(EXTRACTIONS[rule](text) is not None for text in texts)
        if count > len(texts) / 2:
            return rule
        if count:
            raise DataError(
                f"column {name!r}: {count} of {len(texts)} rows hold an answer to be taken out ({rule}), the others do "
                f"not. Say how to read it: extract={rule!r}, or extract='verbatim'"
            )
    return "verbatim"


def _with_column(dataset: datasets.Dataset, name: str, values: list[Any]) -> datasets.Dataset:
    """The dataset with this column; one of the same name that says something else is kept under another."""
    if name in dataset.column_names:
        if list(dataset[name]) == values:
            return dataset
        if f"original_{name}" in dataset.column_names:
            raise DataError(f"the columns {name!r} and 'original_{name}' are both taken: rename or remove one")
        dataset = dataset.rename_column(name, f"original_{name}")
    return dataset.add_column(name, values)
