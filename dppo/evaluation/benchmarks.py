"""The benchmarks of an evaluation: those the library knows by name, and files of one's own."""

import re
from dataclasses import replace
from pathlib import Path

from dppo.errors import ConfigError
from dppo.grading.rules import RULES
from dppo.problems.catalogue import BENCHMARKS, Benchmark
from dppo.problems.columns import COLUMNS, EXTRACTIONS
from dppo.typed import check, typed

_FIELD = re.compile(r":(?=\w+=)")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@typed("parse_benchmark('mine=mine.jsonl')")
def parse_benchmark(text: str) -> Benchmark:
    """The benchmark that ``name=path.jsonl[:field=value...]`` describes.

    With the name of a known set it is that set, read from the given file. Fields are the parts of a problem
    (``problem``, ``answer``, ``id``, ``level``, ``subject``), each followed by the column that holds it; ``extract``,
    followed by how the answer is taken from its column; and ``rule``, followed by the benchmark to judge like.

    Raises:
        ConfigError: text that does not read like that.
    """
    name, separator, rest = text.partition("=")
    path, *pairs = _FIELD.split(rest)
    if not separator or not path or not _NAME.fullmatch(name):
        raise ConfigError(f"--benchmark {text}: expected name=path.jsonl[:field=column]. Try mine=mine.jsonl")
    given = dict(pair.split("=", 1) for pair in pairs)
    choices = {"rule": RULES, "extract": EXTRACTIONS}
    for key, value in given.items():
        if key not in (*COLUMNS, *choices) or not value:
            wrong = f"is not one of {', '.join((*COLUMNS, *choices))}" if value else "has no value"
            raise ConfigError(f"--benchmark {text}: {key!r} {wrong}. Try {name}={path}:problem=question")
        if value not in choices.get(key, (value,)):
            raise ConfigError(f"--benchmark {text}: {key}={value} is not one of {', '.join(choices[key])}")
    base = BENCHMARKS.get(name) or Benchmark(name=name)
    rule, extract = given.pop("rule", base.rule), given.pop("extract", None)
    return replace(base, path=path, columns=given, extract=extract, rule=rule)


@typed("choose(['math500'], [], folder='benchmarks/')")
def choose(names: list[str], own: list[str], *, folder: str | None, template: str | None = None) -> list[Benchmark]:
    """The benchmarks of an evaluation, in the order named.

    Args:
        names: names of standard sets, or ``name=path`` descriptions.
        own: ``name=path`` descriptions alone.
        folder: where the files of standard sets are; None fetches them from the hub.
        template: takes the place of every benchmark's own.

    Raises:
        ConfigError: none at all, an unknown name, or the same name twice.
    """
    for name in names:
        check("name", name, str, "choose(['math500'], [], folder='benchmarks/')")
    unknown = [name for name in names if "=" not in name and name not in BENCHMARKS]
    if unknown:
        raise ConfigError(
            f"benchmark {unknown[0]!r} is not one of {', '.join(BENCHMARKS)}. "
            f"For a file of your own: --benchmark {unknown[0]}=problems.jsonl"
        )
    chosen = [parse_benchmark(name) if "=" in name else _in(BENCHMARKS[name], folder) for name in names]
    chosen += map(parse_benchmark, own)
    twice = sorted({record.name for record in chosen if [other.name for other in chosen].count(record.name) > 1})
    if twice or not chosen:
        raise ConfigError(
            f"benchmark {twice[0]} is named twice"
            if twice
            else "no benchmark is named. Try --benchmarks math500,aime24"
        )
    return [replace(record, template=template) if template is not None else record for record in chosen]


def _in(record: Benchmark, folder: str | None) -> Benchmark:
    """The record with its file in a folder."""
    if folder is None:
        return record
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise ConfigError(f"--data {folder}: there is no such folder (looked in {Path.cwd()})")
    looked = [place / f"{stem}{suffix}" for stem in (record.file, f"{record.name}.jsonl") for suffix in ("", ".gz")]
    found = next((path for path in looked if path.is_file()), None)
    if found is None:
        raise ConfigError(
            f"--data {folder} has no {record.file} for {record.name}. Name the file: --benchmark {record.name}=FILE"
        )
    return replace(record, path=str(found), columns={}, extract=None)
