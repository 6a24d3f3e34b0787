"""Functions a worker process can be made to run: loaded by path, so they import the standard library alone."""

import os
import time

KEPT = []


def respond(task):
    """Do what the task says."""
    action, value = task
    if action == "echo":
        return value
    if action == "sleep":
        time.sleep(value)
        return value
    if action == "raise":
        raise ValueError(value)
    if action == "exit":
        os._exit(3)
    if action == "killed":
        path, times = value
        with open(path, "a+") as file:
            file.write("x")
        if os.path.getsize(path) <= times:
            os.kill(os.getpid(), 9)  # as another process would
        return "at last"
    if action == "exit once":  # value: a path that does not exist before the first call
        if not os.path.exists(value):
            open(value, "w").close()
            os._exit(3)
        return "second time"
    if action == "memory":
        return len(bytearray(value * 2**20))
    if action == "eval":
        return eval(value)
    if action == "exec":
        exec(value)
    if action == "open":
        with open(value, "w") as file:
            file.write("written")
    if action == "system":
        return os.system(value)
    if action == "fill":  # value: MiB that stay allocated
        KEPT.append(bytearray(value * 2**20))
        return os.getpid()
    raise AssertionError(action)


def stubborn(task):
    """Never end: catches everything Python can raise, as code in C does that looks at nothing."""
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue
