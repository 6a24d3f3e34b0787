"""Tasks of reasoning-gym: problems by seed and number, the answer in a completion, the score, and what is refused."""

import json
import sys

import pytest
from refusals import refused

from dppo.errors import ConfigError, DataError
from dppo.install import install_line
from dppo.lab.gym import COLUMN, is_held_out, last_number, reasoning_gym_score, reasoning_gym_task, tagged

SUMS = {"max_terms": 2, "max_digits": 1, "size": 60}


def questions(task, **given):
    return {row["problem"] for row in task.rows(**given)}


def test_problems_are_the_seeds_own_and_no_seed_trains_on_a_held_out_question():
    tasks = [reasoning_gym_task("chain_sum", SUMS, seed=seed) for seed in range(4)]
    trained, held_out = [questions(task) for task in tasks], [questions(task, held_out=True) for task in tasks]
    assert trained[0] == questions(reasoning_gym_task("reasoning_gym:chain_sum", SUMS)) != trained[1]
    assert not set.union(*trained) & set.union(*held_out)
    assert 0.1 < len(held_out[0]) / len(trained[0]) < 0.7
    assert 0.2 < sum(is_held_out(f"question {i}") for i in range(2000)) / 2000 < 0.3
    few = reasoning_gym_task("chain_sum", {**SUMS, "max_terms": 1, "min_terms": 1})
    assert len(few.rows() + few.rows(held_out=True)) <= 10, "equal questions count once"


def test_neighbouring_seeds_share_few_problems():
    """The wrong twin takes the run's seed as it is: reasoning-gym makes problem i of seed s from s + i."""
    large = {"min_terms": 6, "min_digits": 4, "size": 60}
    first, second = (questions(reasoning_gym_task("chain_sum", large, seed=seed)) for seed in (0, 1))
    wrong = questions(reasoning_gym_task("chain_sum", {**large, "seed": 1}))
    assert not first & second and len(first & wrong) > 40


def test_the_score_is_the_tasks_own():
    task = reasoning_gym_task("chain_sum", SUMS, answer_pattern="number")
    row = next(row for row in task.rows() if row["answer"] == "1")
    found = {"It is 2 - 1 = 1.": 1.0, "12": 0.5, "7": 0.0, "one": 0.0}  # reasoning-gym gives a part for "1" in "12"
    assert {text: reasoning_gym_score(text, row) for text in found} == found
    row = reasoning_gym_task("prime_factorization", {"size": 4}).rows()[0]
    assert reasoning_gym_score("seven", row) == 0.0  # reasoning-gym raises ValueError there


@pytest.mark.parametrize("name", ["countdown", "rush_hour", "simple_equations"])
def test_right_answers_of_other_tasks_score_1(name):
    task = reasoning_gym_task(name, {"size": 8})
    for row in task.rows():
        assert row["answer"] is None or reasoning_gym_score(row["answer"], row) == 1.0
        assert reasoning_gym_score("I do not know.", row) < 1.0


def test_the_answer_in_a_completion():
    numbers = {"10-3 = 7.": "7", "so -3": "-3", "−4": "-4", "1,234.5 and": "1234.5", "10-3": "3", "none": None}
    assert {text: last_number(text) for text in numbers} == numbers
    assert tagged("<answer>1</answer> no, <answer> 2 </answer>") == "2" and tagged("<answer>1") is None


def test_what_is_unknown_is_refused_with_the_near_ones():
    with refused(ConfigError, "'chain_sums'", "Did you mean chain_sum?", "reasoning_gym:chain_sum"):
        reasoning_gym_task("chain_sums")
    with refused(ConfigError, "'max_term'", "min_digits, max_digits"):
        reasoning_gym_task("chain_sum", {"max_term": 2})
    with refused(DataError, "chain_sum", "held out", "size: 500"):
        reasoning_gym_task("chain_sum", {"size": 1}).rows(held_out=True)
    with refused(ConfigError, "answer_pattern='box'", "number", "tags"):
        reasoning_gym_task("chain_sum", answer_pattern="box")


def test_without_the_library_a_sentence_says_how_to_install_it(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "reasoning_gym"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with refused(ConfigError, "reasoning_gym:chain_sum", install_line("gym")):
        reasoning_gym_task("chain_sum")


def test_another_problem_in_another_process_is_seen():
    """Some tasks follow Python's hash seed, which differs from process to process."""
    (row, *_) = reasoning_gym_task("chain_sum", SUMS).rows()
    other = {COLUMN: json.dumps(json.loads(row[COLUMN]) | {"question": "0" * 16})}
    with refused(DataError, "chain_sum", "PYTHONHASHSEED=0"):
        reasoning_gym_score("1", other)
