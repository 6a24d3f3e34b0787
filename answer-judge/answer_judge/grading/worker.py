"""The program a worker process runs: one line of JSON in, one out, until its input ends.

Run by path, not imported: it needs the standard library alone, and loads the one function it serves from that
function's file, so a worker never pays for importing torch or this package.
"""

import importlib.util
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from typing import Any, TextIO

SPARE_SECONDS = 5
"""A worker that exceeds its limit by this much, because no parent is left to kill it, ends itself."""


def _load(file: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location("dppo_worker_function", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def _limit_memory(megabytes: int) -> None:
    """Bound this process's address space and write no core files, where the system can."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * 2**20, megabytes * 2**20))
    except (ImportError, AttributeError, ValueError, OSError):
        return  # Windows has no such limit, macOS refuses it: the time limit still holds


FULL = 0.5
"""Share of its memory limit from which on a worker asks to be replaced: caches grow with what it has seen."""


def _is_full(megabytes: int) -> bool:
    """True if this process has so much in memory that the next task might run out of it."""
    try:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError, ValueError):
        return False  # only Linux says so; the peak that others report may be the parent's before the start
    return used > FULL * megabytes * 2**20


def _refuse(events: Collection[str]) -> None:
    """Refuse audit events of these names: ``open`` for writing, ``compile`` and ``exec`` of text that is no import."""

    def guard(event: str, args: tuple[Any, ...]) -> None:
        if event in refused and (event not in NARROWER or NARROWER[event](args)):
            raise PermissionError(f"a worker may not {event}")

    refused = frozenset(events)
    if refused:
        sys.addaudithook(guard)


def _writes(args: tuple[Any, ...]) -> bool:
    _, mode, flags = args
    if isinstance(mode, str):
        return bool(set(mode) & set("wax+"))
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _from_text(args: tuple[Any, ...]) -> bool:
    """True if code has no file, and no import is under way."""
    code, *names = args
    name = names[0] if names else code.co_filename
    if str(name).endswith(".py") or str(name).startswith("<frozen "):
        return False
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return False
        frame = frame.f_back
    return True


NARROWER: dict[str, Callable[[tuple[Any, ...]], bool]] = {"open": _writes, "compile": _from_text, "exec": _from_text}
"""Which occurrences of an event count, where not all do."""


def _alarm(seconds: float) -> None:
    """End this process, even inside C code, unless called again within ``seconds``; 0 calls it off."""
    if hasattr(signal, "alarm"):
        signal.alarm(math.ceil(seconds))


def _serve(setup: dict[str, Any], tasks: TextIO, replies: TextIO) -> None:
    """Answer tasks one by one; an exception is an answer, running out of memory ends the process."""

    def reply(**message: Any) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        sys.path[:] = setup["path"]
        function = _load(setup["file"], setup["function"])
        _limit_memory(setup["memory_mb"])
        _refuse(setup["refused"])
    except BaseException:
        return reply(failed=traceback.format_exc(limit=-3))
    try:
        for task, expected in setup["probes"]:  # under the limits: a worker that passes can judge under them
            if (found := function(task)) != expected:
                raise RuntimeError(f"self-test: {setup['function']}({task}) gave {found!r}, expected {expected!r}")
    except BaseException as error:  # without its frames: from Python 3.13 on their lines are compiled, which is refused
        return reply(failed="".join(traceback.format_exception_only(error)))
    reply(ready=True)
    for line in tasks:
        message = json.loads(line)
        _alarm(setup["limit_seconds"] + SPARE_SECONDS)
        try:
            answer = {"value": function(message["task"])}
        except MemoryError:
            os._exit(1)
        except Exception as error:
            answer = {"raised": f"{type(error).__name__}: {str(error)[:200]}"}
        _alarm(0)
        reply(id=message["id"], full=_is_full(setup["memory_mb"]), **answer)


def main() -> None:
    """Serve on what were standard input and output, which the served function then no longer has."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    tasks = os.fdopen(os.dup(0), encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    _serve(json.loads(tasks.readline()), tasks, replies)


if __name__ == "__main__":
    main()
