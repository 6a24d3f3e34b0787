"""benchmarks/swap: TRL's own tests with our trainers in their place; the whole table is its JSON."""

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.swap import trl_tests

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "trl_tests.json"
SOME = [
    ("sft", "test_train_dft_loss"),
    ("dpo", "test_train_with_wpo"),
    ("grpo", "test_training_beta_non_zero"),
]


def of(kind, test):
    return next(case for case in trl_tests.cases([kind]) if case.test == test)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "test"), SOME)
def test_what_passes_with_trl_passes_with_ours(kind, test):
    stock, ours = trl_tests.KINDS[kind]
    assert trl_tests.outcome(of(kind, test), *stock) == trl_tests.outcome(of(kind, test), *ours) == ("passes", "")


@pytest.mark.slow
def test_a_trainer_that_does_not_train_fails():
    _, (trainer, config) = trl_tests.KINDS["sft"]

    class Idle(trainer):
        def create_optimizer(self, *arguments, **named):
            optimizer = super().create_optimizer(*arguments, **named)
            optimizer.step = lambda *given, **words: None
            return optimizer

    verdict, why = trl_tests.outcome(of("sft", "test_train_dft_loss"), Idle, config)
    assert verdict == "fails" and "parameters stood still" in why


def test_nothing_that_passes_with_trl_fails_here():
    counts = {kind: Counter() for kind in trl_tests.KINDS}
    for row in json.loads(RESULTS.read_text())["rows"]:
        counts[row["trainer"]][row["verdict"]] += 1
    for kind, found in counts.items():
        assert not found["fails"] and found["passes"] > 0.9 * (found["passes"] + found["refused"]) > 40, kind
