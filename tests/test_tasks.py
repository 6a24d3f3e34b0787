"""What docs/tasks.md says of the embedded tasks is what was measured, and the measure is right."""

import importlib
import json
import sys
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch

from dppo.methods import METHODS
from dppo.objective import Tokens
from dppo.rng import torch_generator
from dppo.step import micro_batch_loss
from dppo.verification.gradients import Folding, log_probs, trained_parameters
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer, encode_questions
from dppo_lab.demo.task import make_split

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
tasks = importlib.import_module("tasks")

PAGE = (ROOT / "docs" / "tasks.md").read_text()


@pytest.fixture(scope="module")
def records():
    return json.loads((ROOT / "benchmarks" / "results" / "tasks.json").read_text())["rows"]


def test_the_table_is_that_of_the_file(records):
    assert tasks.table(records) in PAGE
    wrong = [{**record, "still_dead": record["still_dead"] / 2} for record in records]
    assert tasks.table(wrong) not in PAGE


def mean_of(record_list, task, key):
    values = [record[key] for record in record_list if record["task"] == task]
    assert len(values) >= 3
    return sum(values) / len(values)


def promises(records):
    """What the sparse task was built for, as measured."""
    sparse = {key: mean_of(records, "embedded_sparse", key) for key in records[0] if key != "task"}
    return {
        "dead": 0.6 <= sparse["dead_at_8"] <= 0.8,
        "stays": sparse["still_dead_first"] >= 0.85,
        "long": sparse["tokens_hard"] > 1.5 * sparse["tokens_middle"] > 1.5 * sparse["tokens_easy"],
        "noise": sparse["noise_start"] >= tasks.PROMPTS * tasks.GENERATIONS,
        "epochs": sparse["epochs"] >= 4,
        "learnable": sparse["accuracy_end"] - sparse["accuracy_start"] >= 0.2,
        "not hopeless for good": sparse["accuracy_hard_end"] - sparse["accuracy_hard_start"] >= 0.05,
    }


def test_the_sparse_task_is_what_it_was_built_for(records):
    assert all(promises(records).values()), promises(records)
    other = [{**record, "task": "embedded_sparse"} for record in records if record["task"] == "embedded"]
    assert not all(promises(other).values())


def test_still_dead_counts_groups_that_were_dead_before():
    looks = torch.tensor([[True, True, True, False], [True, True, False, True], [True, False, False, False]])
    assert tasks.still_dead(list(looks)) == (2 / 3, 3 / 6)
    of_all = [float((before & after).double().mean()) for before, after in pairwise(looks)]
    assert of_all[0] != 2 / 3  # the wrong twin, a share of all groups


def test_dead_is_all_right_or_all_wrong():
    reward_PG = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    assert tasks.dead(reward_PG).tolist() == [True, True, False, False]


def test_noise_and_signal_are_unbiased():
    """Over all ways to draw 3 of 4 vectors with replacement the means are the trace and the norm, exactly."""
    population = torch.randn(4, 6, generator=torch_generator(3), dtype=torch.float64) + 0.5
    mean = population.mean(0)
    found = [tasks.noise_and_signal(iter(population[list(drawn)])) for drawn in product(range(4), repeat=3)]
    noise, signal = torch.tensor(found, dtype=torch.float64).mean(0).tolist()
    assert signal == pytest.approx(float(mean @ mean), rel=1e-9)
    assert noise == pytest.approx(float((population - mean).square().sum() / 4), rel=1e-9)
    plugged_in = [population[list(drawn)].mean(0).square().sum() for drawn in product(range(4), repeat=3)]
    assert float(torch.stack(plugged_in).mean()) > 1.1 * float(mean @ mean)  # the wrong twin, norm of the mean


def test_a_groups_gradient_is_that_of_the_training_loss():
    model, tokenizer = build_model(0), build_tokenizer()
    problems = make_split(0, train=6, held_out=0).train[:2]
    _, tokens = tasks.answers(model, tokenizer, problems, 4, torch_generator(0))
    tokens[0] = [row[: 3 + 5 * index] for index, row in enumerate(tokens[0])]  # different lengths
    reward_PG = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    prompts = encode_questions(tokenizer, [problem.question for problem in problems])
    mixed, flat = tasks.group_gradients(model, prompts, (reward_PG, tokens))
    assert flat.abs().max() == 0 < mixed.abs().max()

    def of_loss(token_mean: bool):
        rows = [log_probs(model, prompts[0], completion) for completion in tokens[0]]
        advantage_G = tasks.group_advantages(tasks.Rewards.of_groups(reward_PG[:1])).float()
        if not token_mean:
            loss = -torch.stack([a * row.sum() for a, row in zip(advantage_G, rows, strict=True)]).mean()
        else:
            logp_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            mask_BT = torch.arange(logp_BT.shape[1]) < torch.tensor([[len(row)] for row in rows])
            batch = Tokens(logp_BT=logp_BT, old_logp_BT=logp_BT.detach(), advantage_B=advantage_G, mask_BT=mask_BT)
            ones = torch.ones(4, dtype=torch.float64)
            loss = micro_batch_loss(METHODS["grpo"], batch, ones, denominator=4.0, all_tokens=int(mask_BT.sum()))
        model.zero_grad()
        loss.backward()
        return Folding(trained_parameters(model))(trained_parameters(model))

    scale = mixed.abs().max()
    assert (of_loss(token_mean=True) - mixed).abs().max() < 1e-4 * scale
    assert (of_loss(token_mean=False) - mixed).abs().max() > 0.1 * scale  # the wrong twin, tokens added up


def test_a_measure_runs_and_its_table_has_every_line(tmp_path, monkeypatch):
    build_model(0).save_pretrained(tmp_path / "start")
    for name, value in {"HELD_OUT": 9, "RATE_SAMPLES": 8, "NOISE_GROUPS": 4, "MAX_NEW_TOKENS": 6}.items():
        monkeypatch.setattr(tasks, name, value)
    monkeypatch.setitem(tasks.TRAIN, "embedded_sparse", 16)
    record = tasks.measure("embedded_sparse", 0, tmp_path / "start", steps=2)
    assert record["epochs"] == 1 and record["completions"] == 128
    assert record["noise_start"] is None  # an untrained policy is never right
    assert record["never"] == record["all_wrong"] == record["still_dead"] == 1.0
    lines = tasks.table([record]).splitlines()
    assert len(lines) == 2 + len(tasks.ROWS) and "none seen" in tasks.table([record])
