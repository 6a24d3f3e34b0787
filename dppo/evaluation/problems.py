"""The problems of a benchmark: read, checked row by row, and compared with the standard set."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dppo.data.answers import after_hashes
from dppo.data.rules import DETAILS
from dppo.data.sources import read_hub, read_local
from dppo.errors import ConfigError, DataError
from dppo.evaluation.benchmarks import FIELDS, Benchmark

_DELIMITERS = re.compile(r"^[$ ]+|(?<![\\$ ])[$ ]+$")
"""Dollar signs around an answer, not the escaped one that ends an amount of money."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem."""

    id: str
    problem: str
    answer: str
    level: str | None = None
    subject: str | None = None
    details: Mapping[str, Any] | None = None
    """What the problem says about its answer: any of ``dppo.data.rules.DETAILS``."""


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """The problems of one benchmark that an evaluation asks."""

    benchmark: Benchmark
    problems: tuple[Problem, ...]
    content: str
    """``content_hash`` of the whole set, before any limit."""
    notes: tuple[str, ...]
    """What a reader of the figures must know, one sentence each."""

    @property
    def standard(self) -> bool:
        """Whether the problems and answers are those of the standard set."""
        return self.benchmark.content is not None and self.content == self.benchmark.content

    @property
    def identity(self) -> dict[str, Any]:
        """What must be equal for two evaluations to have asked the same."""
        record = self.benchmark
        asked = {"template": record.template, "rule": record.rule}
        return {"content": self.content, "problems": len(self.problems), **asked}


def content_hash(pairs: Iterable[tuple[str, str]]) -> str:
    """Sha256, in hex, of the (problem, answer) pairs of a set, in any order and however their text is spaced.

    It is over the sorted lines ``sha256(problem) sha256(answer)``, each text in Unicode form NFKC without any white
    space; of the answer, ``$`` are left out too. Identifiers, levels and solutions do not count.

    Args:
        pairs: problem and answer of every row.
    """
    lines = sorted(f"{_digest(problem)} {_digest(answer.replace('$', ''))}" for problem, answer in pairs)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _digest(text: str) -> str:
    bare = "".join(unicodedata.normalize("NFKC", text).split())
    return hashlib.sha256(bare.encode("utf-8", "surrogatepass")).hexdigest()


def load_set(benchmark: Benchmark, *, limit: int | None = None) -> ProblemSet:
    """The problems of a benchmark, from its file or from the hub.

    Args:
        benchmark: what to load.
        limit: most problems, >= 1. The choice depends on identifiers alone, so that every run asks the same ones, and
            a smaller limit asks some of those of a larger.

    Raises:
        ConfigError: a limit below 1.
        DataError: a file that cannot be read, lacks a field, or has rows that cannot be asked, by number.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit} must be at least 1. Leave it out for all problems")
    place = benchmark.path or benchmark.hub or ""
    rows = _read(benchmark)
    columns = {part: _column(benchmark, part, rows.column_names, place) for part in benchmark.fields}
    values = {part: list(rows[column]) if column else [None] * len(rows) for part, column in columns.items()}
    ids = [str(value) if _filled(value) else f"{benchmark.name}/{row}" for row, value in enumerate(values["id"])]
    problems = [str(value) if _filled(value) else "" for value in values["problem"]]
    answers = [_answer(value) for value in values["answer"]]
    _check(f"{benchmark.name} ({place})", ids, problems, answers)
    labels = (map(_label, values[part]) for part in ("level", "subject"))
    found = tuple(Problem(*row) for row in zip(ids, problems, answers, *labels, _details(rows), strict=True))
    content = content_hash(zip(problems, answers, strict=True))
    return ProblemSet(benchmark, _subset(found, limit), content, _notes(benchmark, content, len(found), limit))


def _read(benchmark: Benchmark) -> Any:
    if benchmark.path is not None:
        return read_local(benchmark.path, benchmark.split)
    if benchmark.hub is None:
        raise ConfigError(f"{benchmark.name} has no file: --benchmark {benchmark.name}=problems.jsonl")
    try:
        return read_hub(benchmark.hub, benchmark.split)
    except DataError as error:
        raise DataError(
            f"{benchmark.name} could not be loaded from the hub: {error.__cause__}. Without a network name a folder "
            f"that has {benchmark.file}: --data FOLDER"
        ) from error


def _column(benchmark: Benchmark, part: str, present: Sequence[str], place: str) -> str | None:
    """The column that holds a part; None for one that may be missing."""
    named = benchmark.fields[part]
    found = next((name for name in named if name in present), None)
    if found is None and (part in ("problem", "answer") or named != FIELDS[part]):
        raise DataError(
            f"{benchmark.name} ({place}) has no field {' or '.join(map(repr, named))}, only "
            f"{', '.join(map(repr, present))}. Say which one it is: "
            f"--benchmark {benchmark.name}=FILE:{part}={present[0]}"
        )
    return found


def _filled(value: Any) -> bool:
    return value is not None and bool(str(value).strip())


def _answer(value: Any) -> str:
    """The gold answer as text: several are joined by commas, and of a GSM8K solution what follows ``####``."""
    if isinstance(value, list):
        return ", ".join(_answer(each) for each in value)
    text = "" if value is None else str(value).strip()
    text = after_hashes(text) or "" if "####" in text else text
    return _DELIMITERS.sub("", text)


def _details(rows: Any) -> Iterator[dict[str, Any] | None]:
    """What each row says about its answer, in columns of its own or in a column ``meta``."""
    columns = [name for name in (*DETAILS, "meta") if name in rows.column_names]
    if not columns:
        yield from [None] * len(rows)
        return
    for values in zip(*(list(rows[name]) for name in columns), strict=True):
        row = dict(zip(columns, values, strict=True))
        meta = row.pop("meta", None)
        said = {**(meta if isinstance(meta, dict) else {}), **row}
        yield {name: said[name] for name in DETAILS if said.get(name) is not None} or None


def _label(value: Any) -> str | None:
    return str(value) if _filled(value) else None


def _check(where: str, ids: list[str], problems: list[str], answers: list[str]) -> None:
    """Raise one error that names every row that cannot be asked."""
    repeated = {id for id, count in Counter(ids).items() if count > 1}
    bad = {
        "no problem text": [row for row, text in enumerate(problems) if not text],
        "an empty answer": [row for row, text in enumerate(answers) if not text],
        "an id that another row has": [row for row, id in enumerate(ids) if id in repeated],
    }
    if any(bad.values()):
        reasons = "; ".join(f"{reason} in {_numbers(rows)}" for reason, rows in bad.items() if rows)
        raise DataError(f"{where} has rows that cannot be graded: {reasons}. Correct the file, or leave them out of it")
    if not ids:
        raise DataError(f"{where} holds no problems")


def _numbers(rows: Sequence[int]) -> str:
    first = ", ".join(map(str, rows[:10]))
    return f"row{'s' if len(rows) > 1 else ''} {first}{', ...' if len(rows) > 10 else ''} (counted from 0)"


def _subset(problems: tuple[Problem, ...], limit: int | None) -> tuple[Problem, ...]:
    """``limit`` problems, in their order: those whose identifiers have the smallest hashes."""
    if limit is None or limit >= len(problems):
        return problems
    keys = [text_key(problem.id) for problem in problems]
    return tuple(problems[row] for row in sorted(np.argsort(np.array(keys, dtype=np.uint64), kind="stable")[:limit]))


def text_key(text: str) -> int:
    """64 bits of a hash of a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _notes(benchmark: Benchmark, content: str, count: int, limit: int | None) -> tuple[str, ...]:
    notes = []
    if benchmark.problems is not None and count != benchmark.problems:
        notes.append(f"not the standard set: {count} problems instead of {benchmark.problems}")
    elif benchmark.content is not None and content != benchmark.content:
        notes.append(
            f"not the standard set: as many problems, but texts or answers differ (content {content[:12]}, "
            f"standard {benchmark.content[:12]})"
        )
    if limit is not None and limit < count:
        notes.append(f"{limit} of {count} problems")
    return tuple(notes)
