"""Problems whose answer is a program: their tests from the columns they come in, and the program in a completion.

The gold answer of such a problem is its tests, as a text in JSON: a set of them is hashed, checked, trained on and
evaluated as any other.
"""

import ast
import builtins
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast

import datasets

from answer_judge.errors import DataError
from answer_judge.problems.columns import numbered
from answer_judge.sandbox import Task

CODE_TEMPLATE = "{problem}\n\nPlease write the whole program in one ```python block."
"""The user's turn for a problem whose answer is a program."""

_FENCE = re.compile(r"^([ \t]*+)```[ \t]*+(\w*+)[^\n]*+\n(.*?)(?:^[ \t]*+```[ \t]*+$|\Z)", re.DOTALL | re.MULTILINE)
"""Repetitions never give back what they took: a fence that does not end would take time in the square of its length."""
_PYTHON = ("", "python", "python3", "py")
_AFTER_BODY = re.compile(r"\n(?=class |def |#|if |print|@)")
"""Where a completion that goes on with a function's body leaves it (Chen et al. 2021, section 2.1, and decorators)."""


@dataclass(frozen=True, slots=True)
class CodeTests:
    """The tests of one problem."""

    prompt: str
    """What a completion may go on from; part of the program, and run before the tests for what else it defines."""
    names: tuple[str, ...]
    """What the tests take from the program; the first is what was asked for."""
    before: str
    """Python that the tests need first, such as imports."""
    tests: str

    def as_text(self) -> str:
        """The gold answer."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, sort_keys=True)

    @staticmethod
    def of(answer: str) -> "CodeTests":
        """The tests that a gold answer holds; DataError where it holds none."""
        try:
            said = json.loads(answer)
            return CodeTests(**{**said, "names": tuple(said["names"])})
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"answer {answer[:80]!r} holds no tests. Load the problems in the columns of HumanEval or MBPP: "
                "load_problems('humaneval'), or load_problems('problems.jsonl')"
            ) from error


def _humaneval(row: Mapping[str, Any]) -> tuple[str, CodeTests]:
    for name in ("prompt", "entry_point", "test"):
        if not isinstance(row[name], str) or not row[name].strip():
            raise ValueError(f"{name} is {row[name]!r}, expected text")
    prompt, entry, test = row["prompt"], row["entry_point"], row["test"]
    if not entry.isidentifier():
        raise ValueError(f"entry_point {entry!r} is no name of a function")
    if "check" not in {node.name for node in ast.parse(test).body if isinstance(node, _DEFINITIONS)}:
        raise ValueError("test defines no function check(candidate)")
    return prompt, CodeTests(prompt, (entry,), prompt, f"{test}\n\ncheck({entry})\n")


def _mbpp(row: Mapping[str, Any]) -> tuple[str, CodeTests]:
    tests = "\n".join(row["test_list"])
    setup = str(row.get("test_setup_code") or "")
    before = "\n".join(row.get("test_imports") or [])
    text = str(row.get("text") or row.get("prompt") or "")
    code = f"{setup}\n{tests}\n"
    problem = f"{text}\n\nYour code should pass these tests:\n\n{tests}" if text.strip() else ""
    return problem, CodeTests("", _names(tests, setup, before, str(row.get("code") or "")), before, code)


FORMATS: Mapping[str, tuple[Callable[[Mapping[str, Any]], tuple[str, CodeTests]], tuple[str, ...]]] = MappingProxyType(
    {"humaneval": (_humaneval, ("prompt", "entry_point", "test")), "mbpp": (_mbpp, ("test_list",))}
)
"""By rule: from a row to its problem and tests, and the columns it needs."""


def _names(tests: str, setup: str, before: str, solution: str) -> tuple[str, ...]:
    """What tests take from the program, what they call first in front: what the known solution defines, or what
    nothing else does."""
    defined = {node.name for node in ast.parse(solution).body if isinstance(node, _DEFINITIONS)} if solution else set()
    tree = ast.parse(f"{before}\n{setup}\n{tests}")
    own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, _DEFINITIONS)}
    own |= {
        (name.asname or name.name).split(".")[0] for n in ast.walk(tree) if isinstance(n, _IMPORTS) for name in n.names
    }
    used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    found = [name for name in used if name in defined or (name not in own and not hasattr(builtins, name))]
    called = [
        node.func.id
        for node in ast.walk(ast.parse(tests))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    return tuple(dict.fromkeys([*(name for name in called if name in found), *found]))


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


def code_format(rule: str | None, columns: Sequence[str]) -> str | None:
    """The format that a table's tests are in, a key of ``FORMATS``: the rule's, or where there is none the first that
    its columns fit, unless one of them has answers."""
    if rule in FORMATS:
        return rule
    if rule is not None or {"answer", "final_answer", "ground_truth", "solution"} & set(columns):
        return None
    return next((name for name, (_, needed) in FORMATS.items() if set(needed) <= set(columns)), None)


def code_rows(rows: datasets.Dataset, rule: str, where: str) -> datasets.Dataset:
    """A table with ``id``, ``problem`` and ``answer``, its tests as text, from one in a format of ``FORMATS``.

    ``DataError``: a column is missing, or rows whose tests are not Python or ask for nothing.
    """
    read, needed = FORMATS[rule]
    missing = [name for name in needed if name not in rows.column_names]
    if missing:
        present = ", ".join(map(repr, rows.column_names))
        raise DataError(f"{where} has no column {missing[0]!r}, which problems like {rule}'s have. It has {present}")
    found, bad = [], []
    for number, row in enumerate(cast(Iterable[Mapping[str, Any]], rows)):
        try:
            problem, tests = read(row)
            if not tests.names:
                raise ValueError("they call nothing")
            for text in (tests.before if rule == "mbpp" else "", tests.tests):
                compile(text, "<tests>", "exec")
        except (SyntaxError, ValueError, TypeError) as error:
            bad.append((number, error))
            continue
        name = row.get("task_id")
        found.append(
            {"id": f"{rule}/{number}" if name is None else str(name), "problem": problem, "answer": tests.as_text()}
        )
    if bad:
        raise DataError(
            f"{where}: the tests cannot be run in {numbered([number for number, _ in bad])}: {bad[0][1]}. "
            "Correct the file, or leave those rows out of it"
        )
    return datasets.Dataset.from_list(found)


def program_in(completion: str, tests: CodeTests) -> str | None:
    """The program that a completion gives, or None where it gives none.

    The last block in a fence that defines what was asked for, or else the last block; without a fence all of the
    text. What does not define it goes on from the prompt, up to the end of the function's body.
    """
    blocks = [
        (re.sub(rf"^{indent}", "", block, flags=re.M), block)
        for indent, language, block in _FENCE.findall(completion)
        if language.lower() in _PYTHON and block.strip()
    ]
    entry = re.compile(
        rf"^(?:async[ ]+def|def|class)[ ]+{re.escape(tests.names[0])}\b|^{re.escape(tests.names[0])}[ ]*=", re.M
    )
    if not blocks and not completion.strip():
        return None
    last = blocks[-1] if blocks else (completion, completion)
    text, as_written = next((both for both in reversed(blocks) if entry.search(both[0])), last)
    if entry.search(text) or not tests.prompt:
        return f"{tests.prompt}\n\n{text}" if tests.prompt else text
    return tests.prompt + _AFTER_BODY.split(as_written, maxsplit=1)[0]


def task_of(completion: str, answer: str) -> Task | None:
    """What the sandbox is to run for a completion and a gold answer; None where the completion holds no program."""
    tests = CodeTests.of(answer)
    program = program_in(completion, tests)
    return None if program is None else Task(program, tests.tests, tests.names, tests.before)


def code_record(record: Any, rule: str) -> Any:
    """A benchmark's record for problems whose tests were read: where what is, and what is right."""
    given = record.template
    # A run's own words for mathematics are no question for a public set of programs; a file of one's own has them.
    swapped = given is None or ("\\boxed" in given and record.hub is not None)
    template = CODE_TEMPLATE if swapped else given
    return replace(record, columns={}, extract="verbatim", rule=rule, template=template)
