"""Every script of ``examples`` runs unchanged, on a tiny model of random weights."""

import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(ROOT / "tests" / "trl"))

from tiny_runs import tiny_path  # noqa: E402

from dppo.pruning.prior import read_values  # noqa: E402
from dppo.rewards import identities  # noqa: E402

__all__ = ["tiny_path"]
NEED_A_MODEL = ("trl_before.py", "trl_after.py", "custom_reward.py", "own_method.py")


@pytest.fixture
def run(tiny_path, tmp_path, monkeypatch, capsys):
    """Runs a script in an empty folder, with a model and questions where it takes them, and gives what it printed."""
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"prompt": f"w{i} w{i + 1}", "answer": f"w{i}"}) + "\n" for i in range(8)))
    monkeypatch.chdir(tmp_path)

    def call(name, *words):
        given = [tiny_path, str(questions)] if name in NEED_A_MODEL else words
        monkeypatch.setattr(sys, "argv", [name, *given])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize("name", NEED_A_MODEL[:2])
def test_the_two_scripts_of_trl_train(run, name):
    run(name)
    assert json.loads(Path("out/checkpoint-2/trainer_state.json").read_text())["global_step"] == 2


def test_a_run_with_rewards_of_ones_own_is_read_as_tables(run):
    assert "dppo | " in run("custom_reward.py")
    printed = run("read_results.py", "out")
    assert "prune/kept_share" in printed and "count" in printed


def test_a_method_of_ones_own_is_proved_and_trained_with(run):
    printed = run("own_method.py")
    assert "relative bias over every outcome of a small problem: " in printed


def test_the_method_without_a_trainer_learns(run):
    first, *_, last = run("without_trainer.py").splitlines()
    rewards = [float(line.rpartition(" ")[2]) for line in (first, last)]
    assert rewards[0] < 0.6 < 0.8 < rewards[1]


def test_values_of_prompts_are_written_and_read(run, tiny_path):
    lines = [f"model_name_or_path: {tiny_path}", "dataset_name: questions.jsonl", "output_dir: out", "bf16: false"]
    lines += ["reward_funcs: [odd.odd]", "use_cpu: true", "num_generations: 1", "max_completion_length: 6"]
    lines += ["method: a_star_po", "prompt_values: a.values.jsonl", "report_to: none", "prompt_column: prompt"]
    Path("run.yaml").write_text("\n".join(lines))
    Path("odd.py").write_text("def odd(completions, **_): return [float(len(text) % 2) for text in completions]")
    assert "values of 8 prompts are in a.values.jsonl" in run("prompt_values.py", "run.yaml", "--samples", "4")
    keys = identities([json.loads(line)["prompt"] for line in Path("questions.jsonl").read_text().splitlines()])
    found = read_values("a.values.jsonl", keys)
    assert len(found.value_P) == 8 and 0 < found.mean_P.mean() < 1


@pytest.mark.slow
def test_preferences_are_a_right_answer_and_a_wrong_one(run, verifier):
    """After few steps the policy is right now and then, and never always."""
    printed = run("preferences.py", "pairs.jsonl", "--questions", "24", "--warm_up", "40")
    pairs = [json.loads(line) for line in Path("pairs.jsonl").read_text().splitlines()]
    assert pairs and printed.startswith(f"{len(pairs)} pairs of 24 questions")
    for pair in pairs:
        judged = [verifier.verify(pair[name][0]["content"], pair["answer"]).value for name in ("chosen", "rejected")]
        assert judged == [1.0, 0.0] and pair["prompt"][0]["role"] == "user"
