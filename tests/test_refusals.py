"""The snapshot of sentences sees a changed word, and neither a number nor a folder."""

import os
import warnings

import pytest
import refusals
from refusals import normalised, refused, warned

SENTENCE = "/tmp/pytest-of-me/pytest-7/popen-gw1/test_x0/a.json of torch 2.8.0+cpu: rate=1.5 must be < 1 (at 0x7f3a)"


def refuse(sentence):
    with refused(ValueError, "rate"):
        raise ValueError(sentence)


@pytest.fixture
def entries(monkeypatch):
    """The running test's own entry, as if it had been recorded before."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    monkeypatch.setattr(refusals, "WRITING", False)
    monkeypatch.setattr(refusals, "seen", {})
    monkeypatch.setattr(refusals, "stored", lambda: {test: [normalised(SENTENCE)]})


def test_what_differs_from_run_to_run_is_left_out():
    assert normalised(SENTENCE) == "PATH/a.json of torch #: rate=# must be < # (at #)"
    assert normalised("https://host/a/b or and/or, tmpdir 1e-05 4.0.dev0") == "https://host/a/b or and/or, tmpdir # #"
    assert normalised("no /tmp/tmpab3_9xyz/x.py") == "no PATH/x.py" and normalised("in /tmp/tmpab3_9xyz") == "in PATH/"


def test_a_changed_sentence_fails_with_both_and_the_command_that_accepts_it(entries):
    with pytest.raises(AssertionError) as info:
        refuse(SENTENCE.replace("must be", "is not"))
    told = str(info.value)
    assert "old: PATH/a.json of torch #: rate=# must be" in told and "rate=# is not" in told
    assert "WRITE_MESSAGES=1 .venv/bin/pytest 'tests/test_refusals.py::test_a_changed_sentence" in told


@pytest.mark.parametrize(
    ("old", "new"), [("1.5", "0.25"), ("pytest-7/popen-gw1/", "pytest-12/"), ("2.8.0+cpu", "2.12.1+cu128")]
)
def test_numbers_folders_and_versions_may_change(old, new, entries):
    refuse(SENTENCE.replace(old, new))


def test_a_name_that_is_missing_or_not_told_at_all_fails():
    with pytest.raises(AssertionError, match="floor"), refused(ValueError, "floor"):
        raise ValueError("rate=2")
    with pytest.raises(AssertionError, match="floor"), warned("floor"):
        warnings.warn("rate=2", UserWarning, stacklevel=1)
