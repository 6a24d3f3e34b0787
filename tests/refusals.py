"""What a wrong call is refused with: the kind of error and the names that its message must hold.

A test says which error and which fields, values or files it names. The sentences themselves stand in ``messages.json``,
by test, so that a changed one is seen in one place: ``WRITE_MESSAGES=1 make test`` accepts it. A test without an entry
records none. Numbers, versions, folders and addresses differ from run to run and are left out of the comparison.
"""

import difflib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

MESSAGES = Path(__file__).with_name("messages.json")
WRITING = bool(os.environ.get("WRITE_MESSAGES"))
LEFT_OUT = {
    "tests/judge/grading/test_grading_pool.py::test_a_pool_that_cannot_start_says_why": "Python's traceback",
    "tests/judge/evaluation/test_evaluation_transformers.py::test_models_that_are_not_there": "the hub's client",
    "tests/judge/problems/test_problems_loading.py::test_a_bad_file_says_where[7]": "pyarrow",
    "tests/judge/problems/test_problems_loading.py::test_a_bad_file_says_where[9]": "pyarrow",
    "tests/pruning/test_pruning_history.py::test_archives_that_are_no_history_are_refused_and_a_pickle": "numpy",
}
"""Tests, by the beginning of their id, whose sentences quote a library or depend on the machine, and on what."""
NORMALISED = (
    (r"(?<=process )\d+ on \S+(?= since)", "# on HOST"),
    (re.escape(str(MESSAGES.parents[1])), "PATH"),
    (r"(?<![\w./])/(?:[^\s/'\"`,;:()<>\[\]]+/)+(?:tmp\w{8}\b)?", "PATH/"),
    (r"\b0x[0-9a-fA-F]+", "#"),
    (r"\d+(?:\.\d+)*(?:e[-+]?\d+)?(?:\.?(?:dev|post|rc)\d+)?(?:\+(?:cpu|cu\d+|git\w+))?", "#"),
)
seen: dict[str, list[str]] = {}
"""The sentences of this process, by test in the order in which they came up."""


@contextmanager
def refused(kind: type[BaseException], *named: object) -> Iterator[pytest.ExceptionInfo]:
    """Passes where the block raises ``kind`` with a message that holds each of ``named`` as text."""
    with pytest.raises(kind) as info:
        yield info
    missing = [name for name in named if str(name) not in str(info.value)]
    assert not missing, f"{missing} not named in: {info.value}"
    compare(str(info.value))


@contextmanager
def warned(*named: object) -> Iterator[pytest.WarningsRecorder]:
    """Passes where the block warns a user with a message that holds each of ``named`` as text."""
    with pytest.warns(UserWarning) as record:
        yield record
    told = [str(warning.message) for warning in record]
    holding = [message for message in told if all(str(name) in message for name in named)]
    assert holding, f"{named} not named in: {told}"
    compare(holding[0])


def normalised(sentence: str) -> str:
    """A sentence without what differs from run to run and from machine to machine."""
    for pattern, sign in NORMALISED:
        sentence = re.sub(pattern, sign, sentence)
    return sentence


def compare(sentence: str) -> None:
    """Fail where the running test has entries and none is this sentence."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    if test.startswith(tuple(LEFT_OUT)):
        return
    new, told = normalised(sentence), seen.setdefault(test, [])
    told += [new] if new not in told else []
    known = stored().get(test, [new])
    if not WRITING and new not in known:
        (old,) = difflib.get_close_matches(new, known, n=1, cutoff=0.0)
        line = f"WRITE_MESSAGES=1 .venv/bin/pytest '{test}'"
        raise AssertionError(f"another sentence than before\n  old: {old}\n  new: {new}\naccept it: {line}")


@cache
def stored() -> dict[str, list[str]]:
    return json.loads(MESSAGES.read_text()) if MESSAGES.exists() else {}


def write(ran: set[str], told: dict[str, list[str]]) -> None:
    """Put the sentences of the tests that ran in place of their entries; tests that are gone from their file go."""
    kept = {test: sentences for test, sentences in stored().items() if test not in ran and _exists(test)}
    entries = dict(sorted((kept | told).items()))
    MESSAGES.write_text(json.dumps(entries, indent=1) + "\n")


def _exists(test: str) -> bool:
    path, *_, function = test.split("[")[0].split("::")
    file = MESSAGES.parents[1] / path
    return file.exists() and f"def {function}(" in file.read_text()
