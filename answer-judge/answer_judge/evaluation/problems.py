"""The benchmarks of an evaluation and their problems: chosen, read, checked by row, compared with the standard set."""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from answer_judge.errors import ConfigError, DataError
from answer_judge.evaluation.sampling import text_key
from answer_judge.grading.rules import RULES
from answer_judge.problems.catalogue import BENCHMARKS, Benchmark, is_rule
from answer_judge.problems.checkers import is_check
from answer_judge.problems.code import FORMATS, code_format, code_record, code_rows
from answer_judge.problems.columns import COLUMNS, EXTRACTIONS, gold_answers, numbered, read_part, row_details
from answer_judge.problems.loading import read_rows

_FIELD = re.compile(r":(?=\w+=)")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def parse_benchmark(text: str) -> Benchmark:
    """The benchmark that ``name=path.jsonl[:field=value...]`` describes; a known set if it has the name of one.

    Fields are ``problem``, ``answer`` and ``id`` with a column each, ``extract`` with a key of ``EXTRACTIONS``, and
    ``rule``, see ``Benchmark``. ``ConfigError``: text that does not read like that.
    """
    name, separator, rest = text.partition("=")
    path, *pairs = _FIELD.split(rest)
    if not separator or not path or not _NAME.fullmatch(name):
        raise ConfigError(f"--benchmark {text}: expected name=path.jsonl[:field=column]. Try mine=mine.jsonl")
    given = dict(pair.split("=", 1) for pair in pairs)
    choices = {"rule": (*RULES, *FORMATS, "check:package.module:function"), "extract": EXTRACTIONS}
    for key, value in given.items():
        if key not in (*COLUMNS, *choices) or not value:
            wrong = f"is not one of {', '.join((*COLUMNS, *choices))}" if value else "has no value"
            raise ConfigError(f"--benchmark {text}: {key!r} {wrong}. Try {name}={path}:problem=question")
        if not (is_rule(value) if key == "rule" else value in choices.get(key, (value,))):
            raise ConfigError(f"--benchmark {text}: {key}={value} is not one of {', '.join(choices[key])}")
    base = BENCHMARKS.get(name) or Benchmark(name=name)
    rule, extract = given.pop("rule", base.rule), given.pop("extract", None)
    return replace(base, path=path, columns=given, extract=extract, rule=rule)


def choose(names: list[str], own: list[str], *, folder: str | None, template: str | None = None) -> list[Benchmark]:
    """The benchmarks of an evaluation, in the order named: of standard sets, or of ``name=path`` as all of ``own`` are.

    ``folder`` has the files of standard sets; None fetches them from the hub. ``template`` takes the place of theirs.
    ``ConfigError``: none at all, an unknown name, or the same name twice.
    """
    unknown = [name for name in names if "=" not in name and name not in BENCHMARKS]
    if unknown:
        raise ConfigError(
            f"benchmark {unknown[0]!r} is not one of {', '.join(BENCHMARKS)}. "
            f"For a file of your own: {unknown[0]}=problems.jsonl"
        )
    chosen = [parse_benchmark(name) if "=" in name else _in(BENCHMARKS[name], folder) for name in names]
    chosen += map(parse_benchmark, own)
    if not chosen:
        raise ConfigError("no benchmark is named. Try --benchmarks math500,aime24")
    name, count = Counter(record.name for record in chosen).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"benchmark {name} is named twice")
    return [replace(record, template=template) if template is not None else record for record in chosen]


def _in(record: Benchmark, folder: str | None) -> Benchmark:
    """The record with its file in a folder."""
    if folder is None:
        return record
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise ConfigError(f"{folder}: there is no such folder of problems (looked in {Path.cwd()})")
    looked = [place / f"{stem}{suffix}" for stem in (record.file, f"{record.name}.jsonl") for suffix in ("", ".gz")]
    found = next((path for path in looked if path.is_file()), None)
    if found is None:
        raise ConfigError(f"{folder} has no {record.file} for {record.name}. Name the file: {record.name}=FILE")
    return replace(record, path=str(found), columns={}, extract=None)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem."""

    id: str
    problem: str
    answer: str
    details: Mapping[str, Any] | None = None
    """What the problem says about its answer: any of ``answer_judge.grading.rules.DETAILS``."""


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
        """Whether problems and answers equal the standard set's."""
        return self.benchmark.content is not None and self.content == self.benchmark.content

    @property
    def identity(self) -> dict[str, Any]:
        """What must be equal for two evaluations to have asked the same."""
        record = self.benchmark
        asked = {"template": record.template, "rule": record.rule}
        return {"content": self.content, "problems": len(self.problems), **asked}


def content_hash(pairs: Iterable[tuple[str, str]]) -> str:
    """Sha256, in hex, of the (problem, answer) pairs of a set, in any order and however their text is spaced.

    Over the sorted lines ``sha256(problem) sha256(answer)``, each text in form NFKC without white space and ``$``
    around the answer.
    """
    lines = sorted(f"{_digest(problem)} {_digest(answer.replace('$', ''))}" for problem, answer in pairs)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _digest(text: str) -> str:
    bare = "".join(unicodedata.normalize("NFKC", text).split())
    return hashlib.sha256(bare.encode("utf-8", "surrogatepass")).hexdigest()


def load_set(benchmark: Benchmark, *, limit: int | None = None) -> ProblemSet:
    """The problems of a benchmark, from its file or from the hub, at most ``limit``, >= 1, chosen by their ids alone.

    ``DataError``: a file that cannot be read, lacks a field, or has rows that cannot be asked, by number.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit} must be at least 1. Leave it out for all problems")
    where = f"{benchmark.name} ({benchmark.path or benchmark.hub})"
    advice = f"Without a network name a folder that has {benchmark.file}: --data FOLDER"
    rows, benchmark = _judged(read_rows(benchmark, benchmark.splits[-1], advice), benchmark, where)
    values = dict[str, list[Any]]()
    for part in COLUMNS:
        how = f"--benchmark {benchmark.name}=FILE:{part}={{}}"
        _, values[part] = read_part(part, rows, benchmark.columns, where=where, how=how)
    if any(isinstance(value, list) for value in values["problem"]):
        raise DataError(
            f"{where}: the problems are lists of messages. Name a column of text: "
            f"--benchmark {benchmark.name}=FILE:problem=COLUMN"
        )
    how = f"--benchmark {benchmark.name}=FILE:extract={{}}"
    answers = gold_answers(values["answer"], benchmark.extract, where=where, how=how)
    ids = [_said(cell) or f"{benchmark.name}/{row}" for row, cell in enumerate(values["id"])]
    problems = [_said(cell) or "" for cell in values["problem"]]
    _check(where, ids, problems, answers)
    details = row_details(rows, where)
    found = tuple(Problem(*row) for row in zip(ids, problems, answers, details, strict=True))
    content = content_hash(zip(problems, answers, strict=True))
    notes = _notes(benchmark, content, len(found))
    if limit is not None and limit < len(found):  # those whose identifiers have the smallest hashes, in their order
        key_P = np.array([text_key(problem.id) for problem in found], dtype=np.uint64)
        asked = tuple(found[row] for row in sorted(np.argsort(key_P, kind="stable")[:limit]))
        return ProblemSet(benchmark, asked, content, (*notes, f"{limit} of {len(found)} problems"))
    return ProblemSet(benchmark, found, content, notes)


def _judged(rows: Any, benchmark: Benchmark, where: str) -> tuple[Any, Benchmark]:
    """Rows with what their judge needs as ``answer``, and their record, whose ``template`` is no longer None."""
    rule = code_format(benchmark.rule, rows.column_names)
    if rule is not None:
        return code_rows(rows, rule, where), code_record(benchmark, rule)
    if benchmark.template is None:
        benchmark = replace(benchmark, template="{problem}")
    if not is_check(benchmark.rule):
        return rows, benchmark
    texts = [json.dumps(row, sort_keys=True, default=str) for row in rows]
    rows = rows.remove_columns([name for name in ("answer",) if name in rows.column_names]).add_column("answer", texts)
    columns = {part: column for part, column in benchmark.columns.items() if part != "answer"}
    return rows, replace(benchmark, columns=columns, extract="verbatim")


def _said(cell: Any) -> str | None:
    """A cell as text, or None where it is empty."""
    return None if cell is None or not str(cell).strip() else str(cell)


def _check(where: str, ids: list[str], problems: list[str], answers: list[str]) -> None:
    """Raise one error that names every row that cannot be asked."""
    repeated = {id for id, count in Counter(ids).items() if count > 1}
    bad = {
        "no problem text": [row for row, text in enumerate(problems) if not text],
        "an empty answer": [row for row, text in enumerate(answers) if not text.strip("$ ")],
        "an id that another row has": [row for row, id in enumerate(ids) if id in repeated],
    }
    if any(bad.values()):
        reasons = "; ".join(f"{reason} in {numbered(rows)}" for reason, rows in bad.items() if rows)
        raise DataError(f"{where} has rows that cannot be graded: {reasons}. Correct the file, or leave them out of it")
    if not ids:
        raise DataError(f"{where} holds no problems")


def _notes(benchmark: Benchmark, content: str, count: int) -> tuple[str, ...]:
    if benchmark.problems is not None and count != benchmark.problems:
        return (f"not the standard set: {count} problems instead of {benchmark.problems}",)
    if benchmark.content is not None and content != benchmark.content:
        different = f"(content {content[:12]}, standard {benchmark.content[:12]})"
        return (f"not the standard set: as many problems, but texts or answers differ {different}",)
    return ()
