"""One program against its tests: what they say to each other, and the verdict."""

import json
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from answer_judge.errors import RewardError
from answer_judge.sandbox.servers import (
    LONGEST_QUESTION,
    Child,
    EndedError,
    FloodError,
    LateError,
    Limits,
    ServerProcess,
)
from answer_judge.sandbox.values import line

VERDICTS = ("right", "wrong", "error", "timeout", "memory", "forbidden")
"""Every verdict on a program. Only ``right`` is worth 1."""


@dataclass(frozen=True, slots=True)
class Task:
    """A program and its tests."""

    program: str
    """Python, run once from top to bottom."""
    tests: str
    """Python, run in another process; what it names of ``names`` is the program's, by value."""
    names: tuple[str, ...]
    """What the tests take from the program."""
    before: str = ""
    """Python that belongs to the tests, run before ``names`` are bound."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a program."""

    verdict: str
    """``right``; ``wrong``: a test failed; ``error``: the program, or a test of what it gave, raised, or it ended by
    itself; ``timeout``: too many seconds; ``memory``: too much of it; ``forbidden``: it tried what it may not do."""
    detail: str = ""
    """In words, for people."""
    cpu_seconds: float = 0.0
    memory_mb: float = 0.0
    """Peak memory of its process, the interpreter's included."""


def judged(server: ServerProcess, task: Task, required: list[str], limits: Limits) -> Outcome:
    """Run one task: the tests' process asks, the program's answers. ``RewardError``: one could not confine itself."""
    program = server.start("program", required)
    try:
        tests = server.start("tests", required)
        try:
            found = _conversation(program, tests, task, limits.wall_seconds)
        finally:
            ended_tests = tests.close()
    finally:
        ended = program.close()
    for report in (ended, ended_tests):
        if report["refused"]:
            raise RewardError(f"a program's process could not be confined again as at the start: {', '.join(required)}")
    if isinstance(found, str):
        of, whose = (ended, "the program") if found == "program" else (ended_tests, "the tests, on what it gave,")
        verdict, detail = _how_it_ended(of, whose, limits)
    else:
        verdict, detail = found
    return Outcome(verdict, detail, round(ended["cpu"], 4), round(ended["memory_kb"] / 1024, 1))


def _conversation(program: Child, tests: Child, task: Task, wall_seconds: float) -> tuple[str, str] | str:
    """The verdict and its detail, or whose process ended before there was one: ``program`` or ``tests``."""
    speaking, deadline = "tests", time.monotonic() + wall_seconds
    try:
        given = {"program": task.program, "before": task.before, "tests": task.tests, "names": list(task.names)}
        tests.send(line(given), deadline)
        while True:
            speaking = "tests"
            asked = tests.receive(deadline, LONGEST_QUESTION)
            if asked.startswith(b'{"verdict"'):
                return _verdict(json.loads(asked))
            speaking = "program"
            program.send(asked, deadline)
            answer = program.receive(deadline)
            speaking = "tests"
            tests.send(answer, deadline)
    except EndedError:
        return speaking
    except LateError:
        return "timeout", f"no verdict in the {wall_seconds:g} seconds it had"
    except FloodError:
        said = "answered a call with more than may be"
        return "error", f"it {said}" if speaking == "program" else "a test calls it with more than may be"


def _verdict(said: dict[str, Any]) -> tuple[str, str]:
    """The verdict of the tests' process; of an exception of the program's, by its kind."""
    if said["verdict"] != "raised":
        return said["verdict"], said.get("detail", "")
    return {"MemoryError": "memory", "PermissionError": "forbidden"}.get(said["kind"], "error"), said["detail"]


def _how_it_ended(report: dict[str, Any], whose: str, limits: Limits) -> tuple[str, str]:
    """The verdict on a process that ended before its time."""
    status = report["status"]
    if not os.WIFSIGNALED(status):
        return "error", f"{whose} ended by itself, with exit status {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
    if number == signal.SIGXCPU or report["cpu"] >= limits.cpu_seconds:
        return "timeout", f"{whose} took more than {limits.cpu_seconds} CPU seconds"
    if number == signal.SIGSYS:
        return "forbidden", f"{whose} was ended by the system, for what it asked of it"
    if report["memory_kb"] / 1024 > 0.8 * limits.memory_mb:
        return "memory", f"{whose} was ended by {name} near its limit of {limits.memory_mb} MiB"
    return "error", f"{whose} was ended by {name}"
