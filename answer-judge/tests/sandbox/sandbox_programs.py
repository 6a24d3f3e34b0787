"""A program with its tests, and limits for it."""

import os

from answer_judge.sandbox import Limits, Task

LIMITS = Limits(wall_seconds=30.0, cpu_seconds=1, memory_mb=200 + os.getpid() % 56)
"""Memory that tells processes of this test process from those of another."""


def task(program, tests="assert f(2) == 4", names=("f",), before=""):
    return Task(program, tests, names, before)
