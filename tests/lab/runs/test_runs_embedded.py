"""The embedded task in a configuration: held-out problems, the judge, and what is refused."""

import re

from refusals import refused
from small_runs import small_words

from dppo.errors import ConfigError
from dppo.lab.demo import task
from dppo.lab.demo.task import is_held_out, make_split
from dppo.lab.runs.benchmarks import load_benchmarks
from dppo.lab.runs.held_out import embedded_set
from dppo.lab.runs.parsing import parse_run
from dppo.lab.runs.rewards import load_rollouts


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


def test_what_the_embedded_task_does_not_go_with_is_refused(tmp_path, untrained):
    words = small_words(tmp_path / "out", model=untrained, dataset="embedded_quick")
    with refused(ConfigError, "eval_benchmarks: [embedded_quick]"):
        load_benchmarks(parse_run([*words, "--eval_benchmarks", "embedded_quick", "math500"]))
    run = parse_run([*words, "--rollout_func", "embedded"])
    run.training.use_vllm = True
    with refused(ConfigError, "embedded", "use_vllm"):
        load_rollouts(run)
