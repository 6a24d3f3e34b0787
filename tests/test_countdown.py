"""The custom task in examples: its problems, its checker, training and evaluation."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from answer_judge.evaluation import read_results  # noqa: E402
from benchmarks.learning.byte_tokenizer import train_tokenizer  # noqa: E402
from dppo.lab.cli.main import main  # noqa: E402
from dppo.lab.runs.parsing import read_file  # noqa: E402
from dppo.verification.tiny_model import build_model, model_config  # noqa: E402
from examples.countdown.task import problems, right  # noqa: E402

FOLDER = ROOT / "examples" / "countdown"
ROW = {"numbers": [3, 5, 7], "target": 26}
ANSWERS = {
    r"\boxed{3*7+5}": True,
    r"\boxed{1} no: \boxed{ (7 * 3) + 5 }": True,
    r"\boxed{3*7+5": False,
    r"\boxed{26}": False,
    r"\boxed{5*5+1}": False,
    r"\boxed{3*7+5.0}": False,
    r"\boxed{3*7+5-3+3}": False,
    r"\boxed{7**3}": False,
    r"\boxed{__import__('os')}": False,
    rf"\boxed{{{'-' * 150}3*7+5}}": False,
}


@pytest.mark.parametrize("completion", ANSWERS)
def test_the_checker(completion):
    assert right(completion, ROW) is ANSWERS[completion]


def test_a_checker_that_only_evaluates_would_be_fooled():
    naive = lambda text: eval(text.split("{")[1].split("}")[0]) == ROW["target"]  # noqa: E731
    assert naive(r"\boxed{26}") and naive(r"\boxed{5*5+1}") and not right(r"\boxed{26}", ROW)


def test_the_file_is_what_the_generator_writes():
    rows = [json.loads(line) for line in (FOLDER / "problems.jsonl").read_text().splitlines()]
    assert rows == problems(96, 0) != problems(96, 1)
    assert all(right(row["solution"], row) and right(f"\\boxed{{{row['answer']}}}", row) for row in rows)
    assert len({row["problem"] for row in rows}) == 96


def test_it_trains_and_evaluates(tmp_path, monkeypatch, capsys):
    tokenizer = train_tokenizer([row["problem"] for row in problems(96, 0)])
    build_model(0, model_config(len(tokenizer), pad=0, end=tokenizer.eos_token_id)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(ROOT)
    out, rule = tmp_path / "run", "check:examples.countdown.task:right"
    words = f"--output_dir {out} --model_name_or_path {tmp_path / 'model'} --max_steps 1 --save_steps 2"
    small = "--per_device_train_batch_size 16 --num_generations 4 --max_completion_length 6 --disable_tqdm true"
    small += " --answer_time_limit 60"
    assert main(["train", "examples/countdown/countdown.yaml", *words.split(), *small.split()]) == 0
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert sum("rewards/right/mean" in step for step in steps) == 1
    file = f"countdown=examples/countdown/problems.jsonl:rule={rule}"
    given = f"--limit 2 --samples 2 --max_new_tokens 4 --answer_time_limit 60 --output {tmp_path / 'eval'}"
    asked = ["--prompt_template", r"{problem} Answer in \boxed{}."]
    assert main(["eval", str(out), "--benchmark", file, *asked, *given.split()]) == 0
    found = read_results(tmp_path / "eval")["benchmarks"]["countdown"]
    assert sum(found["outcomes"].values()) == 4 and "pass@2" in found
    settings = json.loads((tmp_path / "eval" / "settings.json").read_text())
    trained = read_file(FOLDER / "countdown.yaml", example="")["prompt_template"]
    assert settings["benchmarks"]["countdown"]["template"] == trained == asked[1], "it is asked as it was in training"
    capsys.readouterr()
