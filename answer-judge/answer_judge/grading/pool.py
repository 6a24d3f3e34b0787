"""Worker processes that answer one task at a time under a time limit, and are killed and replaced when they do not.

Workers are started with ``subprocess``, not ``multiprocessing``: nothing is forked and ``__main__`` is not imported
again. The limit is enforced by a kill, which ends C code and code that catches every exception too.
"""

import inspect
import json
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from answer_judge.errors import RewardError, raise_problems

START_SECONDS = 120.0
"""A worker that is not ready after this long counts as one that failed to start."""
STARTS = 3
"""Failed starts in a row after which the pool gives up."""
ATTEMPTS = 3
"""How often a task is tried whose worker dies: also the system kills, where memory runs out."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What became of one task: ``status`` is ``done``, ``raised``, ``timeout`` or ``crashed``."""

    status: str
    value: Any = None
    """What the function returned (``done``), or the exception as text (``raised``)."""


class _Worker:
    """One process, the thread that reads its replies, and what it is busy with."""

    def __init__(self, setup: str, events: "queue.SimpleQueue[tuple[_Worker, str]]") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONHASHSEED": "0"},  # sympy's results may depend on the order of sets
            start_new_session=True,  # an interrupt at the terminal is for the caller, who then shuts the workers down
            text=True,
            encoding="utf-8",
        )
        self.ready = False
        self.task: int | None = None
        self.deadline = time.monotonic() + START_SECONDS
        self.send(setup)
        threading.Thread(target=self._read, args=(events,), daemon=True).start()

    def _read(self, events: "queue.SimpleQueue[tuple[_Worker, str]]") -> None:
        """Pass every reply on, and at the end of the process an empty line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            events.put((self, line))
        events.put((self, ""))

    def send(self, line: str) -> None:
        """Write one line; a worker that is gone is noticed by the end of its output."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError:
            self.process.kill()

    def kill(self) -> None:
        """End the process now and wait for the system to have taken it away."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(OSError):  # unsent bytes to a process that is gone
            self.process.stdin.close()
        self.process.stdout.close()


class WorkerPool:
    """Runs a function of one JSON value in worker processes (>= 1), each call under a time limit in seconds (> 0).

    The function's file is loaded by itself in every worker, with ``memory_mb`` of address space (MiB, >= 256) where the
    system can limit it. Each must get the ``probes``, pairs of a task and its value, right before it is used, and then
    refuses the audit events ``refused`` (see ``worker``). A setting out of range is a ``ConfigError``.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        workers: int = 2,
        limit_seconds: float = 5.0,
        memory_mb: int = 1024,
        probes: Iterable[tuple[Any, Any]] = (),
        refused: Iterable[str] = (),
    ) -> None:
        problems = []
        if workers < 1:
            problems.append(f"workers={workers} must be at least 1. Try workers=2.")
        if not 0 < limit_seconds < float("inf"):
            problems.append(f"limit_seconds={limit_seconds} must be above 0 and finite. Try limit_seconds=5.0.")
        if memory_mb < 256:
            problems.append(f"memory_mb={memory_mb} must be at least 256. Try memory_mb=1024.")
        raise_problems("worker pool", problems)
        self.workers, self.limit_seconds = workers, float(limit_seconds)
        served = {"path": sys.path, "file": inspect.getfile(function), "function": function.__name__}
        limits = {"limit_seconds": self.limit_seconds, "memory_mb": memory_mb, "refused": list(refused)}
        self._setup = json.dumps({**served, **limits, "probes": list(probes)})
        self._forget()

    def _forget(self) -> None:
        """Begin with no workers."""
        self._lock = threading.Lock()
        self._events: queue.SimpleQueue[tuple[_Worker, str]] = queue.SimpleQueue()
        self._alive: list[_Worker] = []
        self._failures = 0
        self._next_id = 0
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self._alive, self._owner)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers there are now."""
        return [worker.process.pid for worker in self._alive]

    def start(self) -> None:
        """Start the workers that are missing, without waiting for them; ``map`` does so by itself."""
        if self._owner != os.getpid():
            self._forget()  # a fork inherits the parent's pipes, and must not touch them
        while len(self._alive) < self.workers:
            try:
                self._alive.append(_Worker(self._setup, self._events))
            except OSError as error:
                raise RewardError(f"the system refuses another verifier process ({error}). Try workers=1.") from error

    def close(self) -> None:
        """End all workers. A later ``map`` starts new ones. Also done when the pool is collected and at exit."""
        if self._owner == os.getpid():
            with self._lock:
                _end(self._alive, self._owner)

    def map(self, tasks: Sequence[Any]) -> list[TaskResult]:
        """The outcome of each task in the order given; threads wait in turn. ``RewardError``: no worker starts."""
        if self._owner != os.getpid():
            self._forget()
        with self._lock:
            self.start()
            try:
                return self._run(tasks)
            finally:
                for worker in [w for w in self._alive if w.task is not None]:
                    self._drop(worker)  # only after an exception: no one waits for its answer

    def _run(self, tasks: Sequence[Any]) -> list[TaskResult]:
        """Hand out tasks and collect outcomes until every task has one."""
        first, outcomes = self._next_id, dict[int, TaskResult]()
        self._next_id += len(tasks)
        waiting = deque(range(first, self._next_id))
        deaths = dict.fromkeys(waiting, 0)
        while len(outcomes) < len(tasks):
            for worker in self._alive:
                if worker.ready and worker.task is None and waiting:
                    worker.task = waiting.popleft()
                    worker.deadline = time.monotonic() + self.limit_seconds
                    worker.send(json.dumps({"id": worker.task, "task": tasks[worker.task - first]}))
            worker, line = self._next_event()
            if line:
                self._receive(worker, json.loads(line), outcomes)
                continue
            task, late = worker.task, time.monotonic() >= worker.deadline
            self._replace(worker, f"not ready after {START_SECONDS:g} seconds" if late and not worker.ready else "")
            if task is not None:
                deaths[task] += 1
                if late or deaths[task] >= ATTEMPTS:
                    outcomes[task] = TaskResult("timeout" if late else "crashed")
                else:
                    waiting.append(task)
        return [outcomes[number] for number in range(first, first + len(tasks))]

    def _next_event(self) -> tuple[_Worker, str]:
        """The next line of a living worker, or an empty one for a worker that died or is past its deadline."""
        while True:
            timed = [w for w in self._alive if w.task is not None or not w.ready]
            soonest = min(timed, key=lambda w: w.deadline)
            try:
                worker, line = self._events.get(timeout=max(soonest.deadline - time.monotonic(), 0))
            except queue.Empty:
                return soonest, ""
            if worker in self._alive:
                return worker, line

    def _receive(self, worker: _Worker, message: dict[str, Any], outcomes: dict[int, TaskResult]) -> None:
        if "ready" in message:
            worker.ready, self._failures = True, 0
        elif "failed" in message:
            self._replace(worker, message["failed"])
        else:
            status = "done" if "value" in message else "raised"
            outcomes[message["id"]] = TaskResult(status, message["value" if status == "done" else "raised"])
            worker.task = None
            if message["full"]:
                self._replace(worker)

    def _drop(self, worker: _Worker) -> None:
        self._alive.remove(worker)
        worker.kill()

    def _replace(self, worker: _Worker, reason: str = "") -> None:
        """Kill a worker and start another, unless workers keep failing to start."""
        self._drop(worker)
        if not worker.ready:
            self._failures += 1
            if self._failures >= STARTS:
                reason = reason or f"the process ended with exit status {worker.process.returncode} and said nothing"
                raise RewardError(
                    f"worker processes could not be started ({STARTS} attempts with {sys.executable}). Install what is "
                    f"missing there; if the system killed them, try workers=1. The worker's own error:\n{reason}"
                )
        self.start()


def _end(alive: list[_Worker], owner: int) -> None:
    """Kill the workers of a pool, in the process that started them."""
    if owner == os.getpid():
        while alive:
            alive.pop().kill()
