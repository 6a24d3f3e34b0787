"""Programs run against their tests, each in a process of its own that the system confines; the verdict comes from
another one, which the program cannot reach."""

import functools
import json
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dppo.errors import ConfigError, RewardError
from dppo.sandbox.servers import (
    START_SECONDS,
    Child,
    EndedError,
    FloodError,
    LateError,
    Limits,
    Server,
    bubblewrap,
    check_platform,
)
from dppo.sandbox.values import NOT_CONFINED, line
from dppo.typed import typed

VERDICTS = ("right", "wrong", "error", "timeout", "memory", "forbidden")
"""Every verdict on a program. Only ``right`` is worth 1."""

LAYERS = {
    "bubblewrap": "its own processes, network, users and files, by bubblewrap",
    "namespaces": "its own network, mounts and shared memory",
    "own folder": "an empty folder of its own, in memory, bounded",
    "nobody": "the user nobody",
    "no privileges": "no capability, and no way to gain one",
    "files": "Landlock: only Python's library can be read, only its own folder written",
    "system calls": "seccomp: no processes, network, signals to others, other programs, privileges",
}
"""What can hold a program, by name. The limits of ``Limits`` hold beside them, memory not on macOS."""

_ADVICE = (
    "Use Linux on x86_64 or aarch64, 6.2 or later or with bubblewrap (apt-get install bubblewrap). To run programs all "
    "the same, with the rights of this user: accept_weak_sandbox: true"
)


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
    """Python of the tests' own, run before ``names`` are bound."""


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
    """The largest its process had in memory, that of the interpreter included."""


_PROBES = (
    (Task("import re\ndef f(x): return [x, (1.5, {2})]", "assert f(1) == [1, (1.5, {2})]", ("f",)), "right"),
    (Task("def f(x):\n    return x", "assert f(1) == 2", ("f",)), "wrong"),
)  # fmt: skip
_CANNOT_READ = Task(
    "def f():\n    try:\n        return open('/etc/passwd').read()\n    except OSError:\n        return ''",
    "assert f()",
    ("f",),
)
_HELD = (
    (Task("import socket\nsocket.socket()", "", ()), "forbidden"),
    (Task("import os\nos.fork()", "", ()), "forbidden"),
)
"""What must be seen to hold, where it is said to, before any program is run."""


class Sandbox:
    """Runs programs against tests; a context manager, and also shut down when collected and at exit.

    At the first use it finds out, by trying, what this system can confine (``layers``), and proves on known programs
    that it does. Every later process must confine itself in the same way before it runs anything.

    Args:
        workers: programs at once, >= 1.
        limits: of each program.
        wrapper: path of bubblewrap; None looks for it, "" does without it.
        accept_weak: run programs also where nothing confines them but limits and the time.

    Raises:
        ConfigError: a setting out of range, or another system than Linux or macOS.
    """

    @typed("Sandbox(workers=2, limits=Limits(memory_mb=256))")
    def __init__(
        self,
        workers: int = 2,
        limits: Limits | None = None,
        wrapper: str | None = None,
        accept_weak: bool = False,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers={workers} must be at least 1. Try workers=2")
        check_platform()
        self.workers, self.limits, self.accept_weak = workers, limits or Limits(), accept_weak
        self.wrapper = bubblewrap() if wrapper is None else wrapper or None
        self._layers: tuple[str, ...] | None = None
        self._probing = threading.Lock()
        self._forget()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _forget(self) -> None:
        """Own no server; also in a fork, whose parent's they are."""
        self._owner = os.getpid()
        self._servers: list[Server] = []
        self._free: queue.SimpleQueue[Server | None] = queue.SimpleQueue()
        for _ in range(self.workers):
            self._free.put(None)
        self._finalizer = weakref.finalize(self, _end, self._servers, self._owner)

    def close(self) -> None:
        """End all processes. The next program starts them again."""
        if self._owner == os.getpid():
            _end(self._servers, self._owner)
        self._forget()

    @property
    def pids(self) -> list[int]:
        """Process ids of the servers there are now."""
        return [server.process.pid for server in self._servers]

    @property
    def layers(self) -> tuple[str, ...]:
        """What confines a program on this system, keys of ``LAYERS``: found out by trying.

        Raises:
            ConfigError: too little does, and ``accept_weak`` is not set.
            RewardError: servers cannot be started, or do not hold what they should.
        """
        with self._probing:
            if self._layers is None:
                self._layers = self._probed()
            return self._layers

    def describe(self) -> str:
        """What is enforced on a program here and what is not, in words."""
        held = [LAYERS[name] for name in self.layers]
        missing = [name for name in LAYERS if name not in self.layers]
        weak = "" if is_strong(self.layers) else "WEAK, it runs with the rights of this user: "
        limits = f"{self.limits.cpu_seconds} CPU seconds, {self.limits.memory_mb} MiB"
        text = f"programs run with {weak}{'; '.join(held) or 'no confinement'}; {limits}"
        return text + (f". Not here: {', '.join(missing)}" if missing else "")

    def run(self, task: Task) -> Outcome:
        """The outcome of one program; see ``run_many``."""
        return self.run_many([task])[0]

    def run_many(self, tasks: Sequence[Task]) -> list[Outcome]:
        """The outcome of each program, in the order given. Safe to call from any thread.

        Raises:
            ConfigError: too little confines programs here, and ``accept_weak`` is not set.
            RewardError: servers cannot be started, or programs cannot be confined any more.
        """
        if self._owner != os.getpid():
            self._forget()
        required = [name for name in self.layers if name != "bubblewrap"]
        if len(tasks) < 2 or self.workers == 1:
            return [self._run(task, required) for task in tasks]
        with ThreadPoolExecutor(max_workers=min(self.workers, len(tasks))) as threads:
            return list(threads.map(functools.partial(self._run, required=required), tasks))

    def _take(self) -> Server:
        server = self._free.get()
        if server is not None and server.process.poll() is None:
            return server
        if server is not None:
            self._servers.remove(server)
        try:
            server = Server(self.limits, self.wrapper, weak=self._layers is not None and not is_strong(self._layers))
        except BaseException:
            self._free.put(None)
            raise
        self._servers.append(server)
        return server

    def _run(self, task: Task, required: list[str]) -> Outcome:
        server = self._take()
        try:
            return judged(server, task, required, self.limits)
        except (OSError, EndedError, LateError) as error:  # of the server itself: what it forked ends with it
            server.close()
            raise RewardError(f"the sandbox's server ended while a program ran: {error!r}") from error
        except BaseException:
            server.close()
            raise
        finally:
            self._free.put(server)

    def _probed(self) -> tuple[str, ...]:
        layers = self._tried()
        if not is_strong(layers):
            if not self.accept_weak:
                calls = "" if "system calls" in layers else "no filter of system calls (seccomp)"
                files = "" if {"bubblewrap", "files"} & set(layers) else "neither bubblewrap nor Landlock hides files"
                raise ConfigError(
                    f"programs of a model cannot be confined on this system ({sys.platform}): "
                    f"{', '.join(filter(None, (calls, files)))}. {_ADVICE}"
                )
            self.close()  # servers of weak sandboxes give programs a folder of their own another way
        self._layers = layers
        try:
            self._prove(layers)
        except BaseException:
            self._layers = None
            raise
        return layers

    def _tried(self) -> tuple[str, ...]:
        """The layers that a process of a server finds it can have."""
        try:
            server = self._take()
        except RewardError:
            if self.wrapper is None:
                raise
            self.wrapper = None  # installed, and of no use here, as in many containers
            return self._tried()
        probe = server.start("probe", [])
        try:
            said = json.loads(probe.receive(time.monotonic() + START_SECONDS))
        except (OSError, EndedError, LateError) as error:
            raise RewardError(f"the sandbox's server could not be asked what it confines: {error!r}") from error
        finally:
            probe.close()
            self._free.put(server)
        return (*(["bubblewrap"] if self.wrapper else []), *(name for name, works in said.items() if works))

    def _prove(self, layers: tuple[str, ...]) -> None:
        required = [name for name in layers if name != "bubblewrap"]
        held = (*(_HELD if "system calls" in layers else ()), *([(_CANNOT_READ, "wrong")] if is_strong(layers) else ()))
        for task, expected in (*_PROBES, *held):
            found = self._run(task, required)
            if found.verdict != expected:
                raise RewardError(
                    f"the sandbox does not do what it should here: {task.program!r} is {found.verdict} "
                    f"({found.detail}), expected {expected}"
                )


def is_strong(layers: Sequence[str]) -> bool:
    """Whether a program can reach neither the files, processes and network around it, nor those who judge it."""
    return "system calls" in layers and bool({"bubblewrap", "files"} & set(layers))


def _end(servers: list[Server], owner: int) -> None:
    """End servers, in the process that started them."""
    if owner == os.getpid():
        while servers:
            servers.pop().close()


def judged(server: Server, task: Task, required: list[str], limits: Limits) -> Outcome:
    """Run one task: the tests' process asks, the program's answers, and lines are passed on unread.

    Raises:
        RewardError: a process could not confine itself as required.
    """
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
        if os.WIFEXITED(report["status"]) and os.WEXITSTATUS(report["status"]) == NOT_CONFINED:
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
            asked = tests.receive(deadline)
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
        return "error", "it answered a call with more than may be"


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
