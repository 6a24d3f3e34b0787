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


def test_a_single_nearest_name_would_leave_out_what_is_as_near():
    """The wrong twin: difflib names the last in the alphabet, and ``dpo`` is no nearer to ``gdpo`` than to ``dppo``."""
    from difflib import get_close_matches

    assert get_close_matches("dpo", ["gdpo", "grpo", "dppo", "dapo"], n=1) == ["gdpo"]
