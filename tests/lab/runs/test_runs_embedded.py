"""The embedded task in a configuration: held-out problems, the judge, and a run that follows them and trains on."""

import json

import pytest
import torch
from safetensors.torch import load_file

from answer_judge.grading import REASONS
from dppo.errors import ConfigError
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer
from dppo_lab.demo import drafts
from dppo_lab.demo.task import is_held_out, make_split
from dppo_lab.runs.benchmarks import load_benchmarks
from dppo_lab.runs.dry_run import dry_run
from dppo_lab.runs.embedded import EmbeddedJudge, held_out_set
from dppo_lab.runs.parsing import parse_run
from dppo_lab.runs.parts import load_rollouts, train


@pytest.fixture
def words(tmp_path):
    build_model(0).save_pretrained(tmp_path / "model")
    build_tokenizer().save_pretrained(tmp_path / "model")
    given = f"--model_name_or_path {tmp_path / 'model'} --dataset_name embedded_quick --embedded_problems 12 "
    given += "--rollout_func embedded --use_cpu true --bf16 false --report_to none --num_generations 4 "
    given += "--per_device_train_batch_size 16 --max_completion_length 8 --disable_tqdm true --max_steps 3 "
    given += "--gradient_checkpointing false --logging_steps 1 --save_strategy no --learning_rate 1e-3 "
    given += "--reward_funcs runs_rewards.odd_length"
    return [*given.split(), "--output_dir", str(tmp_path / "out")]


def follow(words, *further):
    return parse_run([*words, "--eval_benchmarks", "embedded_quick", "--eval_benchmark_limit", "6", *further])


def test_held_out_problems_are_the_seeds_own_and_held_out():
    found = held_out_set("embedded", 3, 12)
    assert [p.problem for p in found.problems] != [p.problem for p in held_out_set("embedded", 4, 12).problems]
    assert found == held_out_set("embedded", 3, 12)
    assert all(is_held_out(p.problem) for p in found.problems) and len(found.problems) == 12
    training = {p.question for seed in range(3) for p in make_split(seed).train}
    assert not training & {p.problem for p in held_out_set("embedded", 3, None).problems}
    levels = [int(p.level) for p in found.problems]
    assert [sum(low <= level <= high for level in levels) for low, high in ((2, 4), (6, 8), (10, 12))] == [4, 4, 4]


def test_the_judge_says_what_the_reward_says():
    texts = ["1+2=3;\\boxed{3}", "\\boxed{4}", "3", "\\boxed{3} and more"]
    verdicts = EmbeddedJudge().verify_many(texts, ["3"] * 4)
    assert [verdict.reason for verdict in verdicts] == ["right", "wrong", "no_answer", "wrong"]
    assert {verdict.reason for verdict in verdicts} < set(REASONS)


def test_a_run_follows_held_out_problems_and_trains_as_without(tmp_path, words):
    weights = []
    for more in ([], ["--eval_benchmarks", "embedded_quick", "--eval_benchmark_every", "2"]):
        train(parse_run([*words, *more, "--overwrite", "true"]))
        weights.append(load_file(tmp_path / "out" / "model.safetensors"))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    followed = [line for line in lines if "eval/embedded_quick/pass@1" in line]
    assert [line["step"] for line in followed] == [0, 2, 3]
    assert all(line["eval/average/pass@1"] == line["eval/embedded_quick/pass@1"] for line in followed)


def test_the_same_draws_at_every_evaluation(tmp_path, words):
    train(follow(words, "--learning_rate", "0", "--eval_benchmark_every", "1"))
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    tokens = [line["eval/embedded_quick/mean_tokens"] for line in lines if "eval/embedded_quick/mean_tokens" in line]
    assert len(tokens) == 4 and len(set(tokens)) == 1


def test_a_run_with_drafts_verifies_what_it_sampled_an_epoch_before(words, monkeypatch):
    given, plain = [], drafts.sample_drafted

    def recorded(model, prompts, of_each, *rest, **named):
        given.append(of_each)
        return plain(model, prompts, of_each, *rest, **named)

    monkeypatch.setattr(drafts, "sample_drafted", recorded)
    train(parse_run([*words, "--draft", "last_completion", "--max_steps", "4"]))
    assert [[len(of_one) for of_one in of_each] for of_each in given] == [[0] * 4] * 3 + [[4] * 4]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--draft", "last"], "draft='last' is not 'last_completion'"),
        (
            ["--draft", "last_completion", "--rollout_func", "runs_rewards.odd_length"],
            "only for rollout_func: embedded",
        ),
    ],
)
def test_drafts_on_an_engine_that_has_none_are_refused(words, more, said):
    found = dry_run(parse_run([*words, *more]))
    assert [f.kind for f in found if said in f.text] == ["wrong"]


def test_drafts_of_vllm_are_its_servers_own(words):
    run = parse_run([*words, "--draft", "last_completion"])
    assert any(f.text == "completions: embedded, with last_completion as draft" for f in dry_run(run))
    run.data.rollout_func, run.training.use_vllm = None, True
    with pytest.raises(ConfigError, match="vLLM's server has --speculative-config of its own"):
        load_rollouts(run)


def test_what_does_not_go_together(words):
    with pytest.raises(ConfigError, match=r"Write eval_benchmarks: \[embedded_quick\]"):
        load_benchmarks(follow([*words], "--eval_benchmarks", "embedded_quick", "math500"))
    found = dry_run(parse_run([*words, "--rollout_func", "embeded"]))
    assert any(f.kind == "wrong" and "rollout_func: 'embeded' is neither one of embedded" in f.text for f in found)
    found = dry_run(follow(words))
    assert any(f.text == "completions: embedded" for f in found)
    assert any("benchmarks while training: 6 of embedded_quick" in f.text for f in found)
    with pytest.raises(ConfigError, match="use_vllm would start vLLM for nothing"):
        run = parse_run(words)
        run.training.use_vllm = True
        load_rollouts(run)
