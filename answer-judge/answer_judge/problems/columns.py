r"""Which column of a table holds what of a problem, and the gold answer that a column's text gives."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from answer_judge.errors import ConfigError, DataError
from answer_judge.grading.answers import after_hashes, joined_boxes, last_boxed, without_delimiters
from answer_judge.grading.rules import DETAILS, Grading, with_details
from answer_judge.grading.verifier import verify
from answer_judge.grading.words import named_options

if TYPE_CHECKING:
    from datasets import Dataset

COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        # A table with both has the bare problem in `problem` and the same wrapped in an instruction in `prompt`: asked
        # from there it would be wrapped twice, and differently in training and in evaluation.
        "problem": ("problem", "question", "prompt"),
        # A worked solution holds the answer too, but somewhere in it: last.
        "answer": ("answer", "final_answer", "ground_truth", "solution"),
        "id": ("id", "unique_id"),
    }
)
"""Columns in which each part of a problem is looked for, in this order, in training and in evaluation alike."""

NEEDED = ("problem", "answer")
"""The parts that must be there."""


def boxed_answer(text: str) -> str | None:
    r"""The last ``\boxed{...}`` with those joined to it, as one list; alone where it says the same as they do."""
    last, joined = last_boxed(text), joined_boxes(text)
    if joined is None or last is None:
        return last
    others = joined.removesuffix(f", {last}")
    if named_options(others) and not named_options(last):
        return last  # "B" and 12
    return last if verify(rf"\boxed{{{last}}}", others).reason == "right" else joined


EXTRACTIONS: Mapping[str, Callable[[str], str | None]] = MappingProxyType(
    {"hashes": after_hashes, "boxed": boxed_answer, "verbatim": str.strip}
)
r"""How an answer is taken from its column: after the last ``####``, from the last ``\boxed{...}``, or as it is."""


def read_part(part: str, rows: "Dataset", columns: Mapping[str, str], *, where: str, how: str) -> tuple[str, list[Any]]:
    """The column that holds a part of a problem, and its values: the one named, else the first of ``COLUMNS[part]``.

    For messages, ``where`` says which table it is, and ``how`` how a user names this column: ``{}`` is its name.
    A part that is missing and not ``NEEDED`` has the name "" and Nones. ``DataError``: the named column is not there,
    or none for a part that must be.
    """
    named, present = columns.get(part), rows.column_names
    looked = COLUMNS[part] if named is None else (named,)
    found = [name for name in looked if name in present]
    if not found and (named is not None or part in NEEDED):
        usual = {name for other, names in COLUMNS.items() if other != part for name in names}
        likely = next((name for name in present if name not in usual), "COLUMN")
        raise DataError(
            f"{where} has no column {' or '.join(map(repr, looked))}. Its columns are "
            f"{', '.join(map(repr, present))}. Name the one with the {part}: {how.format(likely)}"
        )
    if part == "problem" and len(found) > 1:
        warnings.warn(
            f"{where}: {found[0]!r} is read as the problem. For {found[1]!r}: {how.format(found[1])}",
            stacklevel=4,  # past load_problems or load_set, and the check of its arguments
        )
    return (found[0], list(rows[found[0]])) if found else ("", [None] * len(rows))


def gold_answers(values: Sequence[Any], extract: str | None, *, where: str, how: str) -> list[str]:
    r"""(rows,) gold answers as text without math delimiters around them; empty where there is none.

    A list of answers becomes one text with commas between: all of them are asked for. ``extract`` is a key of
    ``EXTRACTIONS``. Without it, it is ``hashes`` where most rows have a ``####`` line, ``boxed`` where most have a
    ``\boxed{...}``, ``verbatim`` where none has. ``where`` and ``how`` are as for ``read_part``. ``ConfigError``: an
    unknown ``extract``. ``DataError``: a value that is no answer, or a column in which only some dataset rows hold an
    answer to extract.
    """
    texts = [_answer(value, f"{where}, row {row}") for row, value in enumerate(values)]
    if extract is None:
        extract = _needed(texts, where, how)
    if extract not in EXTRACTIONS:
        raise ConfigError(f"extract={extract!r} is unknown: use one of {', '.join(map(repr, EXTRACTIONS))}")
    return [without_delimiters((EXTRACTIONS[extract](text) or "").strip()) for text in texts]


def _answer(value: Any, where: str) -> str:
    if isinstance(value, list) and not any(isinstance(each, list) for each in value):
        return ", ".join(without_delimiters(_answer(each, where).strip()) for each in value)
    if isinstance(value, (dict, list, bytes)):
        raise DataError(f"{where} is {type(value).__name__}, expected an answer such as '5' or 5, or a list of them")
    return "" if value is None or value != value else str(value)


def _needed(texts: Sequence[str], where: str, how: str) -> str:
    """The extraction that a column's own texts call for."""
    for extract, found in (("hashes", after_hashes), ("boxed", last_boxed)):  # whether one is there, not yet which
        without = [row for row, text in enumerate(texts) if found(text) is None]
        count = len(texts) - len(without)
        if count > len(texts) / 2:
            if unread := [row for row in without if texts[row].strip()]:
                warnings.warn(
                    f"{where}: {numbered(unread)} hold no answer to be taken out ({extract}) and count as empty. To "
                    f"read the column as it is: {how.format('verbatim')}",
                    stacklevel=5,
                )
            return extract
        if count:
            raise DataError(
                f"{where}: {count} of {len(texts)} rows hold an answer to be taken out ({extract}), the others do not. "
                f"Say how to read it: {how.format(extract)}, or {how.format('verbatim')}"
            )
    return "verbatim"


def row_details(rows: Any, where: str) -> list[dict[str, Any] | None]:
    """What each dataset row says about its answer (``rules.DETAILS``), in its own columns or in a column ``meta``.

    ``DataError`` names the first row that says nothing that answers can be judged by.
    """
    if {"is_multiple_answer", "error"} <= set(rows.column_names) and "tolerance" not in rows.column_names:
        kept = [cell if _is_number(cell) else None for cell in rows["error"]]  # OlympiadBench as it was published
        rows = rows.remove_columns(["error"]).add_column("tolerance", kept)
    columns = [name for name in (*DETAILS, "meta") if name in rows.column_names]
    found: list[dict[str, Any] | None] = [None] * len(rows)
    for place, values in enumerate(zip(*(list(rows[name]) for name in columns), strict=True)):
        row = dict(zip(columns, values, strict=True))
        meta = row.pop("meta", None)
        said = {**(meta if isinstance(meta, dict) else {}), **row}
        found[place] = {name: said[name] for name in DETAILS if said.get(name) is not None} or None
        try:
            with_details(Grading(), found[place])
        except DataError as error:
            raise DataError(f"{where}, {numbered([place])}: {error}") from error
    return found


def _is_number(cell: Any) -> bool:
    try:
        return float(cell) >= 0
    except (TypeError, ValueError):
        return False


def numbered(rows: Sequence[int]) -> str:
    """How many rows, and the first five."""
    first = ", ".join(map(str, rows[:5]))
    return f"{len(rows)} row{'s' if len(rows) > 1 else ''} (counted from 0: {first}{', ...' if len(rows) > 5 else ''})"
