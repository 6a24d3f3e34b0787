"""The parts of a run: output folders, data, rewards, dry runs, and a whole small run that resumes."""

import shutil
import socket
from pathlib import Path

import pytest
from refusals import refused, warned
from small_runs import lines_of, small_words, train, write_lines

import answer_judge.errors as judge
from dppo.errors import CheckpointError, ConfigError
from dppo.install import VLLM_LINE
from dppo.lab.runs.data import load_dataset
from dppo.lab.runs.dry_run import dry_run
from dppo.lab.runs.parsing import parse_run
from dppo.lab.runs.parts import output_checkpoint
from dppo.lab.runs.rewards import load_rewards


@pytest.fixture
def problems_file(tmp_path):
    path = tmp_path / "problems.jsonl"
    write_lines(path, [{"problem": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(12)])
    return path


def run_of(tmp_path, dataset, *flags, model="scratch:embedded"):
    return parse_run(small_words(tmp_path / "out", *flags, model=model, dataset=dataset))


def test_output_folder_that_is_not_empty(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "start.unfinished").mkdir()  # killed in its warm-up
    assert output_checkpoint(run_of(tmp_path, "embedded")) is None
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with refused(ConfigError, tmp_path / "out", "Add --overwrite"):
        output_checkpoint(run_of(tmp_path, "embedded"))
    assert output_checkpoint(run_of(tmp_path, "embedded", "--overwrite", "true")) is None
    complete = tmp_path / "out" / "checkpoint-5"
    complete.mkdir()
    (complete / "trainer_state.json").write_text("{}")
    with refused(ConfigError, tmp_path / "out", "--resume", "--overwrite"):
        output_checkpoint(run_of(tmp_path, "embedded"))
    field, elsewhere = "--resume_from_checkpoint", shutil.copytree(complete, tmp_path / "old" / "checkpoint-7")
    for asked in (complete, "true"):
        assert output_checkpoint(run_of(tmp_path, "embedded", field, str(asked))) == complete
    with refused(CheckpointError, "checkpoint-6", complete, "--resume"):
        output_checkpoint(run_of(tmp_path, "embedded", field, str(tmp_path / "out" / "checkpoint-6")))
    assert output_checkpoint(run_of(tmp_path, "embedded", field, str(elsewhere), "--resume", "true")) == complete
    shutil.rmtree(complete)
    assert output_checkpoint(run_of(tmp_path, "embedded", field, str(elsewhere), "--overwrite", "true")) == elsewhere
    with refused(CheckpointError, tmp_path / "out", "--overwrite"):
        output_checkpoint(run_of(tmp_path, "embedded", "--resume", "true"))


@pytest.mark.parametrize("name", ["checkpoint-5", "start"])
def test_the_model_that_a_run_starts_from_is_not_overwritten(tmp_path, name):
    """Weights of an earlier run in the same folder. The wrong twin removes them, and then finds no model."""
    for folder in ("out", "out-2"):
        (tmp_path / folder / name).mkdir(parents=True)
    with refused(ConfigError, tmp_path / "out" / name, "--overwrite", f"--output_dir {tmp_path / 'out'}-2"):
        output_checkpoint(run_of(tmp_path, "embedded", "--overwrite", "true", model=tmp_path / "out" / name))
    elsewhere = run_of(tmp_path, "embedded", "--overwrite", "true", model=tmp_path / "out-2" / name)
    assert output_checkpoint(elsewhere) is None


def test_data_and_rewards_and_the_answers_that_some_need(tmp_path, problems_file):
    run = run_of(tmp_path, problems_file, "--reward_funcs", "accuracy", "format", "dppo.lab.demo.task.score")
    dataset = load_dataset(run)
    assert dataset[0]["prompt"] == [{"role": "user", "content": "What is 0 + 0?"}]
    accuracy, form, own = load_rewards(run, dataset)
    texts = ["\\boxed{4}", "4"]
    assert accuracy(prompts=["", ""], completions=texts, answer=["4", "4"]) == [1.0, 0.0]
    assert form(prompts=["", ""], completions=texts) == [1.0, 0.0]
    assert own(completions=texts, answer=["4", "4"]) == [1.0, 0.0]
    write_lines(problems_file, [{"question": f"What is {i}?", "target": i} for i in range(12)])
    assert len(load_dataset(run_of(tmp_path, problems_file, "--reward_funcs", "format"))) == 12
    with refused(judge.DataError, "Name the one with the answer: answer_column='target'"):
        load_dataset(run_of(tmp_path, problems_file, "--reward_funcs", "format", "accuracy"))


PRIOR = "--prompt_prune_rate auto --prompt_prior"


@pytest.mark.parametrize(
    ("dataset", "flags", "kind", "named"),
    [
        ("embedded", "", "plan", "for 1 process"),
        ("owner/name", "--use_vllm true", "unchecked", VLLM_LINE),
        ("problems.jsonl", "", "ok", "12 problems"),
        ("problems.jsonl", "--per_device_train_batch_size 64", "wrong", "12 prompts are fewer than the 16"),
        ("problems.jsonl", f'{PRIOR} {{"column":"answer","completions":4}}', "wrong", "pass rates are numbers"),
        ("embedded", "--processes 8 --generation_batch_size 160", "wrong", "8 processes"),
    ],
)
@pytest.mark.usefixtures("problems_file")
def test_a_dry_run_says_what_is_fine_wrong_and_unchecked(tmp_path, dataset, flags, kind, named):
    dataset = tmp_path / dataset if dataset.endswith(".jsonl") else dataset
    findings = dry_run(run_of(tmp_path, dataset, *flags.split()))
    assert {found.kind for found in findings if named in found.text} == {kind}
    assert not (tmp_path / "out").exists(), "a dry run writes nothing"


def logged_steps(folder):
    return [row["step"] for row in lines_of(folder / "metrics.jsonl") if "prune/kept_share" in row]


def test_scratch_run_trains_resumes_and_writes_metrics(tmp_path, made_quickly):
    flags = ("--save_steps", "1", "--logging_steps", "1", "--max_steps")
    train(run_of(tmp_path, "embedded", *flags, "2"))
    assert (tmp_path / "out" / "model.safetensors").exists()
    with warned("max_steps: 2 -> 3"):
        resumed = train(run_of(tmp_path, "embedded", *flags, "3", "--resume", "true"))
    assert resumed.state.global_step == 3 and len(made_quickly) == 1
    assert logged_steps(tmp_path / "out") == [1, 2, 3]
    field = ("--resume_from_checkpoint", str(tmp_path / "out" / "checkpoint-2"), "--output_dir", str(tmp_path / "new"))
    with warned("max_steps: 2 -> 3"):
        other = train(run_of(tmp_path, "embedded", *flags, "3", *field))
    assert other.state.global_step == 3 and logged_steps(tmp_path / "new") == [3]


def test_what_a_run_cannot_start_with(tmp_path, problems_file):
    with refused(ConfigError, "processes=2", "--num_processes 2"):
        train(run_of(tmp_path, "embedded", "--processes", "2"))
    with refused(ConfigError, "eval_dataset_name"):
        load_dataset(run_of(tmp_path, problems_file, "--eval_strategy", "steps"), held_out=True)


@pytest.mark.usefixtures("made_quickly")
def test_overwrite_leaves_nothing_of_the_old_run_once_the_new_one_can_begin(tmp_path, untrained):
    """The wrong twin removes it first: a run that cannot begin has then cost the one before."""
    out = tmp_path / "out"
    (out / "checkpoint-9").mkdir(parents=True)
    (out / "start").mkdir()
    (out / "metrics.jsonl").write_text("{}")
    (out / "notes.txt").write_text("mine")
    words = ("--overwrite", "true", "--max_steps", "1")
    lora = ("--use_peft", "true", "--lora_target_modules")
    with refused(ConfigError, "lora_target_modules=q_proj", "not found", "Write lora_target_modules: all-linear"):
        train(run_of(tmp_path, "embedded", *words, *lora, "q_proj", model=untrained))
    assert {path.name for path in out.iterdir()} >= {"checkpoint-9", "start", "metrics.jsonl", "notes.txt"}
    (out / "start" / "old").touch()
    train(run_of(tmp_path, "embedded", *words))
    assert not (out / "checkpoint-9").exists() and (out / "notes.txt").exists()
    assert (out / "metrics.jsonl").read_text() != "{}"
    assert [(out / "start" / name).exists() for name in ("config.json", "old")] == [True, False], "made anew"


@pytest.mark.usefixtures("confined")
def test_programs_and_checkers_as_rewards(tmp_path, capsys, monkeypatch):
    here = Path(__file__).parents[3] / "answer-judge" / "tests" / "problems"
    monkeypatch.syspath_prepend(str(here))
    run = run_of(tmp_path, here / "code_mbpp.jsonl", "--reward_funcs", "code_tests", "--program_memory_mb", "300")
    run.training.generation_batch_size = 4
    (tests,) = load_rewards(run, dataset := load_dataset(run))
    assert "dppo | programs run with " in capsys.readouterr().out and tests.sandbox.limits.memory_mb == 300
    program = "```python\ndef sum(a, b):\n    return a + b\n```"
    assert tests(prompts=[""], completions=[program], answer=[dataset["answer"][1]]) == [1.0]
    path = tmp_path / "own.jsonl"
    write_lines(path, [{"question": f"Say w{i}.", "word": f"w{i}"} for i in range(4)])
    run = run_of(tmp_path, path, "--reward_funcs", "check:own_checkers:says", "format")
    says, *_ = load_rewards(run, dataset := load_dataset(run))
    assert says(prompts=dataset["prompt"], completions=["w0"] * 4, word=dataset["word"]) == [1.0, 0.0, 0.0, 0.0]
    run.data.reward_funcs = ["check:own_checkers:nowhere"]
    with refused(judge.ConfigError, "check:own_checkers:nowhere", "AttributeError"):
        load_rewards(run, None)


@pytest.mark.parametrize("more", [["--resume"], ["--overwrite"]], ids=" ".join)
def test_a_second_writer_is_refused_and_changes_nothing(tmp_path, holder, more):
    (tmp_path / "out" / "checkpoint-1").mkdir()
    (tmp_path / "out" / "checkpoint-1" / "trainer_state.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    with refused(ConfigError, f"process {holder.pid} on {socket.gethostname()} since", f"output_dir: {tmp_path}"):
        train(run_of(tmp_path, "embedded", *more))
    assert sorted(tmp_path.rglob("*")) == before
