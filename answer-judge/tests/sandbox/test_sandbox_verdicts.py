"""Verdicts on programs, what crosses between a program and its tests, and what is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from sandbox_programs import LIMITS, task

import answer_judge.sandbox.judging as judging
import answer_judge.sandbox.sandbox as module
from answer_judge.errors import ConfigError, RewardError
from answer_judge.sandbox import LAYERS, VERDICTS, Limits, Sandbox, is_strong
from answer_judge.sandbox.servers import EndedError
from answer_judge.sandbox.values import decode, encode

PROGRAMS = [json.loads(line) for line in Path(__file__).with_name("programs.jsonl").open(encoding="utf-8")]
"""Programs, tests and verdicts: ``StopIteration``, which ``map`` and ``zip`` would take for their end; large answers;
and a helper of the tests that the program defines anew (HumanEval/32 checks a root with a polynomial)."""


def test_every_verdict(sandbox):
    tasks = [task(row["program"], row["tests"], tuple(row["names"]), row.get("before", "")) for row in PROGRAMS]
    found = sandbox.run_many(tasks)
    assert {row["verdict"] for row in PROGRAMS} == set(VERDICTS)
    wrong = [(row, o) for row, o in zip(PROGRAMS, found, strict=True) if o.verdict != row["verdict"]]
    assert wrong == [] and all(outcome.memory_mb <= LIMITS.memory_mb for outcome in found)
    assert sandbox.run(task("def f(x): return 1 / 0")).detail == "ZeroDivisionError: division by zero"


def test_a_folder_is_empty_again_for_the_next_program(sandbox):
    leaves = task("open('note', 'w').write('x')\nimport os\ndef f(x): return len(os.listdir('.')) * 4")
    assert [outcome.verdict for outcome in sandbox.run_many([leaves] * 3)] == ["right"] * 3


def test_too_many_seconds_by_the_clock():
    with Sandbox(workers=1, limits=Limits(wall_seconds=0.5)) as sandbox:
        sandbox.layers  # noqa: B018 (proved under the same limits)
        found = sandbox.run(task("import time\ntime.sleep(1000)"))
    assert (found.verdict, found.detail) == ("timeout", "no verdict in the 0.5 seconds it had")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.decimals(allow_nan=False) | st.fractions() | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=6,
)  # fmt: skip


never = dict.__getitem__  # it fails with one argument: these values are encoded without a call


@given(PLAIN | st.sets(st.integers()) | st.frozensets(st.text()))
def test_values_come_back_as_they_were(value):
    back = decode(encode(value, never), never)
    assert back == value and type(back) is type(value)


def test_no_method_of_a_subclass_crosses():
    class Anything:
        __eq__ = __lt__ = lambda self, other: True
        __hash__ = None

    for base, value in {int: 5, float: 1.5, str: "a", list: [1], tuple: (1,), dict: {1: 2}}.items():
        given = type(base.__name__, (Anything, base), {})(value)
        assert given == "anything"  # the wrong twin: compared where the program is
        back = decode(encode(given, never), never)
        assert type(back) is base and back == value and back != "anything"
    assert decode(encode(Decimal("1.50"), never), never) == Decimal("1.50")
    assert decode(encode(Fraction(1, 3), never), never) == Fraction(1, 3)


def test_a_server_that_is_gone_is_replaced(sandbox, monkeypatch):
    sandbox.run(task("def f(x): return 4"))
    os.kill(sandbox.pids[0], signal.SIGKILL)
    assert sandbox.run(task("def f(x): return 4")).verdict == "right"
    real, killed = judging.judged, []

    def dying(server, *given):
        if len(killed) < 1:
            killed.append(server.process.pid)
            os.kill(server.process.pid, signal.SIGKILL)
        return real(server, *given)

    monkeypatch.setattr(module, "judged", dying)
    assert sandbox.run(task("def f(x): return 4")).verdict == "right" and killed
    monkeypatch.setattr(module, "judged", lambda server, *given: (_ for _ in ()).throw(EndedError()))
    with refused(RewardError, "two servers"):
        sandbox.run(task("def f(x): return 4"))


def test_nothing_of_the_callers_environment(sandbox, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    sandbox.close()  # so that its servers start with the variable there
    spying = "import os, sys\ndef f(x): return [str(dict(os.environ)), str(sys.path), os.getcwd(), str(sys.argv)]"
    secret = ["hf_secret", "HF_TOKEN", "site-packages", str(Path.cwd()), os.path.expanduser("~/.cache")]
    for words, verdict in ((secret, "right"), (["LANG"], "wrong")):
        tests = f"found = ' '.join(f(0))\nfor word in {words}: assert word not in found, word"
        assert sandbox.run(task(spying, tests)).verdict == verdict


def test_too_little_confinement_is_refused_unless_accepted(monkeypatch):
    assert is_strong(["bubblewrap", "system calls"]) and is_strong(["files", "system calls"])
    assert not is_strong(["system calls", "namespaces"]) and not is_strong(["files", "bubblewrap"])
    monkeypatch.setattr(Sandbox, "_tried", lambda self: ("own folder",))
    with refused(ConfigError, "seccomp", "bubblewrap", "Use Linux"):
        Sandbox().run(task("def f(x): return 4"))
    with Sandbox(workers=1, limits=LIMITS, accept_weak=True) as weak:
        assert "WEAK" in weak.describe() and weak.run(task("def f(x): return 4")).verdict == "right"


def test_what_is_not_confined_as_at_the_start_does_not_run(sandbox):
    sandbox.layers  # noqa: B018
    sandbox._layers = (*sandbox._layers, "a layer that is not there")
    try:
        with refused(RewardError, "confined", "a layer that is not there"):
            sandbox.run(task("def f(x): return 4"))
    finally:
        sandbox._layers = tuple(name for name in sandbox._layers if name in LAYERS)
    assert sandbox.run(task("def f(x): return 4")).verdict == "right"


ENDS = [f"os._exit({code})" for code in range(256)]
ENDS += [f"os.kill(os.getpid(), {number})" for number in signal.valid_signals() - {signal.SIGSTOP}]


@pytest.mark.parametrize("ends", [ENDS[95:99], pytest.param(ENDS, marks=pytest.mark.slow)], ids=["97", "all"])
def test_no_end_of_a_program_looks_like_a_fault_of_the_sandbox(sandbox, ends):
    """97 once said that a process could not be confined, and a program that ended with it ended the batch."""
    found = sandbox.run_many([task(f"import os\n{end}\ndef f(x): return 4") for end in [*ends, "os.getpid()"]])
    assert found[-1].verdict == "right"
    assert {outcome.verdict for end, outcome in zip(ends, found, strict=False) if "_exit" in end} == {"error"}


def test_settings_out_of_range():
    with refused(ConfigError, "workers=0"):
        Sandbox(workers=0)
    for field, value in (("memory_mb", 5), ("wall_seconds", 0.0), ("cpu_seconds", 0)):
        with refused(ConfigError, f"{field}={value}"):
            Sandbox(limits=Limits(**{field: value}))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_outlives_a_caller_that_is_killed(gone):
    code = (
        "from answer_judge.sandbox import *\ns = Sandbox(workers=1, limits=Limits(cpu_seconds=99, wall_seconds=999))\n"
        "s.layers\nprint(*s.pids, flush=True)\ns.run(Task('while True: pass', '', ()))"
    )
    words, root = [sys.executable, "-c", code], Path(__file__).parents[2]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=root) as caller:
        below = {int(caller.stdout.readline())}
        while len(below) < 3:  # the server, the program, its tests
            places = [Path(f"/proc/{pid}/task/{pid}/children") for pid in below]
            below |= {int(child) for place in places if place.exists() for child in place.read_text().split()}
            time.sleep(0.05)
        caller.send_signal(signal.SIGKILL)
    assert gone(below) == []
