"""Problems from where they are (a file, a folder, the hub), and those to train on with a prompt and an answer each."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from answer_judge.errors import ConfigError, DataError
from answer_judge.grading.rules import DETAILS
from answer_judge.problems.catalogue import Benchmark, known_set
from answer_judge.problems.code import CODE_TEMPLATE, code_format, code_rows
from answer_judge.problems.columns import gold_answers, read_part, row_details

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")


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
    answers: bool = True,
) -> datasets.Dataset:
    r"""Problems as a dataset with the columns ``prompt`` and ``answer`` and every original column.

    A column called ``prompt`` or ``answer`` that had to change is kept as ``original_prompt`` or ``original_answer``.
    Problems in the columns of HumanEval or MBPP become ``id``, ``problem``, ``prompt`` and ``answer``, their tests.

    Args:
        source: a file (``SUFFIXES``), a folder of those, the name of a set in ``catalogue.SETS``, or a hub dataset as
            ``owner/name`` or ``owner/name:config``.
        split: of a hub dataset or a folder.
        path: local copy that stands in for ``source``: nothing is fetched.
        prompt_column: the problem, as text or as messages; see ``columns.COLUMNS``.
        answer_column: the answer; see ``columns.COLUMNS``.
        extract: how the answer is taken from that column, a key of ``EXTRACTIONS``; see ``columns.gold_answers``.
        template: text of the user's turn; ``{problem}`` is where the problem goes.
        answers: False where a checker judges, which needs no answer: the column may be missing, and is left as it is.
        chat: True gives ``prompt`` as a list of messages, for models with a chat template; False as plain text.

    ``ConfigError``: a template without ``{problem}``, or an unknown ``extract``. ``DataError``: nothing to be found
    there, or a column that is missing or not usable.
    """
    record = _record(source, path, {"problem": prompt_column, "answer": answer_column}, extract)
    advice = f"Without a network use a local copy: load_problems({source!r}, path='problems.jsonl')"
    dataset, where = read_rows(record, split, advice), record.path or f"dataset {source!r}"
    if answers and (rule := code_format(record.rule, dataset.column_names)):
        dataset, record = code_rows(dataset, rule, where), replace(record, columns={}, extract="verbatim")
        template = (CODE_TEMPLATE if chat else None) if template is None else template
    name, problems = read_part("problem", dataset, record.columns, where=where, how="prompt_column={!r}")
    prompts = _prompts(name, problems, template, chat)
    if not answers:
        return _with_column(dataset, "prompt", prompts)
    name, values = read_part("answer", dataset, record.columns, where=where, how="answer_column={!r}")
    golds = gold_answers(values, record.extract, where=f"{where}, column {name!r}", how="extract={!r}")
    details = row_details(dataset, where)
    for name in DETAILS:  # where rewards read them
        said = [None if each is None else each.get(name) for each in details]
        if name not in dataset.column_names and any(value is not None for value in said):
            dataset = dataset.add_column(name, said)
    return _with_column(_with_column(dataset, "prompt", prompts), "answer", golds)


def _record(source: str, path: str | None, columns: Mapping[str, str | None], extract: str | None) -> Benchmark:
    """The record of a source: what is known of it, and what the caller adds."""
    named = {part: column for part, column in columns.items() if column is not None}
    if path is not None or is_local(source):
        return Benchmark(name=source, path=path or source, columns=named, extract=extract)
    known = known_set(source) or Benchmark(name=source, hub=source, splits=())
    # How to read a known set's answers is known for its standard column only.
    extract = known.extract if extract is None and "answer" not in named else extract
    return replace(known, columns={**known.columns, **named}, extract=extract)


def _prompts(name: str, values: list[Any], template: str | None, chat: bool) -> list[Any]:
    """Prompts as asked for. A problem that is missing stays empty, template or not, so that it can be found."""
    if template is not None and "{problem}" not in template:
        raise ConfigError(f"template {template!r} does not say where the problem goes. Write {{problem}} in it")
    if any(isinstance(value, list) for value in values):
        if template is not None or not chat:
            raise DataError(f"column {name!r} holds messages, used as they are: leave out template and chat=False")
        lasts = [value[-1] if isinstance(value, list) and value else None for value in values]
        roles = [last.get("role") if isinstance(last, dict) else None for last in lasts]
        answered = roles.index("assistant") if "assistant" in roles else None
        if answered is not None:
            raise DataError(
                f"column {name!r}, row {answered} ends with a message of the assistant. Leave it out: "
                f"dataset.map(lambda row: {{'prompt': row[{name!r}][:-1]}})"
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


def is_local(source: str) -> bool:
    """True if a source means a file or folder on this machine: it exists, or is written as a path."""
    if Path(source).expanduser().exists():
        return known_set(source) is None  # a folder that happens to be called gsm8k must be written ./gsm8k
    return source.endswith(SUFFIXES) or source.startswith(("/", "./", "../", "~"))


def read_rows(record: Benchmark, split: str, advice: str) -> datasets.Dataset:
    """The rows of a set, of its local file or folder or of a split on the hub; ``advice`` is for a missing network.

    ``ConfigError``: a record with neither. ``DataError``: they cannot be had from here.
    """
    if record.path is not None:
        return read_local(record.path, split)
    if record.hub is None:
        raise ConfigError(f"{record.name} has no file: Benchmark(name={record.name!r}, path='problems.jsonl')")
    name, _, config = record.hub.partition(":")
    try:
        found = datasets.load_dataset(name, config or None, split=split)
    except Exception as error:  # the hub client raises a dozen unrelated types, and every one means the same here
        raise DataError(
            f"dataset {name!r} (config {config or None!r}, split {split!r}) could not be loaded from the hub: "
            f"{type(error).__name__}: {error}. Its splits are {', '.join(record.splits)}. {advice}"
        ) from error
    if not isinstance(found, datasets.Dataset):
        raise DataError(f"dataset {name!r}, split {split!r}, is a {type(found).__name__}; name one split")
    return found


def read_local(path: str, split: str) -> datasets.Dataset:
    """The rows of a file, or of the files of a folder that belong to a split, as one dataset.

    Rows may have different fields: what a row lacks is None. A column that mixes text with numbers becomes text.
    ``DataError``: nothing there, not readable (with file and line), or columns that cannot be one type.
    """
    place = Path(path).expanduser()
    rows = [row for file in _files(place, split) for row in _rows(file)]
    if not rows:
        raise DataError(f"{place} holds no rows")
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    return datasets.Dataset.from_dict({name: _one_type(name, values, place) for name, values in columns.items()})


def _files(place: Path, split: str) -> list[Path]:
    """The files to read: of a folder, those with the split in their name."""
    if not place.exists():
        raise DataError(f"no such file or folder: {place} (looked in {Path.cwd()})")
    if not place.is_dir():
        if not place.name.endswith(SUFFIXES):
            raise DataError(f"{place} is not one of {', '.join(SUFFIXES)}: rename it, or convert it to JSON Lines")
        return [place]
    files = sorted(file for file in place.iterdir() if file.name.endswith(SUFFIXES))
    named = [file for file in files if split in re.split("[^a-z0-9]", file.name.lower())]
    if not named:
        present = ", ".join(file.name for file in files[:10]) or "no data file"
        raise DataError(
            f"folder {place} has no file for split {split!r}; it has {present}. "
            f"Name one file, or put {split!r} in a file's name, as in problems-{split}.jsonl"
        )
    return named


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    try:
        if file.suffix == ".parquet":
            yield from _in_shortest_digits(pq.read_table(file)).to_pylist()
            return
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        text = raw.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{file} cannot be read: {type(error).__name__}: {error}") from error
    if ".json" in (file.suffix, Path(file.stem).suffix) and text.lstrip().startswith("["):
        numbered = enumerate(_parsed(text, f"{file}"), 1)
    else:
        lines = enumerate(text.split("\n"), 1)  # not splitlines: a string may hold U+2028
        numbered = ((number, _parsed(line, f"{file}, line {number}")) for number, line in lines if line.strip())
    for number, row in numbered:
        if not isinstance(row, dict):
            raise DataError(
                f'{file}, row {number} is {type(row).__name__}, expected such as {{"problem": "1 + 1 = ?"}}'
            )
        yield row


def _in_shortest_digits(table: pa.Table) -> pa.Table:
    """Numbers of half and single precision as they were written: 0.1, which is no other number in double precision."""
    for place, field in enumerate(table.schema):
        if pa.types.is_float16(field.type) or pa.types.is_float32(field.type):
            precise = field.type.to_pandas_dtype()
            values = [None if value is None else float(str(precise(value))) for value in table[place].to_pylist()]
            table = table.set_column(place, field.name, pa.array(values, pa.float64()))
    return table


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})") from error


def _one_type(name: str, values: list[Any], place: Path) -> list[Any]:
    """The values of a column, as text where text and numbers are mixed."""
    try:
        pa.array(values)
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: column {name!r} holds half of a character, as of an emoji: {error}") from error
    except (pa.ArrowException, OverflowError) as error:
        if all(value is None or isinstance(value, (str, int, float)) for value in values):
            return [value if value is None or isinstance(value, str) else str(value) for value in values]
        raise DataError(
            f"{place}: column {name!r} has values of different types ({error}); make them one type"
        ) from error
    return values
