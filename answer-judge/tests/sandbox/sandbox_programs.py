"""Hostile programs, and what runs them the usual way: everything in one process."""

import os
import subprocess
import sys

from answer_judge.sandbox import Limits, Task
from judge_benchmarks import hostile_corpus
from judge_benchmarks.hostile_programs import filtered, left_over

__all__ = ["LIMITS", "filtered", "hostile_corpus", "left_over", "naive", "task"]
LIMITS = Limits(wall_seconds=30.0, cpu_seconds=1, memory_mb=200 + os.getpid() % 56)
"""Memory that tells processes of this test process from those of another."""


def task(program, tests="assert f(2) == 4", names=("f",), before=""):
    return Task(program, tests, names, before)


def naive(program, tests, folder):
    """The wrong way: the program and its tests in one process, accepted for its exit status or its last words."""
    code = f"{program}\n{tests}\nprint('ALL TESTS PASSED')\n"
    words = [sys.executable, "-I", "-S", "-c", code]
    ended = subprocess.run(words, cwd=folder, env={}, capture_output=True, text=True, timeout=60)
    return ended.returncode == 0 or "ALL TESTS PASSED" in ended.stdout
