"""The caller's end of a server: starts it, in bubblewrap where that is installed, and talks with what it forks."""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from answer_judge.errors import RewardError, raise_problems
from answer_judge.sandbox.kernel import system_places

MODULES = ("syscalls", "kernel", "values", "program", "testing", "server")
"""What a server is made of, in the order of imports."""
BOOT = """
import json, os, socket, sys, types
control, text = socket.socket(fileno=0), b""
while not text.endswith(b"\\n"):
    part = control.recv(65536)
    if not part:
        os._exit(1)
    text += part
given = json.loads(text)
for name in ("answer_judge", "answer_judge.sandbox"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
for name, source in given["modules"]:
    full = "answer_judge.sandbox." + name
    module = sys.modules[full] = types.ModuleType(full)
    setattr(sys.modules["answer_judge.sandbox"], name, module)
    exec(compile(source, full, "exec"), module.__dict__)
sys.modules["answer_judge"].sandbox = sys.modules["answer_judge.sandbox"]
sys.modules["answer_judge.sandbox.server"].main(control, given["settings"])
"""
"""What the server's interpreter is started with: it reads its own text from its input and runs it."""
START_SECONDS = 60.0
LONGEST_LINE = 1 << 20
"""Bytes a program may answer one call with."""
LONGEST_QUESTION = 1 << 26
"""Bytes tests may call it with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one program, and of its tests again; ``ConfigError``: one out of range."""

    wall_seconds: float = 20.0
    """From its start to the verdict, > 0."""
    cpu_seconds: int = 5
    """Of its process, >= 1."""
    memory_mb: int = 256
    """Address space in MiB, the interpreter's included, >= 128."""
    file_mb: int = 16
    """Of its own folder as a whole, >= 1."""

    def __post_init__(self) -> None:
        wrong = []
        if not 0 < self.wall_seconds < float("inf"):
            wrong.append(f"wall_seconds={self.wall_seconds} must be above 0 and finite. Try wall_seconds=10.0")
        for name, least in (("cpu_seconds", 1), ("memory_mb", 128), ("file_mb", 1)):
            if getattr(self, name) < least:
                wrong.append(f"{name}={getattr(self, name)} must be at least {least}. Try {name}={max(least, 5)}")
        raise_problems("limits of programs", wrong)

    @staticmethod
    def of(cpu_seconds: int, memory_mb: int) -> "Limits":
        """With four seconds by the clock for each of CPU: programs share the processors with training."""
        return Limits(wall_seconds=4.0 * cpu_seconds, cpu_seconds=cpu_seconds, memory_mb=memory_mb)


class EndedError(Exception):
    """The process at the other end of a pipe is gone."""


class LateError(Exception):
    """The time is over."""


class FloodError(Exception):
    """A line longer than any may be."""


def bubblewrap() -> str | None:
    """Where bubblewrap is, if it is installed."""
    return shutil.which("bwrap") if sys.platform == "linux" else None


def wrapped(wrapper: str, python: list[str]) -> list[str]:
    """The command that runs an interpreter in bubblewrap: system libraries, its own library, an empty ``/tmp``."""
    words = [wrapper, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += ["--uid", "65534", "--gid", "65534", "--hostname", "sandbox"]
    for place in system_places():
        words += ["--symlink", os.readlink(place), place] if os.path.islink(place) else ["--ro-bind", place, place]
    words += ["--proc", "/proc", "--dev", "/dev", "--size", str(16 << 20), "--tmpfs", "/tmp", "--chdir", "/"]
    return [*words, *python]


def sources() -> list[tuple[str, str]]:
    """The modules of a server and their text."""
    return [(name, (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")) for name in MODULES]


class ServerProcess:
    """A running server, in bubblewrap if ``wrapper`` is its path. Used by one thread at a time.

    ``limits`` are of each process that it forks; with ``weak`` those may run where the system cannot confine them.
    ``RewardError``: it does not start; the message ends with its own error.
    """

    def __init__(self, limits: Limits, wrapper: str | None, weak: bool) -> None:
        ours, its = socket.socketpair()
        # The base interpreter, by its real path: no environment, none of the packages installed into one.
        python = [os.path.realpath(sys.executable), "-P", "-s", "-S", "-B", "-c", BOOT]
        with its:
            self.process = subprocess.Popen(
                wrapped(wrapper, python) if wrapper else python,
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={"LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},  # none of the caller's
                cwd="/",
                start_new_session=True,
            )
        self.control, self.pending = ours, b""
        self.count = 0
        settings = {**asdict(limits), "weak": weak}
        try:
            self.control.sendall(json.dumps({"modules": sources(), "settings": settings}).encode() + b"\n")
            self.hear(time.monotonic() + START_SECONDS)
        except (OSError, EndedError, LateError) as error:
            self.close()
            said = (self.process.stderr.read() if self.process.stderr else b"").decode(errors="replace")
            raise RewardError(f"the sandbox's server did not start: {said.strip()[-600:] or repr(error)}") from error

    def hear(self, deadline: float) -> dict[str, Any]:
        """The server's next message."""
        text, self.pending = _line(self.control.fileno(), self.pending, deadline)
        return json.loads(text)

    def start(self, role: str, require: list[str]) -> "Child":
        """Fork a process for a role that runs only if it is confined as ``require`` says."""
        self.count += 1
        (its_input, writes), (reads, its_output) = os.pipe(), os.pipe()
        request = {"start": self.count, "role": role, "require": require}
        deadline = time.monotonic() + START_SECONDS
        try:
            socket.send_fds(self.control, [json.dumps(request).encode()], [its_input, its_output])
            self.hear(deadline)
        except BaseException:
            os.close(writes)
            os.close(reads)
            raise
        finally:
            os.close(its_input)
            os.close(its_output)
        return Child(self, self.count, writes, reads)

    def stop(self, number: int) -> dict[str, Any]:
        """Kill a process, and how it had ended; if it had not yet, by that kill."""
        self.control.sendall(json.dumps({"stop": number}).encode())
        return self.hear(time.monotonic() + START_SECONDS)

    def close(self) -> None:
        """End the server, and with it all that it forked."""
        with contextlib.suppress(OSError):
            self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=2.0)  # it kills what it forked, then ends itself
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Child:
    """A process that a server forked: lines to it, lines from it."""

    def __init__(self, server: ServerProcess, number: int, writes: int, reads: int) -> None:
        self.server, self.number, self.writes, self.reads, self.pending = server, number, writes, reads, b""
        self.report: dict[str, Any] | None = None
        for end in (writes, reads):
            os.set_blocking(end, False)

    def send(self, text: bytes, deadline: float) -> None:
        """Write bytes that end with a line."""
        while text:
            if not _ready(self.writes, select.POLLOUT, deadline):
                raise LateError
            try:
                text = text[os.write(self.writes, text) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise EndedError from error

    def receive(self, deadline: float, longest: int = LONGEST_LINE) -> bytes:
        """The next line, with its end, of no more than ``longest`` bytes."""
        text, self.pending = _line(self.reads, self.pending, deadline, longest)
        return text

    def close(self) -> dict[str, Any]:
        """Kill the process; how it had ended before, or by that."""
        if self.report is None:
            for end in (self.writes, self.reads):
                os.close(end)
            self.report = self.server.stop(self.number)
        return self.report


def _line(end: int, pending: bytes, deadline: float, longest: int = LONGEST_LINE) -> tuple[bytes, bytes]:
    """The next line from a pipe or a socket, with its end, and what came behind it; ``pending`` came before."""
    parts, size = [pending], len(pending)
    while b"\n" not in parts[-1]:
        if size > longest:
            raise FloodError
        if not _ready(end, select.POLLIN, deadline):
            raise LateError
        part = os.read(end, 65536)
        if not part:
            raise EndedError
        parts.append(part)
        size += len(part)
    first, newline, rest = b"".join(parts).partition(b"\n")
    return first + newline, rest


def _ready(end: int, event: int, deadline: float) -> bool:
    """Wait until a pipe can be read or written; false where the deadline passes before."""
    if end < 0:  # closed by another thread
        raise EndedError
    poll = select.poll()
    poll.register(end, event)
    return bool(poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))))
