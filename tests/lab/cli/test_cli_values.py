"""``dppo values``: what it writes, that it goes on after a stop without repeating work, and what it refuses."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from dppo.methods.a_star_po import optimal_value
from dppo.pruning.prior import prompt_key, read_values
from dppo.rewards import identities
from dppo_lab.cli.main import main
from dppo_lab.runs.parsing import parse_run
from dppo_lab.runs.parts import load_dataset
from dppo_lab.runs.words import bare

REWARD = """
import os, signal
from pathlib import Path

def by_length(prompts, completions, answer, **columns):
    found = [float(len(text[-1]["content"]) % 2) for text in completions]
    judged = Path("judged")
    with judged.open("a") as file:
        file.writelines(f"{prompt[-1]['content']}\\n" for prompt in prompts)
    if Path("stop").exists() and len(judged.read_text().splitlines()) > 20:
        if Path("stop").read_text() == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyboardInterrupt
    return found

def none_right(completions, **columns):
    return [0.0] * len(completions)

def nothing(completions, **columns):
    return [None] * len(completions)
"""
PROBLEMS, SAMPLES = 9, 4


@pytest.fixture
def words(tmp_path, monkeypatch, untrained):
    """A command that samples an untrained policy, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_rewards.py").write_text(REWARD)
    lines = [f"model_name_or_path: {untrained}", "dataset_name: embedded_quick", f"embedded_problems: {PROBLEMS}"]
    lines += ["reward_funcs: [own_rewards.by_length]", "output_dir: out", "use_cpu: true", "bf16: false"]
    lines += ["report_to: none", "method: a_star_po", "num_generations: 1", "max_completion_length: 8"]
    lines += ["per_device_train_batch_size: 8", "prompt_values: set.values.jsonl", "gradient_checkpointing: false"]
    (tmp_path / "run.yaml").write_text("\n".join(lines))
    yield ["values", "run.yaml", "--samples", str(SAMPLES), "--batch_size", "6"]
    sys.modules.pop("own_rewards", None)


def written(path="set.values.jsonl"):
    return [json.loads(line) for line in open(path)]


def judged():
    return open("judged").read().splitlines()


def test_every_prompt_has_the_value_of_its_samples(words, capsys):
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "values of 9 prompts are in set.values.jsonl; 36 samples were drawn now" in text
    dataset = load_dataset(parse_run(["run.yaml"]))
    keys = [prompt_key(int(key)) for key in identities(dataset["prompt"])]
    lines = {line["prompt"]: line for line in written()}
    assert list(lines) == keys and all(len(line["rewards"]) == SAMPLES for line in lines.values())
    rewards = torch.tensor([line["rewards"] for line in lines.values()])
    assert 0 < rewards.mean() < 1
    known = read_values("set.values.jsonl", identities(dataset["prompt"]))
    torch.testing.assert_close(known.value_P, optimal_value(rewards, beta=0.5))
    torch.testing.assert_close(known.mean_P, rewards.double().mean(1))


def test_given_again_it_draws_nothing_more_samples_draw_the_rest_and_another_beta_is_free(words):
    assert main(words) == 0
    before, count = written(), len(judged())
    assert main(words) == 0 and written() == before
    assert main([*words, "--beta1", "5"]) == 0
    assert [line["rewards"] for line in written()] == [line["rewards"] for line in before]
    mixed = [n for n, line in enumerate(before) if len(set(line["rewards"])) == 2]
    assert mixed and all(written()[n]["value"] < before[n]["value"] for n in mixed), "nearer to the mean"
    assert len(judged()) == count == PROBLEMS * SAMPLES
    assert main([*words[:3], "6", *words[4:]]) == 0
    assert len(judged()) == PROBLEMS * 6 and [line["rewards"][:4] for line in written()] == [
        line["rewards"] for line in before
    ]


def killed(words):
    """Run the command in a process that is killed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "dppo_lab.cli.main", *words]
    return subprocess.run(command, env=environment, capture_output=True, timeout=300).returncode


@pytest.mark.parametrize(
    ("how", "run", "code"),
    [("stop", main, 130), pytest.param("kill", killed, -signal.SIGKILL, marks=pytest.mark.slow)],
)
def test_a_stopped_estimate_goes_on_to_the_same_values_and_repeats_no_batch_on_disk(words, tmp_path, how, run, code):
    assert main(words) == 0
    wanted = written()
    for name in ("set.values.jsonl", "set.values.jsonl.samples", "judged"):
        (tmp_path / name).unlink()
    (tmp_path / "stop").write_text(how)
    assert run(words) == code
    assert not (tmp_path / "set.values.jsonl").exists()
    kept = (tmp_path / "set.values.jsonl.samples").read_text().splitlines()
    assert len(kept) == 1 + 18 and len(judged()) == 24, "settings and three batches; the fourth was being judged"
    with open("set.values.jsonl.samples", "ab") as file:
        file.write(b'{"prompt": "half a li')  # a kill may leave it
    (tmp_path / "stop").unlink()
    assert main(words) == 0 and written() == wanted
    assert len(judged()) == 24 + PROBLEMS * SAMPLES - 18
    assert (tmp_path / "set.values.jsonl.samples").read_text().splitlines()[:19] == kept


def test_a_model_from_scratch_of_another_seed_is_another_model(words, made_quickly, capsys):
    """One model for all seeds would give the values of a policy that no run starts from."""
    scratch = [*words, "--model_name_or_path", "scratch:embedded_quick", "--embedded_problems", "8"]
    assert main(scratch) == 0 and main(scratch) == 0
    assert [(folder.name, seed) for folder, seed, _ in made_quickly] == [("embedded_quick_42", 42)], "found again"
    assert main([*scratch, "--seed", "1"]) == 2
    assert "drawn otherwise: engine.model is" in capsys.readouterr().err
    assert main([*scratch, "--seed", "1", "--prompt_values", "one.values.jsonl"]) == 0
    assert [(folder.name, seed) for folder, seed, _ in made_quickly[1:]] == [("embedded_quick_1", 1)] * 2


def test_values_that_are_all_0_fail_and_are_written_all_the_same(words, capsys):
    assert main([*words, "--reward_funcs", "own_rewards.none_right"]) == 1
    out, err = capsys.readouterr()
    assert "no sample of 9 prompts had a reward: their value is 0" in out and "all values are 0" in err
    assert all(line["value"] == 0 for line in written())


def test_files_that_differ_behind_a_dot_have_values_of_their_own():
    """The wrong twin writes both into gsm8k.values.jsonl."""
    names = {"gsm8k.test.jsonl.gz": "gsm8k.test", "a/gsm8k.train.jsonl": "gsm8k.train", "data.v2": "data.v2"}
    assert {name: bare(name) for name in names} == names


def test_without_a_place_it_says_so(words, capsys, tmp_path):
    text = (tmp_path / "run.yaml").read_text().replace("prompt_values: set.values.jsonl\n", "")
    (tmp_path / "run.yaml").write_text(text.replace("method: a_star_po", "method: dppo_history"))
    assert main(words) == 2
    assert "Set prompt_values: problems.values.jsonl" in capsys.readouterr().err
    (tmp_path / "sums.jsonl").write_text("".join(f'{{"prompt": "{i}+1=?", "answer": "{i + 1}"}}\n' for i in range(8)))
    assert main([*words, "--dataset_name", "sums.jsonl"]) == 0
    assert len(written("sums.values.jsonl")) == 8, "beside the dataset"
