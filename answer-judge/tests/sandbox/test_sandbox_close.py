"""A sandbox that another thread closes, or that is forked while a thread finds out what it can confine."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest
from sandbox_programs import task

import answer_judge.sandbox.sandbox as module
from answer_judge.sandbox import Sandbox
from answer_judge.sandbox.servers import EndedError


class Server:
    """A server without a process."""

    def __init__(self, *given, **named):
        self.ended = False
        self.process = SimpleNamespace(pid=1, poll=lambda: 0 if self.ended else None)

    def close(self):
        self.ended = True


@pytest.fixture
def sandbox(monkeypatch):
    monkeypatch.setattr(module, "ServerProcess", Server)
    monkeypatch.setattr(Sandbox, "_probed", lambda self: ("system calls", "files"))
    with Sandbox(workers=2) as made:
        yield made


def test_a_close_beside_running_programs_loses_no_worker(sandbox, monkeypatch):
    running, closed, seen = threading.Barrier(3), threading.Event(), []

    def judged(server, *given):
        seen.append(server)
        if not closed.is_set():
            running.wait()
            closed.wait()
        if server.ended:
            raise EndedError
        return "judged"

    monkeypatch.setattr(module, "judged", judged)
    found = []
    batch = threading.Thread(target=lambda: found.extend(sandbox.run_many([task("")] * 2)))
    batch.start()
    running.wait()
    sandbox.close()
    closed.set()
    batch.join()
    assert found == ["judged"] * 2
    assert sandbox.run_many([task("")] * 5) == ["judged"] * 5
    assert sandbox._slots.free.qsize() == 2 and len(sandbox.pids) <= 2
    sandbox.close()
    assert all(server.ended for server in seen)


def test_a_fork_while_another_thread_holds_the_lock_finds_out_for_itself(sandbox):
    with sandbox._probing:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends a child that waits for the lock
            os._exit(0 if sandbox.layers == ("system calls", "files") else 1)
    assert os.waitpid(child, 0)[1] == 0
