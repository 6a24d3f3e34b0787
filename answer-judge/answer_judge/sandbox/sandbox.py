"""Runs programs against their tests, each in its own confined process; the verdict comes from another process, which
the program cannot reach."""

import functools
import json
import os
import queue
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any

from answer_judge.errors import ConfigError, RewardError
from answer_judge.sandbox.judging import Outcome, Task, judged
from answer_judge.sandbox.servers import START_SECONDS, EndedError, LateError, Limits, ServerProcess, bubblewrap

LAYERS = {
    "bubblewrap": "its own processes, network, users and files, by bubblewrap",
    "namespaces": "its own network, mounts and shared memory",
    "own root": "of the files outside only the system's libraries and Python's can be seen",
    "own folder": "an empty folder of its own, in memory, bounded",
    "nobody": "the user nobody",
    "no privileges": "no capability, and no way to gain one",
    "files": "Landlock: only Python's library can be read, only its own folder written",
    "system calls": "seccomp: no processes, network, signals to others, other programs, privileges",
}
"""What can confine a program, by name. ``Limits`` apply as well; the one on memory not on macOS."""

_ADVICE = (
    "Use Linux on x86_64 or aarch64, 6.2 or later or with bubblewrap (apt-get install bubblewrap). To run programs all "
    "the same, with the rights of this user: accept_weak_sandbox: true"
)


_PROBES = (
    (Task("import re\ndef f(x): return [x, (1.5, {2})]", "assert f(1) == [1, (1.5, {2})]", ("f",)), "right"),
    (Task("def f(x):\n    return x", "assert f(1) == 2", ("f",)), "wrong"),
)  # fmt: skip


def _tries(expression: str) -> Task:
    """A program that is right where the system lets it look."""
    program = f"import os\ndef f():\n    try:\n        return {expression}\n    except OSError:\n        return ''"
    return Task(program, "assert f()", ("f",))


_HELD = {
    "system calls": (
        (Task("import socket\nsocket.socket()", "", ()), "forbidden"),
        (Task("import os\nos.fork()", "", ()), "forbidden"),
    ),
    "files": ((_tries("open('/etc/passwd').read()"), "wrong"), (_tries("os.listdir('/')"), "wrong")),
    "bubblewrap": ((_tries("open('/etc/passwd').read()"), "wrong"),),
    "own root": ((_tries("os.path.lexists('/etc/passwd')"), "wrong"),),
}
"""What must be seen to hold, by layer, before any program is run."""


class Sandbox(AbstractContextManager["Sandbox"]):
    """Runs programs against tests; a context manager, and also shut down when collected and at exit.

    At the first use it finds out, by trying, what this system can confine (``layers``), and proves on known programs
    that it does. Every later process must confine itself in the same way before it runs anything.

    Args:
        workers: programs at once, >= 1; ``ConfigError`` below.
        limits: of each program.
        wrapper: path of bubblewrap; None looks for it, "" does without it.
        accept_weak: run programs also if nothing confines them but limits and the time.
    """

    def __init__(
        self, workers: int = 2, limits: Limits | None = None, wrapper: str | None = None, accept_weak: bool = False
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers={workers} must be at least 1. Try workers=2")
        self.workers, self.limits, self.accept_weak = workers, limits or Limits(), accept_weak
        self.wrapper = bubblewrap() if wrapper is None else wrapper or None
        self._layers: tuple[str, ...] | None = None
        self._owner = 0  # no process yet
        self._forget()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _forget(self) -> None:
        """Own no server; also in a fork, whose parent's they are, as is the lock that another thread may hold there."""
        if self._owner != os.getpid():
            self._owner, self._probing = os.getpid(), threading.Lock()
        self._slots = _Slots(self.workers)
        self._finalizer = weakref.finalize(self, _end, self._slots.servers, self._owner)

    def close(self) -> None:
        """End all processes. The next program starts them again."""
        if self._owner == os.getpid():
            _end(self._slots.servers, self._owner)
        self._forget()

    @property
    def pids(self) -> list[int]:
        """Process ids of the servers there are now."""
        return [server.process.pid for server in self._slots.servers]

    @property
    def layers(self) -> tuple[str, ...]:
        """What confines a program on this system, keys of ``LAYERS``: found out by trying.

        ``ConfigError``: too little does, and ``accept_weak`` is not set; or neither Linux nor macOS. ``RewardError``:
        servers cannot be started, or do not hold what they should.
        """
        if self._owner != os.getpid():
            self._forget()
        with self._probing:
            if self._layers is None:
                if not (hasattr(os, "fork") and hasattr(socket, "send_fds")):
                    raise ConfigError(f"programs cannot be run on {sys.platform}: use Linux, or WSL on Windows")
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
        """The outcome of each program, in the order given. Safe to call from any thread. Errors are ``layers``'."""
        required = [name for name in self.layers if name != "bubblewrap"]
        if len(tasks) < 2 or self.workers == 1:
            return [self._run(task, required) for task in tasks]
        with ThreadPoolExecutor(max_workers=min(self.workers, len(tasks))) as threads:
            return list(threads.map(functools.partial(self._run, required=required), tasks))

    @contextmanager
    def _server(self) -> Iterator[ServerProcess]:
        """A server that is free, or a new one in its place; it is ended where ``close`` came meanwhile."""
        slots = self._slots
        server = slots.free.get()
        try:
            if server is not None and server.process.poll() is not None:
                with suppress(ValueError):  # ended by close
                    slots.servers.remove(server)
                server = None
            if server is None:
                weak = self._layers is not None and not is_strong(self._layers)
                server = ServerProcess(self.limits, self.wrapper, weak=weak)
                slots.servers.append(server)
            yield server
        finally:
            if server is not None and slots is not self._slots:
                server.close()
            slots.free.put(server)

    def _run(self, task: Task, required: list[str], limits: Limits | None = None) -> Outcome:
        """The outcome of one program; it is tried once more where the system ended its server meanwhile."""
        for last in (False, True):
            with self._server() as server:
                try:
                    return judged(server, task, required, limits or self.limits)
                except (OSError, EndedError, LateError) as error:
                    server.close()  # what it forked ends with it
                    if last:
                        raise RewardError(f"two servers of the sandbox ended while a program ran: {error!r}") from error
                except BaseException:
                    server.close()
                    raise
        raise AssertionError("unreachable")

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
            self.close()  # servers of weak sandboxes make a program's folder in another way
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
            with self._server() as server:
                said = _said(server)
        except RewardError:
            if self.wrapper is None:
                raise
            self.wrapper = None  # installed, and of no use here, as in many containers
            return self._tried()
        except (OSError, EndedError, LateError) as error:
            raise RewardError(f"the sandbox's server could not be asked what it confines: {error!r}") from error
        return (*(["bubblewrap"] if self.wrapper else []), *(name for name, works in said.items() if works))

    def _prove(self, layers: tuple[str, ...]) -> None:
        required = [name for name in layers if name != "bubblewrap"]
        patient = replace(self.limits, wall_seconds=START_SECONDS)  # the machine may be busy
        held = dict.fromkeys(probe for layer in layers for probe in _HELD.get(layer, ()))
        for task, expected in (*_PROBES, *held):
            found = self._run(task, required, patient)
            if found.verdict != expected:
                raise RewardError(
                    f"the sandbox does not do what it should here: {task.program!r} is {found.verdict} "
                    f"({found.detail}), expected {expected}"
                )


class _Slots:
    """The servers there are, and as many free places as programs may run at once; ``close`` makes new ones."""

    def __init__(self, workers: int) -> None:
        self.servers: list[ServerProcess] = []
        self.free: queue.SimpleQueue[ServerProcess | None] = queue.SimpleQueue()
        for _ in range(workers):
            self.free.put(None)


def _said(server: ServerProcess) -> dict[str, Any]:
    """What a process of a server says that works here, by layer."""
    probe = server.start("probe", [])
    try:
        return json.loads(probe.receive(time.monotonic() + START_SECONDS))
    finally:
        probe.close()


def is_strong(layers: Sequence[str]) -> bool:
    """True if a program can reach neither the files, processes and network around it, nor those who judge it."""
    return "system calls" in layers and bool({"bubblewrap", "files"} & set(layers))


def _end(servers: list[ServerProcess], owner: int) -> None:
    """End servers, in the process that started them."""
    if owner == os.getpid():
        while servers:
            servers.pop().close()
