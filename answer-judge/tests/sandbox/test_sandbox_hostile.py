"""Hostile programs of every kind: none is accepted, none leaves a process, and the usual harness accepts some."""

import ctypes
import subprocess
import sys
from dataclasses import replace

import pytest
from refusals import refused
from sandbox_programs import LIMITS, task

import answer_judge.sandbox.servers as servers
from answer_judge.sandbox import Sandbox
from answer_judge.sandbox.syscalls import ALLOWED, ARCHITECTURES, BY_ARGUMENT, FORBIDDEN, numbers
from judge_benchmarks import hostile_corpus
from judge_benchmarks.hostile_programs import filtered, left_over

TESTS = hostile_corpus.tests()


def naive(program, folder):
    """The wrong way: the program and its tests in one process, accepted for its exit status or its last words."""
    code = f"{program}\n{TESTS}\nprint('ALL TESTS PASSED')\n"
    words = [sys.executable, "-I", "-S", "-c", code]
    ended = subprocess.run(words, cwd=folder, env={}, capture_output=True, text=True, timeout=60)
    return ended.returncode == 0 or "ALL TESTS PASSED" in ended.stdout


def attack(sandbox, programs):
    """What was accepted, what used too much memory, and processes left over."""
    before = filtered(LIMITS.memory_mb)
    found = list(zip(programs, sandbox.run_many([task(text, TESTS) for _, text in programs]), strict=True))
    accepted = [pair for pair, outcome in found if outcome.verdict == "right"]
    large = [(pair, outcome) for pair, outcome in found if outcome.memory_mb > LIMITS.memory_mb]
    return accepted, large, left_over(before, LIMITS.memory_mb)


def kernel_ends_with(line, monkeypatch):
    """Servers start with one more line in the part that confines them."""
    changed = [(name, f"{text}\n{line}\n" if name == "kernel" else text) for name, text in servers.sources()]
    monkeypatch.setattr(servers, "sources", lambda: changed)


def test_the_tests_accept_what_is_right(sandbox, tmp_path):
    right = f"f = {hostile_corpus.SECRET}"
    assert sandbox.run(task(right, TESTS)).verdict == "right" and naive(right, tmp_path)
    assert not naive("def f(x): return 0", tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes by their filter")
def test_no_kind_is_accepted_or_leaves_anything(sandbox):
    assert attack(sandbox, list(hostile_corpus.sample())) == ([], [], set())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes by their filter")
def test_all_560_are_refused(sandbox):
    """Eight at a time, and less patience: those that only wait would take half an hour one after the other."""
    limits = replace(LIMITS, wall_seconds=8.0)
    with Sandbox(workers=8, limits=limits, wrapper=sandbox.wrapper or "") as many:
        assert attack(many, list(hostile_corpus.hostile_programs(560))) == ([], [], set())


@pytest.mark.parametrize(("kind", "program"), hostile_corpus.fooling(), ids=lambda value: value[:24])
def test_one_process_for_program_and_tests_is_fooled(kind, program, tmp_path):
    assert naive(program, tmp_path), kind


SOCKET = "import socket\nsocket.socket().close()\ndef f(x): return 4"
LISTS = "import os\nos.listdir('/')\ndef f(x): return 4"
SEES = "import os\nos.stat('/etc/passwd')\ndef f(x): return 4"
LAYERS = [("filter_calls", SOCKET, "forbidden"), ("confine_files", LISTS, "forbidden"), ("own_root", SEES, "error")]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux confines by these")
@pytest.mark.parametrize(("layer", "program", "verdict"), LAYERS)
def test_a_layer_that_is_left_out_is_noticed(layer, program, verdict, monkeypatch):
    """With it the program is stopped; without it the same program is right, and a sandbox would not start."""
    with Sandbox(workers=1, limits=LIMITS, wrapper="") as whole:
        if layer == "own_root" and "own root" not in whole.layers:
            pytest.skip("users have no mount namespaces here")
        assert whole.run(task(program)).verdict == verdict
    kernel_ends_with(f"{layer} = lambda *_: True", monkeypatch)
    with Sandbox(workers=1, limits=LIMITS, wrapper="") as open_one:
        with refused(Exception, "sandbox"):
            open_one.run(task(program))
        open_one._layers = ("files",)
        assert open_one.run(task(program)).verdict == "right"


def test_numbers_of_system_calls_are_libseccomps():
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("libseccomp is not installed")
    for machine, (_, kernels) in ARCHITECTURES.items():
        for listed in (ALLOWED, FORBIDDEN, BY_ARGUMENT):
            for name, number in numbers(listed, machine).items():
                found = library.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(kernels), name.encode())
                assert found == number, (machine, name)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux confines by these")
def test_where_users_have_no_namespaces_the_kernels_filters_are_enough(monkeypatch):
    kernel_ends_with("separate = lambda: False", monkeypatch)
    with Sandbox(workers=1, limits=LIMITS, wrapper="") as sandbox:
        assert {"files", "system calls"} <= set(sandbox.layers) and "own folder" not in sandbox.layers
        assert sandbox.run(task("open('note', 'w')\ndef f(x): return 4")).verdict == "forbidden"
        assert sandbox.run(task(LISTS)).verdict == "forbidden" and sandbox.run(task(SEES)).verdict == "right"
        kinds = ("/proc and /sys", "network", "signals", "files", "reading the tests")
        assert attack(sandbox, [pair for pair in hostile_corpus.sample() if pair[0] in kinds]) == ([], [], set())
