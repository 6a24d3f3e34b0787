"""Checkers, good and faulty, that tests name as ``check:own_checkers:...``."""

import os
import time

import numpy as np

not_a_function = 5


def says(completion, row):
    """Right where the row's word is there; half where it is there in another case."""
    if row["word"] in completion:
        return True
    return 0.5 if row["word"] in completion.lower() else 0.0


def numpy_score(completion, row):
    return np.float32(1.0) if row["word"] in completion else np.bool_(False)


def raises(completion, row):
    raise KeyError("no such column")


def returns(value):
    return lambda completion, row: value


none, text, nan, two = map(returns, (None, "right", float("nan"), 2.0))


def hangs(completion, row):
    time.sleep(3600)


def ends(completion, row):
    os._exit(3)


def sometimes(completion, row):
    """Faulty for one completion only."""
    if completion == "odd":
        raise ValueError("odd")
    return completion == row["word"]
