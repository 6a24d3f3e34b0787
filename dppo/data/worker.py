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
from typing import Any, TextIO

SPARE_SECONDS = 5
"""A worker that outlives its limit by this much, because nobody is left to kill it, ends itself."""


def _load(file: str, name: str) -> Any:
    """The function ``name`` of the Python file ``file``."""
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
        for task, expected in setup["probes"]:
            if (found := function(task)) != expected:
                raise RuntimeError(f"self-test: {setup['function']}({task}) gave {found!r}, expected {expected!r}")
        _limit_memory(setup["memory_mb"])
    except BaseException:
        return reply(failed=traceback.format_exc(limit=-3))
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
        reply(id=message["id"], **answer)


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
