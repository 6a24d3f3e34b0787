"""The sets of problems the library knows, one record each. The problems themselves come from a file or from the hub."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from answer_judge.errors import ConfigError
from answer_judge.grading.rules import RULES
from answer_judge.problems.checkers import is_check
from answer_judge.problems.code import CODE_TEMPLATE, FORMATS
from answer_judge.problems.columns import COLUMNS

STEP_BY_STEP = "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
"""The user's turn for the public sets of mathematics: what most published tables ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A set of problems, for training, evaluation or both; ``Benchmark(name="mine", path="mine.jsonl")`` is your own.

    ``ConfigError``: a template without ``{problem}``, a part or a rule that is unknown.
    """

    name: str
    """What ``--benchmarks`` and ``dataset_name`` call it."""
    hub: str | None = None
    """Name on the hub, as ``owner/name`` or ``owner/name:config``."""
    splits: tuple[str, ...] = ("test",)
    """Splits on the hub; the last one is evaluated."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The column of each part of a problem that is not to be looked for in ``columns.COLUMNS``."""
    extract: str | None = None
    """How the answer is taken from its column, see ``columns.gold_answers``."""
    file: str | None = None
    """Its name in a local folder."""
    path: str | None = None
    """A local file, which stands in for hub and folder; ``columns`` and ``extract`` are then the file's."""
    problems: int | None = None
    """How many the evaluated split has; None where there is no standard, as for a set that is only trained on."""
    content: str | None = None
    """``evaluation.content_hash`` of the evaluated split; None where there is no standard."""
    template: str | None = None
    """Text of the user's turn with ``{problem}`` in it. None: the problem alone, or ``code.CODE_TEMPLATE``."""
    rule: str | None = None
    """A key of ``RULES``, of ``code.FORMATS`` for programs, or ``check:package.module:function``; None: the default."""
    samples: int = 4
    """Completions drawn per problem unless asked otherwise."""

    def __post_init__(self) -> None:
        if self.template is not None and "{problem}" not in self.template:
            raise ConfigError(
                f"template={self.template!r} of {self.name} does not say where the problem goes. Try '{{problem}}'"
            )
        if self.rule is not None and not is_rule(self.rule):
            raise ConfigError(
                f"rule={self.rule!r} of {self.name} is not one of {', '.join((*RULES, *FORMATS))}, "
                "nor check:package.module:function"
            )
        unknown = [part for part in self.columns if part not in COLUMNS]
        if unknown:
            raise ConfigError(f"columns of {self.name}: {unknown[0]!r} is not one of {', '.join(COLUMNS)}")

    def prompt(self, problem: str) -> str:
        """The text of the user's turn."""
        return problem if self.template is None else self.template.replace("{problem}", problem)


def is_rule(name: str) -> bool:
    """True if answers can be judged by a rule of this name."""
    return name in RULES or name in FORMATS or is_check(name)


_SETS = (
    Benchmark(
        name="gsm8k", hub="openai/gsm8k:main", splits=("train", "test"), file="gsm8k_test.jsonl", problems=1319,
        columns={"problem": "question", "answer": "answer"}, extract="hashes",
        template=STEP_BY_STEP, rule="gsm8k", samples=1,
        content="ddfa8dca41bee810727cf72ae1c4e90f82cfd19fb7fa107322e825438c4ae780",
    ),
    Benchmark(
        name="math", hub="nlile/hendrycks-MATH-benchmark", splits=("train", "test"),
        columns={"problem": "problem", "answer": "answer"}, extract="verbatim",
    ),
    Benchmark(
        name="math500", hub="HuggingFaceH4/MATH-500", file="math500.jsonl", problems=500,
        columns={"problem": "problem", "answer": "answer"}, extract="verbatim",
        template=STEP_BY_STEP, rule="math500",
        content="8822ac3ec5bf84e45aba5a5d903850bc8b06cc8298a0048b5b18752bbe0ae3b3",
    ),
    Benchmark(
        name="aime24", hub="HuggingFaceH4/aime_2024", splits=("train",), file="aime24.jsonl", problems=30,
        template=STEP_BY_STEP, rule="aime24", samples=32,
        content="972d4f404f3ab78c424e61af4c2d059529b18ac22bfd3c3c5ede72f6b9983852",
    ),
    Benchmark(
        name="amc23", hub="math-ai/amc23", file="amc23.jsonl", problems=40,
        template=STEP_BY_STEP, rule="amc23", samples=32,
        content="8e7929e38c30d56c03803229e839d31befdfd03de93e10deac1a4b03f6f974bb",
    ),
    Benchmark(
        name="minerva_math", hub="math-ai/minervamath", file="minerva_math.jsonl", problems=272,
        template=STEP_BY_STEP, rule="minerva_math",
        content="d3a8d76448380ff4da6733c28a1559c693c7a738da963f63df3655918c8fc760",
    ),
    Benchmark(
        name="olympiadbench", hub="Hothan/OlympiadBench:OE_TO_maths_en_COMP", splits=("train",),
        file="olympiadbench.jsonl", problems=675,
        template=STEP_BY_STEP, rule="olympiadbench",
        content="ed073f273d951a6c9490e761319ea83696a06b099e3aaf03500abc096cc6af14",
    ),
    Benchmark(
        name="humaneval", hub="openai/openai_humaneval", file="HumanEval.jsonl", problems=164,
        template=CODE_TEMPLATE, rule="humaneval",
        content="38b18fbaa9075f2ec730040d3473a0e14c2419e162df51fc75ddfacd676f7070",
    ),
    Benchmark(
        name="mbpp", hub="google-research-datasets/mbpp:full", splits=("train", "validation", "prompt", "test"),
        file="mbpp.jsonl", problems=500,
        template=CODE_TEMPLATE, rule="mbpp", samples=1,
    ),
)  # fmt: skip
SETS: Mapping[str, Benchmark] = MappingProxyType({record.name: record for record in _SETS})
"""Every set by name.

Problems and sizes are those that Qwen2.5-Math's evaluation, PRM800K (MATH-500), OpenAI (GSM8K, HumanEval) and Google
(MBPP) publish. Hashes are of final answers: of GSM8K what follows ``####``, of AIME and AMC plain integers, of Minerva
LaTeX (``4.5 \\times 10^{33}``, not ``4.5e33``); several answers are separated by commas; of HumanEval its tests. MBPP
has none: its file was out of reach."""
BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {name: record for name, record in SETS.items() if record.problems}
)
"""The sets with a standard split to evaluate on: mathematics and Python, English, text only."""


def known_set(source: str) -> Benchmark | None:
    """The set of this name or hub name, or None."""
    return SETS.get(source) or next((each for each in _SETS if (each.hub or "").split(":")[0] == source), None)
