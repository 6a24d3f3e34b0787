"""Worker processes: order, limits, deaths, threads, forks, and that none is left behind."""

import subprocess
import sys
from pathlib import Path

import hostile_functions
import pytest
from refusals import refused

from answer_judge.errors import ConfigError, RewardError
from answer_judge.grading import pool as pool_module
from answer_judge.grading.pool import TaskResult, WorkerPool


@pytest.fixture(scope="module")
def pool():
    pool = WorkerPool(hostile_functions.respond, workers=2, limit_seconds=20)
    yield pool
    pool.close()


def test_outcomes_come_in_the_order_of_the_tasks_and_an_exception_is_one(pool):
    naps = [0.2, 0, 0.1, 0, 0.05, *[0] * 100]
    assert [outcome.value for outcome in pool.map([("sleep", nap) for nap in naps])] == naps
    assert pool.map([]) == []
    before = sorted(pool.pids)
    found = pool.map([("raise", "no"), ("echo", "é\ud800")])
    assert found == [TaskResult("raised", "ValueError: no"), TaskResult("done", "é\ud800")]
    assert sorted(pool.pids) == before


def test_a_hanging_task_times_out_alone():
    """A sleep exceeds the limit, and an echo on a busy machine does not."""
    hasty = WorkerPool(hostile_functions.respond, workers=2, limit_seconds=1.5)
    tasks = [("echo", 1), ("sleep", 3600), ("echo", 2), ("sleep", 3600), ("echo", 3)]
    assert [outcome.status for outcome in hasty.map(tasks)] == ["done", "timeout", "done", "timeout", "done"]
    assert hasty.map([("echo", "next")]) == [TaskResult("done", "next")]
    hasty.close()


def test_a_task_that_catches_everything_is_killed(gone):
    pool = WorkerPool(hostile_functions.stubborn, workers=1, limit_seconds=0.3)
    pool.start()
    pids = pool.pids
    assert pool.map([None]) == [TaskResult("timeout")]
    assert not set(pids) & set(pool.pids)
    pool.close()
    assert gone(pids) == []


def test_a_task_whose_workers_die_is_tried_three_times(pool, tmp_path):
    some, every = [str(tmp_path / "some"), 2], [str(tmp_path / "all"), 1000]
    outcomes = pool.map([("echo", 1), ("exit", 3), ("killed", some), ("killed", every)])
    assert [outcome.status for outcome in outcomes] == ["done", "crashed", "done", "crashed"]
    assert [outcome.value for outcome in outcomes[::2]] == [1, "at last"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
def test_memory_is_limited_and_a_worker_near_its_limit_is_replaced_before_it_dies(pool):
    assert pool.map([("memory", 2048), ("memory", 16)]) == [TaskResult("crashed"), TaskResult("done", 16 * 2**20)]
    small = WorkerPool(hostile_functions.respond, workers=1, limit_seconds=20, memory_mb=512)
    first, second, third = (small.map([("fill", size)])[0] for size in (1, 300, 1))
    small.close()
    assert (first.status, second.status, third.status) == ("done",) * 3
    assert first.value == second.value != third.value


def test_an_interrupt_leaves_no_stale_answer(pool, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    pool.map([("echo", 0)])
    with monkeypatch.context() as patch:
        patch.setattr(pool, "_next_event", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.map([("sleep", 0.1), ("sleep", 0.1)])
    assert [outcome.value for outcome in pool.map([("echo", i) for i in range(4)])] == [0, 1, 2, 3]


def test_closing_and_collecting_end_the_workers(gone):
    pool = WorkerPool(hostile_functions.respond, workers=2)
    pool.map([("echo", 1)])
    closed = pool.pids
    pool.close()
    pool.map([("echo", 1)])
    collected = pool.pids
    del pool
    assert gone(closed + collected) == []


PARENT = """
import os, sys, threading
sys.path.insert(0, {tests!r})
import hostile_functions
from answer_judge.grading.pool import WorkerPool
pool = WorkerPool(hostile_functions.respond, workers=2, limit_seconds=1.0)
pool.map([("echo", 1)])
{busy}
print(*pool.pids, flush=True)
{end}
"""
HANGING = '[w.send(\'{"id": 0, "task": ["sleep", 3600]}\') for w in pool._alive]'
FORKED = """
child = os.fork()
if child == 0:
    fine = pool.map([("echo", 2)])[0].value == 2
    pool.close()
    os._exit(0 if fine else 1)
assert os.waitpid(child, 0)[1] == 0 and pool.map([("echo", 3)])[0].value == 3
"""


@pytest.mark.parametrize(
    ("busy", "end"),
    [(HANGING, "os.kill(os.getpid(), 9)"), (FORKED, "")],
    ids=["killed while workers hang", "end of a script that forked"],
)
def test_no_worker_survives_its_parent(busy, end, gone):
    code = PARENT.format(tests=str(Path(__file__).parent), busy=busy, end=end)
    child = subprocess.run([sys.executable, "-"], input=code, text=True, capture_output=True, timeout=120)
    pids = list(map(int, child.stdout.split()))
    assert len(pids) == 2 and gone(pids) == [], child.stderr


def test_a_pool_that_cannot_start_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("def ok(task):\n    return task\n")
    monkeypatch.syspath_prepend(tmp_path)
    import broken

    (tmp_path / "broken.py").write_text("import no_such_package_anywhere\n")
    with refused(RewardError, "could not be started", "no_such_package_anywhere"):
        WorkerPool(broken.ok, workers=1).map([1])

    monkeypatch.setattr(pool_module, "START_SECONDS", 0.0)
    with pytest.raises(RewardError, match="not ready after 0"):
        WorkerPool(hostile_functions.respond, workers=1).map([("echo", 1)])
    with refused(ConfigError, "workers=0", "limit_seconds=inf", "memory_mb=1"):
        WorkerPool(hostile_functions.respond, workers=0, limit_seconds=float("inf"), memory_mb=1)
