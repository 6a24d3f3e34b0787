"""The small shared pieces: records, misspelt words, generators."""

import subprocess
import sys

import pytest
import torch
from refusals import refused

from dppo.errors import ConfigError, ShapeError, did_you_mean, duration
from dppo.methods import METHODS
from dppo.rng import Purpose, generator, step_streams
from dppo.types import Candidates, Completions


def test_records_name_the_field_of_the_wrong_shape():
    ones = torch.ones(3)
    with refused(ShapeError, "Completions.tokens_N", "(2,)", "(3,)"):
        Completions(advantage_N=ones, tokens_N=ones[:2], group_N=ones, live_N=ones.bool())
    with refused(ShapeError, "Candidates.seen_P"):
        Candidates(row_P=ones, signal_P=ones, tokens_P=ones, seen_P=ones[:1].bool())


@pytest.mark.parametrize(
    ("word", "known", "near"),
    [
        ("grop", METHODS, "grpo"),
        ("dpo", ["gdpo", "grpo", "dppo", "dapo"], "gdpo or dppo or dapo"),
        ("ddpo", METHODS, "dapo or dppo or gdpo"),
        ("dataset", ["dataset_name", "dataset_path", "learning_rate"], "dataset_name or dataset_path"),
        ("one", ["the_one_a", "the_one_b", "the_one_c", "the_one_d"], "the_one_a or the_one_b or the_one_c"),
    ],
)
def test_the_nearest_names_of_a_misspelt_word_are_asked_about(word, known, near):
    assert did_you_mean(word, known) == f"Did you mean {near}? "
    assert did_you_mean("xyz", known) == ""


def test_durations_are_in_words():
    assert [duration(each) for each in (2.5, 100, 7800)] == ["2.5 s", "1 min 40 s", "2 h 10 min"]


def test_no_step_of_one_purpose_has_the_numbers_of_another():
    """With the step first, step 2 of PROMPT_ORDER would be step 1 of PROMPT_DRAW."""
    keys = [(purpose, step) for purpose in Purpose for step in range(13)]
    assert len({step_streams(0, step)(purpose).random() for purpose, step in keys}) == len(keys)
    with refused(ConfigError, "(5, <Purpose.PROMPT_DRAW: 2>)"):
        generator(3, 5, Purpose.PROMPT_DRAW)


def test_purposes_keep_their_numbers():
    """A renumbered purpose would change the draws of every run that is resumed."""
    names = "PROMPT_ORDER PROMPT_DRAW COMPLETION_DRAW DEAL TASK WARM_UP ROLLOUT EVALUATION CHECK MODEL PROMPT_SKIP"
    assert {p.name: p.value for p in Purpose} == {
        name: number for number, name in enumerate(f"{names} PROJECTION ROW_DRAW TOKEN_DRAW".split(), 1)
    }


def test_generators_do_not_depend_on_the_process():
    """A seed from ``hash()`` would differ between ranks, and between a run and its resumed self."""
    code = "from dppo.rng import generator, Purpose; print(generator(3, Purpose.PROMPT_DRAW, 5).random())"
    other = {"env": {"PYTHONHASHSEED": "12345"}, "capture_output": True, "text": True}
    found = subprocess.run([sys.executable, "-c", code], **other).stdout
    assert float(found) == generator(3, Purpose.PROMPT_DRAW, 5).random()
