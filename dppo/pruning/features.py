"""What is known of prompts before any rollout, as numbers: their lengths, and columns of their dataset."""

import math
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from dppo.errors import ConfigError, DataError, ShapeError


def length_features(prompts: Iterable[Sized]) -> np.ndarray:
    """(P, 1) float64 logarithm of one more than each prompt's length.

    Args:
        prompts: token ids, texts, or anything else with a length.

    Raises:
        DataError: a prompt has none.
    """
    lengths = []
    for row, prompt in enumerate(prompts):
        if not isinstance(prompt, Sized):
            raise DataError(f"prompt {row} is {prompt!r:.40}, which has no length. Pass token ids or texts.")
        lengths.append(len(prompt))
    return np.log1p(np.array(lengths, np.float64))[:, None]


def column_features(columns: Mapping[str, Sequence[Any]]) -> np.ndarray:
    """(P, D) float64 columns of a dataset that say how difficult its prompts are, in any unit and direction.

    Args:
        columns: the values of each by its name, finite numbers; true and false count as 1 and 0.

    Raises:
        ConfigError: there is no column.
        ShapeError: columns of different lengths.
        DataError: a value is no finite number: text, or a gap.
    """
    if not columns:
        raise ConfigError("there is no column to read. Try column_features({'level': dataset['level']}).")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ShapeError(f"columns have different lengths: {lengths}. Take all of them from one dataset.")
    return np.array([_numbers(name, values) for name, values in columns.items()], np.float64).T


def _numbers(name: str, values: Sequence[Any]) -> list[float]:
    found = []
    for row, value in enumerate(values):
        if isinstance(value, str):
            raise DataError(
                f"column {name!r}, row {row}: {value!r:.60} is text, and difficulty is a number. Make it one: "
                f"dataset = dataset.map(lambda row: {{{name + '_number'!r}: {_as_number(name, value)}}}), and name "
                f"{name + '_number'!r}."
            )
        if not isinstance(value, numbers.Real | np.bool_) or not math.isfinite(value):
            raise DataError(
                f"column {name!r}, row {row}: {value!r:.60} is no finite number. Leave such rows out: dataset = "
                f"dataset.filter(lambda row: isinstance(row[{name!r}], (int, float)) and abs(row[{name!r}]) < "
                "float('inf'))."
            )
        found.append(float(value))
    return found


def _as_number(name: str, value: str) -> str:
    """An expression that makes a number of a text like this one, and of every other text too."""
    if re.search(r"\d", value):  # such as "Level 5"
        return f"int('0' + ''.join(filter(str.isdigit, str(row[{name!r}]))))"
    return f"int(row[{name!r}] == {value!r})"
