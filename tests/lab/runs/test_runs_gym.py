"""A task of reasoning-gym in a configuration: data, reward, held-out problems to follow, and its checks."""

import json
import multiprocessing
from unittest.mock import Mock

import pytest
import torch
from refusals import refused, warned
from small_runs import lines_of, small_words, train

from benchmarks.learning.byte_tokenizer import train_tokenizer
from dppo.errors import ConfigError
from dppo.lab.cli.main import main
from dppo.lab.gym import COLUMN, GymScorer, reasoning_gym_task
from dppo.lab.planning.run_plan import dataset_prompts
from dppo.lab.runs.benchmarks import load_benchmarks
from dppo.lab.runs.data import load_dataset
from dppo.lab.runs.dry_run import dry_run
from dppo.lab.runs.parsing import parse_run
from dppo.lab.runs.preflight import check_run
from dppo.verification.tiny_model import build_model

ARGUMENTS = {"max_terms": 2, "max_digits": 1, "size": 60}
TASK = "reasoning_gym:chain_sum"


@pytest.fixture(scope="session")
def reader(tmp_path_factory):
    """A folder with an untrained model whose tokenizer can read any text."""
    folder = tmp_path_factory.mktemp("reader") / "model"
    tokenizer = train_tokenizer([row["problem"] for row in reasoning_gym_task("chain_sum", ARGUMENTS).rows()])
    model = build_model(0)
    torch.manual_seed(0)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for config in (model.config, model.generation_config):
        config.pad_token_id, config.eos_token_id = 0, tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def words(tmp_path, reader):
    """A run that works; further words win."""
    given = ["--task_arguments", json.dumps(ARGUMENTS), "--answer_pattern", "number", "--reward_workers", "1"]

    def of(*more, dataset=TASK):
        return small_words(tmp_path / "out", *given, *more, model=reader, dataset=dataset)

    return of


def test_training_and_held_out_problems_of_a_run(words):
    run = parse_run(words("--seed", "3", "--eval_dataset_name", TASK, "--prompt_template", "{problem} Only a number."))
    task = reasoning_gym_task("chain_sum", ARGUMENTS, seed=3, answer_pattern="number")
    trained = load_dataset(run)
    assert trained[COLUMN] == [row[COLUMN] for row in task.rows()] and dataset_prompts(run) == len(trained)
    assert load_dataset(run, held_out=True)[COLUMN] == [row[COLUMN] for row in task.rows(held_out=True)]
    assert trained[0]["prompt"] == [{"role": "user", "content": f"{task.rows()[0]['problem']} Only a number."}]
    other = parse_run(words("--task_arguments", '{"size": 20}', dataset="reasoning_gym:rush_hour"))
    assert "answer" not in load_dataset(other).column_names, "a task without one answer"


def test_a_run_trains_on_the_tasks_score_and_follows_held_out_problems(tmp_path, words):
    more = "--max_steps 2 --logging_steps 1 --save_strategy no --eval_benchmark_limit 6 --eval_benchmark_every 2"
    train(parse_run(words(*more.split(), "--eval_benchmarks", TASK)))
    lines = lines_of(tmp_path / "out" / "metrics.jsonl")
    assert [line["step"] for line in lines if "eval/chain_sum/pass@1" in line] == [0, 2]
    steps = [line for line in lines if "rewards/reasoning_gym_score/mean" in line]
    assert len(steps) == 2
    assert all(line["check/right"] + line["check/wrong"] == pytest.approx(1.0) for line in steps)


def test_what_a_run_refuses(words):
    with refused(ConfigError, "'max_term'", "max_terms"):
        check_run(parse_run(words("--task_arguments", '{"max_term": 2}')))
    with refused(ConfigError, "task_arguments", "'embedded'", f"dataset_name: {TASK}"):
        check_run(parse_run(words(dataset="embedded")))
    wrong = [each.text for each in dry_run(parse_run(words(dataset="reasoning_gym:chain_sums")))]
    assert "Did you mean chain_sum?" in wrong[0]
    with refused(ConfigError, "benchmark chain_sum is named twice"):
        load_benchmarks(parse_run(words("--eval_benchmarks", TASK, TASK)))


def test_a_scorer_that_hangs_costs_its_completion_and_no_run():
    rows = reasoning_gym_task("chain_sum", ARGUMENTS, answer_pattern="number").rows()[:2]
    scorer = GymScorer(workers=1, limit_seconds=60.0)
    scorer._pool = Mock()
    scorer._pool.apply_async.return_value.get.side_effect = multiprocessing.TimeoutError
    answers, places = [*(row["answer"] for row in rows), "none"], [row[COLUMN] for row in (*rows, rows[0])]
    with warned("within 60 seconds"):
        assert scorer.scores(answers, places) == [None, 1.0, 0.0], "new workers score the others"
    scorer.close()


def test_an_evaluation_asks_the_held_out_problems(reader, tmp_path, capsys):
    words = f"eval {reader} --benchmarks {TASK} --limit 5 --max_new_tokens 4 --answer_pattern number --workers 1"
    arguments = ["--task_arguments", json.dumps(ARGUMENTS)]
    assert main([*words.split(), *arguments, "--output", str(tmp_path / "eval")]) == 0
    assert "chain_sum: accuracy 0.000 [0.000, 0.434] on 5 held-out problems" in capsys.readouterr().out
    results = json.loads((tmp_path / "eval" / "results.json").read_text())
    assert results["benchmarks"]["chain_sum"]["problems"] == 5 and results["settings"]["seed"] == 0
    assert main([*words.split(), *arguments, "--limit", "0", "--output", str(tmp_path / "other")]) == 2
    assert "--limit 0 must be at least 1" in capsys.readouterr().err
