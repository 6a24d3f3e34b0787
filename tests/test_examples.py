"""Scripts of ``examples`` run unchanged on a tiny model, its configurations pass a dry run, its notebook is right."""

import json
import re
import runpy
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from matplotlib import pyplot
from pages import ROOT

sys.path.insert(0, str(ROOT / "tests" / "trl"))

from tiny_runs import tiny_path

from dppo.lab.cli.main import main
from dppo.pruning.prior import read_values
from dppo.rewards import identities
from examples.countdown.task import problems, right

__all__ = ["tiny_path"]
EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "first_look.ipynb"
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


CONFIGS = [
    path
    for path in sorted((EXAMPLES).glob("*/*.yaml"))
    if path.parent.name != "sample_compare" and "output_dir" in yaml.safe_load(path.read_text(encoding="utf-8"))
]


@pytest.fixture
def dry_run(tmp_path, monkeypatch, capsys):
    """``dry_run(words)``: the exit code of a dry run of ``dppo train`` into an empty folder, and its lines."""
    monkeypatch.chdir(ROOT)

    def ran(*words):
        code = main(["train", *words, "--dry_run", "--output_dir", str(tmp_path / "out")])
        return code, capsys.readouterr().out.splitlines()

    return ran


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_configuration_passes_a_dry_run(config, dry_run):
    code, lines = dry_run(str(config.relative_to(ROOT)))
    assert code == 0 and not [line for line in lines if line.startswith("WRONG")]
    assert any(line.startswith("plan      method: dppo") for line in lines)


def test_records_of_the_sample_name_no_place_of_the_machine_that_made_them():
    texts = {str(path): path.read_text() for path in (EXAMPLES / "sample_compare").rglob("*") if path.is_file()}
    assert [name for name, text in texts.items() if re.search(r"/(tmp|home|root|work|Users)/", text)] == []


def test_programs_are_judged_by_the_tests_of_a_local_file_and_what_is_wrong_is_seen(dry_run, tmp_path):
    code, lines = dry_run("examples/code/train.yaml", "--eval_benchmarks", "humanevil")
    assert code == 1 and any(line.startswith("WRONG") and "humanevil" in line for line in lines)
    file = tmp_path / "mbpp.jsonl"
    rows = [{"text": f"Write a function that adds {i}.", "test_list": [f"assert add(1) == 1 + {i}"]} for i in range(16)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, lines = dry_run("examples/code/train.yaml", "--dataset_path", str(file))
    assert code == 0 and any("16 problems with columns" in line for line in lines)
    assert any("rewards: code_tests" in line for line in lines)
    file.write_text(file.read_text().replace("test_list", "tests"))
    code, lines = dry_run("examples/code/train.yaml", "--dataset_path", str(file))
    assert code == 1 and any(line.startswith("WRONG") for line in lines)


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
def test_the_checker_is_right_where_one_that_only_evaluates_is_fooled(completion):
    assert right(completion, ROW) is ANSWERS[completion]
    if completion in (r"\boxed{26}", r"\boxed{5*5+1}"):
        assert eval(completion[7:-1]) == ROW["target"]


def test_the_file_is_what_the_generator_writes():
    rows = [json.loads(line) for line in (EXAMPLES / "countdown" / "problems.jsonl").read_text().splitlines()]
    assert rows == problems(96, 0) != problems(96, 1)
    assert all(right(row["solution"], row) and right(f"\\boxed{{{row['answer']}}}", row) for row in rows)
    assert len({row["problem"] for row in rows}) == 96


def check(printed: str, pictures: int, fall: float) -> None:
    """Fail unless the unbiased rule's distance fell by this factor and the biased one's did not.

    A line of a rule has the distances to the full gradient from the mean of one draw, of some draws, and of all.
    """
    lines = dict(re.findall(r"^(\w+): (.* after .*)$", printed, flags=re.MULTILINE))
    unbiased, biased = ([float(part.split()[0]) for part in lines[name].split(", ")] for name in ("dppo", "cppo"))
    assert unbiased[-1] < unbiased[0] / fall and len(set(biased)) == 1 and biased[0] > 0.1
    exact = dict(re.findall(r"^(\w+) +relative bias over all outcomes: (\S+)$", printed, flags=re.MULTILINE))
    assert max(float(exact[name]) for name in ("dppo", "dppo_threshold")) < 1e-12
    assert min(float(exact[name]) for name in ("cppo", "dppo_unweighted")) > 0.1
    assert pictures == 3 and "no gradient" in printed and "of them on one core" in printed


@pytest.mark.slow
def test_its_cells_run_at_a_small_size(tmp_path, monkeypatch, capsys):
    pictures, names = [], {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(NOTEBOOK.parent)
    monkeypatch.setattr(pyplot, "show", lambda: pictures.append(pyplot.gcf()))
    text = NOTEBOOK.read_text().replace("SMALL = False", "SMALL = True").replace("(100, 50, 1, 12)", "(60, 50, 1, 6)")
    for cell in nbformat.reads(text, as_version=4)["cells"]:
        if cell["cell_type"] == "code":
            exec(cell["source"], names)
    pyplot.close("all")
    assert names["SMALL"] and names["WARM_UP"] == 60
    check(capsys.readouterr().out, len(pictures), fall=2)


def test_what_is_stored_is_of_a_whole_run_and_small():
    notebook = json.loads(NOTEBOOK.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    printed = "".join("".join(output.get("text", "")) for output in outputs)
    check(printed, sum("image/png" in output.get("data", {}) for output in outputs), fall=8)
    assert NOTEBOOK.stat().st_size < 300_000
