"""What is meant by a misspelt word."""

import pytest

from dppo.errors import did_you_mean
from dppo.methods import METHODS

FIELDS = ["dataset_name", "dataset_path", "learning_rate", "method"]


@pytest.mark.parametrize(
    ("word", "known", "near"),
    [
        ("grop", METHODS, "grpo"),
        ("dpo", ["gdpo", "grpo", "dppo", "dapo"], "gdpo or dppo or dapo"),
        ("ddpo", METHODS, "dapo or dppo or gdpo"),
        ("xyz", METHODS, ""),
        ("dataset", FIELDS, "dataset_name or dataset_path"),
        ("one", ["the_one_a", "the_one_b", "the_one_c", "the_one_d"], "the_one_a or the_one_b or the_one_c"),
    ],
)
def test_the_nearest_names_are_asked_about(word, known, near):
    assert did_you_mean(word, known) == (f"Did you mean {near}? " if near else "")
