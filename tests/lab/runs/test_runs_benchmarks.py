"""Held-out problems while a run trains: figures in the log, and a run that trains as it would have without them."""

import math
from dataclasses import replace

import pytest
from refusals import refused
from safetensors.torch import load_file
from small_runs import equal, lines_of, small_words, train, write_lines
from toy_evaluation import ASKER, toy_set
from transformers import TrainerState

from dppo.errors import ConfigError
from dppo.lab.runs import benchmarks, held_out
from dppo.lab.runs.benchmarks import BenchmarkCallback, figures_of, load_benchmarks
from dppo.lab.runs.data import load_dataset
from dppo.lab.runs.dry_run import dry_run
from dppo.lab.runs.held_out import asker
from dppo.lab.runs.parsing import parse_run
from dppo.lab.subject import SubjectSampling
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer

SETS, FORTY = (toy_set(7, "one"), toy_set(5, "two")), SubjectSampling(max_new_tokens=40)


def test_figures_are_shares_of_the_completions():
    """The same completions in any order of batches: the seeds belong to the problems."""
    figures = figures_of(SETS, ASKER, FORTY, samples=3)
    assert figures_of(SETS, replace(ASKER, batch_size=1), FORTY, samples=3) == pytest.approx(figures)
    for name, count in (("one", 7), ("two", 5)):
        right = figures[f"eval/{name}/pass@1"] * 3 * count
        assert right == pytest.approx(round(right))
        assert 0 < figures[f"eval/{name}/no_answer"] < 1 and 1 <= figures[f"eval/{name}/mean_tokens"] <= 30
    both = figures["eval/one/pass@1"], figures["eval/two/pass@1"]
    assert figures["eval/average/pass@1"] == pytest.approx(sum(both) / 2)
    no_room = figures_of(SETS, replace(ASKER, positions=3), FORTY, samples=3)
    assert no_room["eval/one/no_answer"] > 0.8 and no_room["eval/one/pass@1"] < 0.2


def test_when_it_evaluates():
    logged = []
    follow, resumed = (BenchmarkCallback(dict, logged.append, every=2) for _ in range(2))
    follow.on_train_begin(None, TrainerState(global_step=0), None)
    for step in range(1, 6):
        follow.on_step_end(None, TrainerState(global_step=step), None)
    assert len(logged) == 3  # 0, 2, 4
    for _ in range(2):
        follow.on_train_end(None, TrainerState(global_step=5), None)
    resumed.on_train_begin(None, TrainerState(global_step=4), None)
    assert len(logged) == 4


def test_processes_share_the_problems():
    """Sums over three ranks are the figures of one."""
    drawn = {"samples": 3, "seed": 0, "processes": 3}
    sums = iter([sum(benchmarks.sums(each, ASKER, FORTY, rank=rank, **drawn) for rank in range(3)) for each in SETS])
    shared = figures_of(SETS, ASKER, FORTY, reduce=lambda tensor: next(sums), **drawn)
    assert shared == pytest.approx(figures_of(SETS, ASKER, FORTY, samples=3))
    assert benchmarks.sums(toy_set(2, "few"), ASKER, FORTY, rank=2, **drawn).tolist() == [0.0] * 5


def test_no_clock_cuts_an_answer(monkeypatch):
    """The wrong twin has the limit of a verification, 40 seconds for a batch."""
    seen = []
    monkeypatch.setattr(held_out, "generate", lambda *given: seen.append(given[-1]) or [[0]])
    ask = asker(build_model(0), build_tokenizer(), embedded=False, batch_size=4, options={})
    (made,) = ask.generate([[1, 2]], [7], FORTY)
    assert seen == [SubjectSampling(max_new_tokens=40, seed=7, limit_seconds=math.inf)] and made.tokens == 1


@pytest.fixture
def words(tmp_path, untrained):
    """A run on the embedded policy, untrained, of three steps."""
    rows = [{"problem": f"{a}+{b}", "answer": str(a + b)} for a in range(4) for b in range(3)]
    write_lines(tmp_path / "sums.jsonl", rows)
    more = "--max_steps 3 --logging_steps 2 --save_strategy no --learning_rate 1e-3 --prompt_template {problem}"
    more += " --reward_funcs small_runs.odd_length"
    return small_words(tmp_path / "out", *more.split(), model=untrained)


@pytest.fixture
def follow(tmp_path):
    return f"--eval_benchmarks sums={tmp_path / 'sums.jsonl'} --eval_benchmark_every 2 --eval_benchmark_limit 5".split()


def test_a_run_logs_it_and_trains_as_without(tmp_path, words, untrained, follow):
    folders = tmp_path / "with", tmp_path / "without"
    for folder, further in zip(folders, (follow, ()), strict=True):
        train(parse_run([*words, "--output_dir", str(folder), *further]))
    records, plain = (lines_of(folder / "metrics.jsonl") for folder in folders)
    followed = [record for record in records if "eval/sums/pass@1" in record]
    assert [record["step"] for record in followed] == [0, 2, 3]
    assert all(0 <= record["eval/sums/pass@1"] <= 1 and record["eval/sums/mean_tokens"] <= 8 for record in followed)
    assert not any("loss" in record or "prune/kept_share" in record for record in followed)
    name = "rewards/odd_length/mean"
    steps = [(record["step"], record[name]) for record in records if name in record]
    assert steps == [(record["step"], record[name]) for record in plain if name in record] and len(steps) >= 1
    weights, without, start = (load_file(folder / "model.safetensors") for folder in (*folders, untrained))
    assert equal(weights, without)
    assert not equal(without, start), "something was learnt, so something could differ"


@pytest.mark.parametrize("template", ["{problem}", "Q: {problem}"])
def test_a_file_of_ones_own_is_asked_as_the_run_asks_it(tmp_path, words, follow, template):
    own = ["--dataset_name", str(tmp_path / "sums.jsonl"), "--per_device_train_batch_size", "8"]
    run = parse_run([*words, *own, *follow, "--prompt_template", template])
    (found,) = load_benchmarks(run)
    asked = {*found.questions}
    assert len(asked) == 5 and asked <= {turns[0]["content"] for turns in load_dataset(run)["prompt"]}


def test_fields_and_dry_run(tmp_path, words):
    good = ["--eval_benchmarks", f"sums={tmp_path / 'sums.jsonl'}"]
    said = [
        (good, "ok", "benchmarks while training: 12 of sums"),
        (["--eval_benchmarks", "math500"], "unchecked", "math500: fetched from the hub"),
        (["--eval_benchmarks", "math5000", "--eval_benchmark_data", str(tmp_path)], "wrong", "'math5000'"),
    ]
    for flags, kind, text in said:
        assert any(f.kind == kind and text in f.text for f in dry_run(parse_run([*words, *flags]))), text
    for field in ("eval_benchmark_every", "eval_benchmark_limit"):
        with refused(ConfigError, field, 0):
            parse_run([*words, f"--{field}", "0"])
