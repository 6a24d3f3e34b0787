"""TRL's YAML and flags, with errors that name the field."""

import os

import pytest
import yaml
from refusals import refused
from trl import GRPOConfig

from dppo.errors import ConfigError
from dppo.lab.runs.parsing import build_parser, parse_fields, parse_run, read_file, read_flags
from dppo.trl import DPPOConfig

GIVEN = {
    "learning_rate": 1e-5,
    "beta": 0,
    "eval_strategy": "no",
    "reward_funcs": ["format", "accuracy"],
    "reward_weights": [1, 0.5],
    "run_name": "007",
    "prompt_template": "--{problem}",
    "gradient_checkpointing_kwargs": '{"use_reentrant": false}',
    "chat_template_kwargs": "{enable_thinking: false}",
    "optim_target_modules": "all-linear",
    "report_to": ["tensorboard", "wandb"],
}
REQUIRED = {"dataset_name": "d.jsonl", "output_dir": "out", "use_cpu": True, "bf16": False}


def as_flags(fields):
    """The words of a command line; text that begins with dashes needs an equals sign there."""
    for name, value in fields.items():
        words = [str(part) for part in (value if isinstance(value, list) else [value])]
        yield from [f"--{name}={words[0]}"] if words[0].startswith("--") else [f"--{name}", *words]


@pytest.mark.parametrize("name", GIVEN)
def test_a_value_means_the_same_in_a_file_as_a_flag_and_as_text(name, tmp_path):
    fields = {**REQUIRED, name: GIVEN[name]}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(fields))
    text = {**fields, name: GIVEN[name] if isinstance(GIVEN[name], list) else str(GIVEN[name])}
    runs = [
        parse_fields(fields, DPPOConfig),
        parse_fields(text, DPPOConfig),
        parse_run([str(path)]),
        parse_run(["--config", str(path)]),
        parse_run([*as_flags(fields)]),
    ]
    found = [getattr(run.data if hasattr(run.data, name) else run.training, name) for run in runs]
    assert all(value == found[0] for value in found)
    read = {
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert getattr(found[0], "value", found[0]) == read.get(name, GIVEN[name])


WRONG = [
    ("max_steps", "many", ["--max_steps", "invalid int value: 'many'"]),
    ("max_steps", [3, 4], ["unknown fields: 4"]),
    ("max_steps", {"a": 1}, ["--max_steps", "invalid int value"]),
    ("max_steps", None, ["--max_steps", "invalid int value: 'None'"]),
    ("eval_strategy", False, ["--eval_strategy", "'False'", "quote it, 'no'"]),
    ("chat_template_kwargs", "enable_thinking", ["'enable_thinking' is no mapping"]),
    ("generation_kwargs", 3, ["'3' is no mapping. Write generation_kwargs: {key: value}"]),
    ("env", "PATH", ["env='PATH'"]),
    ("completion_prune_rat", 0.5, ["unknown fields: --completion_prune_rat", "Did you mean completion_prune_rate?"]),
]


@pytest.mark.parametrize(("name", "value", "named"), WRONG)
def test_fields_of_a_wrong_type_are_refused_as_on_the_command_line(name, value, named):
    with refused(ConfigError, *named):
        parse_fields({**REQUIRED, name: value}, DPPOConfig)
    if isinstance(value, str) and name != "env":
        with refused(ConfigError, *named):
            parse_run([*as_flags(REQUIRED), f"--{name}", value])


def test_a_field_that_is_given_twice_is_refused(tmp_path):
    """YAML takes the last, without a word."""
    path = tmp_path / "config.yaml"
    path.write_text("max_steps: 1\noutput_dir: out\nmax_steps: 3\n")
    with refused(ConfigError, "max_steps is there twice", "line 3"):
        parse_run([str(path)])
    path.write_text("r: &r {x: 0}\nfirst:\n  deep: &a\n    <<: *r\n    x: 1\nsecond:\n  <<: *a\n  x: 2\n")
    assert read_file(path)["second"] == {"x": 2}, "what is merged may be given again"


def test_without_types_a_word_would_be_a_number_of_steps():
    """The wrong twin: the library's own way to take a mapping checks names only."""
    _, training, _ = build_parser().parse_dict({**REQUIRED, "save_total_limit": 1.5})
    assert training.save_total_limit == 1.5


def test_null_is_no_value_where_a_field_may_have_none_and_one_word_is_a_list():
    run = parse_fields({**REQUIRED, "eval_benchmark_limit": None, "eval_benchmarks": "math500"}, DPPOConfig)
    assert run.data.eval_benchmark_limit is None and run.data.eval_benchmarks == ["math500"]


def test_only_flags_that_are_given_are_read_and_they_win(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**REQUIRED, "completion_prune_rate": 0.5}))
    assert parse_run([str(path), "--completion_prune_rate=0.25"]).training.completion_prune_rate == 0.25
    assert read_flags([]) == {}
    assert read_flags(["--max_steps=4", "--resume", "--eval_benchmarks", "a", "b", "--no_shuffle_dataset"]) == {
        "max_steps": 4,
        "resume": True,
        "eval_benchmarks": ["a", "b"],
        "shuffle_dataset": False,
    }
    for words, named in (
        ("loose", "unknown fields: loose"),
        ("--nothing 3", "--nothing 3"),
        ("--learning-rte=1", "learning_rate?"),
    ):
        with refused(ConfigError, named):
            read_flags(words.split())


def test_environment_variables_are_set_as_trl_sets_them(monkeypatch):
    monkeypatch.delenv("DPPO_TEST", raising=False)
    parse_fields({**REQUIRED, "env": {"DPPO_TEST": 3}}, DPPOConfig)
    assert os.environ.pop("DPPO_TEST") == "3"


@pytest.mark.parametrize(("given", "meant"), [(True, "group"), (False, "none"), ("batch", "batch")])
def test_advantages_are_divided_or_not_as_trl_reads_it(given, meant, tmp_path):
    assert parse_fields({**REQUIRED, "scale_rewards": given}, DPPOConfig).training.scale_rewards == meant
    assert parse_fields({**REQUIRED, "scale_rewards": given}, GRPOConfig).training.scale_rewards == meant
