"""The embedded task in a configuration: held-out problems, the judge, and what is refused."""

import re

import pytest
from refusals import refused
from small_runs import small_words

from dppo.errors import ConfigError
from dppo.lab.demo import task
from dppo.lab.demo.task import is_held_out, make_split
from dppo.lab.runs.benchmarks import load_benchmarks
from dppo.lab.runs.dry_run import dry_run
from dppo.lab.runs.held_out import embedded_set
from dppo.lab.runs.parsing import parse_run
from dppo.lab.runs.rewards import load_rollouts


@pytest.fixture
def words(tmp_path, untrained):
    more = "--embedded_problems 12 --rollout_func embedded --max_steps 3 --logging_steps 1 --save_strategy no "
    more += "--learning_rate 1e-3 --reward_funcs small_runs.odd_length"
    return small_words(tmp_path / "out", *more.split(), model=untrained, dataset="embedded_quick")


def test_held_out_problems_are_the_seeds_own_and_held_out():
    found = embedded_set("embedded", 3, 12)
    assert found.questions != embedded_set("embedded", 4, 12).questions
    assert found.questions == embedded_set("embedded", 3, 12).questions
    assert all(map(is_held_out, found.questions)) and len(found.questions) == 12
    training = {p.question for seed in range(3) for p in make_split(seed).train}
    assert not training & {*embedded_set("embedded", 3, None).questions}
    levels = [len(re.findall(r"[0-9]", question.partition("*")[0])) for question in found.questions]
    assert [sum(low <= level <= high for level in levels) for low, high in ((2, 4), (6, 8), (10, 12))] == [4, 4, 4]
    answers = [f"\\boxed{{{task.solution(p).split('{')[-1]}" for p in make_split(3, train=0, held_out=12).held_out]
    assert found.score([*answers[:2], "7"], [0, 1, 2])[2] == (0.0, False)


def test_a_dry_run_names_the_embedded_parts_and_what_they_do_not_go_with_is_refused(words):
    more = ["--eval_benchmarks", "embedded_quick", "--eval_benchmark_limit", "6"]
    found = [each.text for each in dry_run(parse_run([*words, *more])) if each.kind == "ok"]
    assert "completions: embedded" in found and any("6 of embedded_quick" in text for text in found)
    with refused(ConfigError, "eval_benchmarks: [embedded_quick]"):
        load_benchmarks(parse_run([*words, "--eval_benchmarks", "embedded_quick", "math500"]))
    run = parse_run(words)
    run.training.use_vllm = True
    with refused(ConfigError, "embedded", "use_vllm"):
        load_rollouts(run)
