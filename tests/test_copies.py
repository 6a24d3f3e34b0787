"""Small pieces that two packages have, since neither may import the other: the copies stay equal, word for word.

Tests of one are then tests of the other.
"""

import inspect

import pytest

import answer_judge.environment
import answer_judge.errors
import answer_judge.files
import dppo.environment
import dppo.errors
import dppo.files

COPIES = {
    "files": (
        "replacing",
        "flush_folder",
        "write_text",
        "write_json",
        "encoded",
        "_finite",
        "read_json",
        "current_folder_first",
    ),
    "errors": ("first_line", "in_one_line", "raise_problems"),
    "environment": ("_version", "_processor"),
}


def text(function):
    """The source of a function without its docstring's example."""
    return inspect.getsource(inspect.unwrap(function)).replace('"DPPOConfig"', '"Verifier"')


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in COPIES.items() for name in names])
def test_copies_are_equal(module, name):
    ours, theirs = getattr(dppo, module), getattr(answer_judge, module)
    assert text(getattr(ours, name)) == text(getattr(theirs, name))


def test_a_copy_that_differs_is_seen():
    assert text(dppo.files.replacing) != text(dppo.files.write_text)
