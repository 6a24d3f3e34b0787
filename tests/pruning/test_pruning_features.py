"""Features of prompts: lengths and columns, and what is said of those that are no numbers."""

import re

import numpy as np
import pytest
from datasets import Dataset
from refusals import refused

from dppo.errors import DataError
from dppo.pruning import column_features, length_features


def test_lengths_are_logarithms():
    np.testing.assert_allclose(length_features(["", "ab", [5, 6, 7]]), np.log([[1.0], [3.0], [4.0]]))
    with refused(DataError, "prompt 1 is 5"):
        length_features(["ab", 5])


def test_columns_are_numbers_as_they_stand():
    columns = {"level": [1, 2.5, np.int64(3)], "easy": [True, False, np.bool_(True)]}
    assert column_features(columns).tolist() == [[1.0, 1.0], [2.5, 0.0], [3.0, 1.0]]
    table = Dataset.from_dict({"level": [4, 5]})
    assert column_features({"level": table["level"]}).tolist() == [[4.0], [5.0]]


@pytest.mark.parametrize(
    ("values", "row", "shown"),
    [
        ([1.0, None, 2.0, None], 1, "None"),
        ([1.0, 2.0, float("nan"), 3.0], 2, "nan"),
        ([1.0, float("inf"), 3.0], 1, "inf"),
        ([[1.0], [2.0]], 0, "[1.0]"),
    ],
)
def test_the_first_gap_is_named_and_the_line_that_is_advised_works(values, row, shown):
    dataset = Dataset.from_dict({"level": values})
    with refused(DataError, "'level'", f"row {row}: {shown}") as caught:
        column_features({"level": dataset["level"]})
    repaired = advised(caught, dataset)
    left = [value for value in values if isinstance(value, float) and np.isfinite(value)]
    assert repaired["level"] == left and column_features({"level": left}).size == len(left) if left else not repaired


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        (["Level 5", "Level 3", "Level ?"], [5, 3, 0]),
        (["hard", "easy", "hard"], [1, 0, 1]),
        (['it\'s "hard"', "easy"], [1, 0]),
    ],
)
def test_the_first_text_is_named_and_the_line_that_is_advised_works(values, numbers):
    dataset = Dataset.from_dict({"level": values})
    with refused(DataError, "'level'", "row 0", values[0][-4:]) as caught:
        column_features({"level": dataset["level"]})
    assert advised(caught, dataset)["level_number"] == numbers


def advised(caught, dataset):
    """The dataset after the line of an error has run."""
    (line,) = re.findall(r"dataset = (dataset\..*\))(?:, and name|\.$)", str(caught.value))
    return eval(line, {"dataset": dataset})
