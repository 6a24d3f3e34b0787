"""Questions, answers, demonstrations, rewards and splits of the embedded task."""

import re
from collections import Counter
from itertools import pairwise
from math import prod

import pytest
from refusals import refused

from dppo.errors import DataError
from dppo.lab.demo import task
from dppo.rng import generator

LEVELS = (2, 3, 5, 8, 12)


def problems(count=40, largest=20):
    rng, sides = generator(3), (True, False) * count
    return [task.draw_problem(level, rng, held_out=side, largest_total=largest) for level in LEVELS for side in sides]


def steps(text):
    """The (left side, right side) of every written step."""
    return [(left, int(right)) for left, right in re.findall(r"([^;=]+)=(-?\d+);", text)]


@pytest.mark.parametrize("largest", [9, 20])
def test_answer_is_what_python_computes_and_every_running_total_is_in_range(largest):
    totals = set()
    for problem in problems(largest=largest):
        assert re.fullmatch(rf"\d([+-]\d){{{problem.level - 1}}}=\?", problem.question)
        terms = [int(term) for term in re.findall(r"[+-]?\d", problem.question)]
        assert problem.answer == eval(problem.question.removesuffix("=?"))  # an independent computation
        totals |= {sum(terms[: i + 1]) for i in range(len(terms))}
    assert totals == set(range(largest + 1))


def test_solution_is_rewarded_and_has_one_true_step_per_operator():
    sure = task.Teacher(sure_steps=99, slip_growth=0.1, largest_total=20)
    for problem in problems(10):
        assert task.demonstration(problem, sure, generator(0)) == task.solution(problem)
        text = task.solution(problem)
        assert task.reward(text, problem.answer) == 1.0
        assert len(steps(text)) == problem.level - 1
        assert all(eval(left) == right for left, right in steps(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{14}", 1.0),
        ("\\boxed{14}\n", 1.0),
        (r"\boxed{14", 0.0),
        ("", 0.0),
        (r"\boxed{14}14", 0.0),
        (r"\boxed{13}\boxed{14}", 0.0),
        (r"\boxed{" + "1" * 5000 + "}", 0.0),
    ],
)
def test_reward_wants_exactly_one_right_box_at_the_end(text, expected):
    messages = [[{"role": "assistant", "content": text}]]
    assert task.score([text], [14]) == task.score(messages, answer=[14], level=[2]) == [expected]


def test_a_slip_is_never_undone_and_is_carried_on():
    rng = generator(7)
    wrong = 0
    for problem in [task.draw_problem(12, rng, held_out=False) for _ in range(300)]:
        text = task.demonstration(problem, task.FULL.teacher, rng)
        written = steps(text)
        slipped = any(eval(left) != right for left, right in written)
        assert task.reward(text, problem.answer) == float(not slipped)
        assert all(0 <= right <= task.FULL.teacher.largest_total for _, right in written)
        for (_, right), (left, _) in pairwise(written):
            assert re.match(r"\d+", left)[0] == str(right)
        wrong += slipped
    assert wrong > 200


@pytest.mark.parametrize("each", [task.FULL, task.QUICK, task.SPARSE])
def test_the_teacher_makes_the_bands_what_they_are_called(each):
    """It never slips in the easy band, at times in the middle one, nearly always in the hard one."""
    easy, middle, hard = (
        [prod(1 - each.teacher.slip_chance(step) for step in range(1, level)) for level in band]
        for band in (each.easy, each.middle, each.hard)
    )
    assert min(easy) == 1 and all(0.1 < chance < 0.9 for chance in middle) and max(hard) < 0.05


def kinds(of, *, held_out=0):
    """How many problems are mastered, live, and have a wrong gold answer, by what questions and answers say."""
    split = task.make_split(0, train=400, held_out=held_out, task=of)
    found = Counter()
    for problem in split.held_out if held_out else split.train:
        wrong = task.reward(task.solution(problem), problem.answer) == 0
        found["wrong" if wrong else "live" if "*" in problem.question else "mastered"] += 1
    return found


def test_seven_in_ten_problems_of_the_silent_task_have_nothing_to_learn_from():
    """No policy says a wrong gold answer: it is beyond every total."""
    assert kinds(task.SILENT) == {"mastered": 200, "live": 120, "wrong": 80}
    assert kinds(task.SILENT, held_out=90) == {"live": 90}


def test_what_is_live_is_right_at_times_and_what_is_mastered_always():
    """An entry is right in 7, 9 or 11 of 20 demonstrations, and otherwise always wrong alike, in the last step."""
    train, rng = task.make_split(0, train=100, held_out=0, task=task.SILENT).train, generator(5)
    for problem in train:
        texts = [task.demonstration(problem, task.SILENT.teacher, rng) for _ in range(40)]
        right = sum(map(task.reward, texts, [problem.answer] * 40))
        if problem.level in task.SILENT.easy:
            assert right == 40
        elif problem.answer > task.SILENT.largest_total:
            assert right == 0 and len({*texts}) == 1
        else:
            said = {tuple(steps(text)[:-1]) for text in texts}
            assert 3 < right < 35 and len({*texts}) == 2 and len(said) == 1
            assert all(len(steps(text)) == problem.level - 1 for text in texts)


def test_split_is_disjoint_balanced_and_repeatable():
    split = task.make_split(0, train=180, held_out=90, task=task.FULL)
    train, held_out = ([p.question for p in side] for side in (split.train, split.held_out))
    assert len({*train, *held_out}) == 270
    assert not any(map(task.is_held_out, train)) and all(map(task.is_held_out, held_out))
    assert all(sum(p.level == level for p in split.train) == 20 for level in task.FULL.levels)
    assert split == task.make_split(0, train=180, held_out=90) != task.make_split(2, train=180, held_out=90)
    with refused(DataError, "held_out=900", "2 operands"):
        task.make_split(0, held_out=900)
