r"""The six mathematics benchmarks, one record each, and sets of one's own.

Problems come from a local file or from the hub, never from this package.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from dppo.data import RULES
from dppo.errors import ConfigError

STEP_BY_STEP = "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
"""The user's turn, the same for all six: what most published tables ask."""

FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "problem": ("problem", "question", "prompt"),
        "answer": ("answer", "final_answer"),
        "id": ("id", "unique_id"),
        "level": ("level",),
        "subject": ("subject", "subfield"),
    }
)
"""Columns in which each part of a problem is looked for, in this order. Only the first two must be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """What an evaluation needs to know of a set of problems before it reads one."""

    name: str
    """What ``--benchmarks`` calls it."""
    hub: str | None = None
    """Name on the hub, as ``owner/name`` or ``owner/name:config``."""
    split: str = "test"
    """Split on the hub."""
    file: str | None = None
    """Its name in a local folder."""
    path: str | None = None
    """A local file of its own, which stands in for both."""
    problems: int | None = None
    """How many the standard set has; None where there is no standard."""
    content: str | None = None
    """``problems.content_hash`` of the standard set; None where there is no standard."""
    licence: str = "as its owner says"
    template: str = STEP_BY_STEP
    """Text of the user's turn; ``{problem}`` is where the problem goes."""
    rule: str | None = None
    """How answers are judged: a key of ``dppo.data.RULES``, or None for the default."""
    correct: str = "the final answer has the value of the gold answer"
    """What counts as correct, in words."""
    samples: int = 4
    """Completions drawn per problem unless asked otherwise."""
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: FIELDS)
    """Columns in which each part is looked for."""

    def __post_init__(self) -> None:
        if "{problem}" not in self.template:
            raise ConfigError(
                f"template={self.template!r} of {self.name} does not say where the problem goes. Try '{{problem}}'"
            )

    def prompt(self, problem: str) -> str:
        """The text of the user's turn."""
        return self.template.replace("{problem}", problem)


_RECORDS = (
    Benchmark(
        name="gsm8k",
        hub="openai/gsm8k:main",
        file="gsm8k_test.jsonl",
        problems=1319,
        content="ddfa8dca41bee810727cf72ae1c4e90f82cfd19fb7fa107322e825438c4ae780",
        licence="MIT (openai/grade-school-math)",
        rule="gsm8k",
        correct="the number is the gold integer",
        samples=1,
    ),
    Benchmark(
        name="math500",
        hub="HuggingFaceH4/MATH-500",
        file="math500.jsonl",
        problems=500,
        content="8822ac3ec5bf84e45aba5a5d903850bc8b06cc8298a0048b5b18752bbe0ae3b3",
        licence="MIT (hendrycks/math; the split is from openai/prm800k, MIT)",
        rule="math500",
        samples=4,
    ),
    Benchmark(
        name="aime24",
        hub="HuggingFaceH4/aime_2024",
        split="train",
        file="aime24.jsonl",
        problems=30,
        content="972d4f404f3ab78c424e61af4c2d059529b18ac22bfd3c3c5ede72f6b9983852",
        licence="not stated for the problems themselves; MIT for the copy in QwenLM/Qwen2.5-Math",
        rule="aime24",
        correct="the number is the gold integer, 0 to 999",
        samples=32,
    ),
    Benchmark(
        name="amc23",
        hub="math-ai/amc23",
        file="amc23.jsonl",
        problems=40,
        content="8e7929e38c30d56c03803229e839d31befdfd03de93e10deac1a4b03f6f974bb",
        licence="not stated for the problems themselves; MIT for the copy in QwenLM/Qwen2.5-Math",
        rule="amc23",
        correct="the number is the gold integer",
        samples=32,
    ),
    Benchmark(
        name="minerva_math",
        hub="math-ai/minervamath",
        file="minerva_math.jsonl",
        problems=272,
        content="d3a8d76448380ff4da6733c28a1559c693c7a738da963f63df3655918c8fc760",
        licence="not stated for the problems themselves; MIT for the copy in QwenLM/Qwen2.5-Math",
        rule="minerva_math",
        correct="the value is within 1% of the gold value, the tolerance the set was published with, or rounds to it",
        samples=4,
    ),
    Benchmark(
        name="olympiadbench",
        hub="Hothan/OlympiadBench:OE_TO_maths_en_COMP",
        split="train",
        file="olympiadbench.jsonl",
        problems=675,
        content="ed073f273d951a6c9490e761319ea83696a06b099e3aaf03500abc096cc6af14",
        licence="MIT (OpenBMB/OlympiadBench)",
        rule="olympiadbench",
        correct="every gold answer is given, in any order, and no other",
        samples=4,
    ),
)
BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType({record.name: record for record in _RECORDS})
"""The standard sets by name. Open-ended, English, text only.

Problems and sizes are those that Qwen2.5-Math's evaluation, PRM800K (MATH-500) and OpenAI (GSM8K) publish. Hashes are
of final answers: of GSM8K what follows ``####``, of AIME and AMC plain integers, of Minerva LaTeX (``4.5 \\times
10^{33}``, not ``4.5e33``); several answers are separated by commas."""

_FIELD = re.compile(r":(?=\w+=)")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def parse_benchmark(text: str) -> Benchmark:
    """The benchmark that ``name=path.jsonl[:field=column...]`` describes.

    With the name of a standard set it is that set, read from the given file. Fields are ``problem``, ``answer``,
    ``id``, ``level`` and ``subject``, each followed by the column that holds it, and ``rule``, followed by the name of
    a benchmark whose answers are judged alike.

    Raises:
        ConfigError: text that does not read like that.
    """
    name, separator, rest = text.partition("=")
    path, *pairs = _FIELD.split(rest)
    if not separator or not path or not _NAME.fullmatch(name):
        raise ConfigError(f"--benchmark {text}: expected name=path.jsonl[:field=column]. Try mine=mine.jsonl")
    given = dict(pair.split("=", 1) for pair in pairs)
    unknown = [key for key in given if key not in (*FIELDS, "rule")]
    empty = [key for key, value in given.items() if not value]
    if unknown or empty:
        raise ConfigError(
            f"--benchmark {text}: {(unknown or empty)[0]!r} "
            f"{'is not one of ' + ', '.join((*FIELDS, 'rule')) if unknown else 'has no value'}. "
            f"Try {name}={path}:problem=question"
        )
    rule = given.pop("rule", None)
    if rule is not None and rule not in RULES:
        raise ConfigError(f"--benchmark {text}: rule={rule} is not one of {', '.join(RULES)}")
    base = BENCHMARKS.get(name) or Benchmark(name=name)
    fields = {**base.fields, **{key: (column,) for key, column in given.items()}}
    return replace(base, path=path, fields=MappingProxyType(fields), rule=rule or base.rule)


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
    unknown = [name for name in names if "=" not in name and name not in BENCHMARKS]
    if unknown:
        raise ConfigError(
            f"benchmark {unknown[0]!r} is not one of {', '.join(BENCHMARKS)}. "
            f"For a file of your own: --benchmark {unknown[0]}=problems.jsonl"
        )
    chosen = [parse_benchmark(name) if "=" in name else _in(BENCHMARKS[name], folder) for name in (*names, *own)]
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
    return replace(record, path=str(found))
