"""A server that forks confined processes on request: one that runs a program, one that runs its tests.

It is given its own text by ``servers`` and imports nothing of this package from disk. Starting an interpreter takes a
tenth of a second, a fork a thousandth; what a program does to its process ends with that process.
"""

import gc
import importlib
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import answer_judge.sandbox.kernel as kernel
from answer_judge.sandbox.program import Serving
from answer_judge.sandbox.testing import Testing

PRELOADED = (
    "abc", "array", "bisect", "calendar", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum",
    "fractions", "functools", "hashlib", "heapq", "itertools", "json", "math", "numbers", "operator", "queue", "random",
    "re", "statistics", "string", "sys", "textwrap", "threading", "time", "types", "typing", "unicodedata",
)  # fmt: skip
"""Modules that programs often import: there already, so that an import costs nothing and reads no file."""
PROCESSES = 64
"""Processes and threads of a user who has none but the sandbox's; only threads, where system calls are filtered."""


def main(control: socket.socket, settings: dict[str, Any]) -> None:
    """Serve until the other end of ``control`` closes; then every process it forked is killed."""
    for name in PRELOADED:
        importlib.import_module(name)
    separate = kernel.separate()
    server = Server(control, settings, separate, separate and kernel.own_root())
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    gc.collect()
    gc.freeze()
    server.tell({"ready": True})
    try:
        server.serve()
    finally:
        for number in list(server.running):
            server.stop(number)


class Server:
    """The server's state: the processes that run, by the number they were asked for with."""

    def __init__(self, control: socket.socket, settings: dict[str, Any], separate: bool, hidden: bool) -> None:
        self.control, self.settings, self.separate, self.hidden = control, settings, separate, hidden
        self.rules = kernel.file_rules(writable=separate)
        self.running: dict[int, tuple[int, str, int]] = {}
        """Process, folder, and the pipe in which a refusal is told."""

    def tell(self, message: Any) -> None:
        self.control.sendall(json.dumps(message).encode() + b"\n")

    def serve(self) -> None:
        """One request, one answer, until there are no more requests."""
        while True:
            text, ends, _, _ = socket.recv_fds(self.control, 4096, 2)
            if not text:
                return
            request = json.loads(text)
            if "stop" in request:
                self.tell(self.stop(request["stop"]))
            else:
                self.start(request["start"], request["role"], request["require"], ends)
                self.tell({"started": request["start"]})

    def start(self, number: int, role: str, require: list[str], ends: list[int]) -> None:
        """Fork a process for a role; ``ends`` are its two pipes, to read from and to write to."""
        folder = tempfile.mkdtemp() if self.settings["weak"] and not self.separate else ""
        refused, refusal = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self.become(role, require, (*ends, refusal), folder)
            finally:
                os._exit(1)
        self.running[number] = pid, folder, refused
        for end in (*ends, refusal):
            os.close(end)

    def stop(self, number: int) -> dict[str, Any]:
        """Kill a process, and say how it ended, by that or before, and what it took."""
        pid, folder, told = self.running.pop(number)
        for end in (os.kill, os.killpg):
            with suppress(ProcessLookupError, PermissionError):
                end(pid, signal.SIGKILL)
        _, status, used = os.wait4(pid, 0)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        with os.fdopen(told, "rb") as refusal:
            refused = bool(refusal.read())
        return {"refused": refused, "status": status, "cpu": used.ru_utime + used.ru_stime, "memory_kb": used.ru_maxrss}

    def become(self, role: str, require: list[str], ends: Sequence[int], folder: str) -> None:
        """What a forked process does, to its end.

        Of ``ends``, the third takes a byte where the process cannot be confined as required. It is closed before
        anything of a program runs: no exit status of a program's can say the same.
        """
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # this was the control socket
        reads, writes, refusal = [os.dup2(end, place) for end, place in zip(ends, (60, 61, 63), strict=True)]
        rules = os.dup2(self.rules, 62) if self.rules >= 0 else -1
        os.closerange(3, 60)
        os.setsid()
        done = self.confine(folder, rules)
        if not set(require) <= {name for name, works in done.items() if works}:
            os.write(refusal, b"0")
            os._exit(1)
        os.close(refusal)
        ROLES[role](reads, writes, done)
        os._exit(0)

    def confine(self, folder: str, rules: int) -> dict[str, bool]:
        """Confine this process as far as the system lets it; what of it was done, by name."""
        given, own = self.settings, self.separate and kernel.own_folder(self.settings["file_mb"])
        os.environ.clear()
        os.environ.update(LANG="C.UTF-8", HOME=kernel.PLACE if own else "/", TMPDIR=kernel.PLACE if own else "/")
        if folder:
            os.chmod(folder, 0o777)
            os.environ.update(HOME=folder, TMPDIR=folder)
        os.chdir(kernel.PLACE if own else folder or "/")
        nobody = (bool(folder) or kernel.library_is_public()) and kernel.become_nobody()
        dropped = kernel.drop_privileges()
        kernel.die_with_parent()
        kernel.limit(
            cpu_seconds=given["cpu_seconds"],
            memory_mb=given["memory_mb"],
            file_mb=given["file_mb"],
            processes=PROCESSES if folder or self.separate else None,
        )
        files = kernel.confine_files(rules)
        os.closerange(62, 63)
        calls = kernel.filter_calls()
        done = {"namespaces": self.separate, "own root": self.hidden, "own folder": own, "nobody": nobody}
        return {**done, "no privileges": dropped, "files": files, "system calls": calls}


def _probe(reads: int, writes: int, done: dict[str, bool]) -> None:
    os.write(writes, json.dumps(done).encode() + b"\n")


ROLES: dict[str, Callable[[int, int, dict[str, bool]], None]] = {
    "program": lambda reads, writes, done: Serving(reads, writes).run(),
    "tests": lambda reads, writes, done: Testing(writes, reads).run(),
    "probe": _probe,
}
