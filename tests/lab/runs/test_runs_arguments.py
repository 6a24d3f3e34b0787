"""TRL's YAML and flags, with errors that name the field."""

import os

import pytest
import yaml
from refusals import refused
from trl import GRPOConfig

from dppo.errors import ConfigError
from dppo.lab.runs.parsing import parse_fields, parse_run, read_file, read_flags
from dppo.trl import DPPOConfig

GIVEN = {
    "learning_rate": 1e-5,
    "eval_strategy": "no",
    "reward_funcs": ["format", "accuracy"],
    "run_name": "007",
    "prompt_template": "--{problem}",
    "chat_template_kwargs": "{enable_thinking: false}",
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
    words = [str(path)], ["--config", str(path)], [*as_flags(fields)]
    runs = [*(parse_fields(given, DPPOConfig) for given in (fields, text)), *map(parse_run, words)]
    found = [getattr(run.data if hasattr(run.data, name) else run.training, name) for run in runs]
    assert all(value == found[0] for value in found)
    read = {"chat_template_kwargs": {"enable_thinking": False}}
    assert getattr(found[0], "value", found[0]) == read.get(name, GIVEN[name])


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("max_steps", "many", ["--max_steps", "invalid int value: 'many'"]),
        ("max_steps", [3, 4], ["unknown fields: 4"]),
        ("eval_strategy", False, ["--eval_strategy", "'False'", "quote it, 'no'"]),
        ("chat_template_kwargs", "enable_thinking", ["'enable_thinking' is no mapping"]),
        ("env", "PATH", ["env='PATH'"]),
        ("completion_prune_rat", 0.5, ["--completion_prune_rat", "Did you mean completion_prune_rate?"]),
    ],
)
def test_fields_of_a_wrong_type_are_refused(name, value, named):
    with refused(ConfigError, *named):
        parse_fields({**REQUIRED, name: value}, DPPOConfig)


def test_flags_win_over_a_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**REQUIRED, "completion_prune_rate": 0.5}))
    assert parse_run([str(path), "--completion_prune_rate=0.25"]).training.completion_prune_rate == 0.25
    words = ["--max_steps=4", "--resume", "--eval_benchmarks", "a", "b", "--no_shuffle_dataset"]
    read = {"max_steps": 4, "resume": True, "eval_benchmarks": ["a", "b"], "shuffle_dataset": False}
    assert read_flags(words) == read and read_flags([]) == {}
    with refused(ConfigError, "unknown fields: loose"):
        read_flags(["loose"])


def test_a_field_that_is_given_twice_is_refused(tmp_path):
    """YAML itself takes the last one silently."""
    path = tmp_path / "config.yaml"
    path.write_text("max_steps: 1\noutput_dir: out\nmax_steps: 3\n")
    with refused(ConfigError, "max_steps is there twice", "line 3"):
        parse_run([str(path)])
    path.write_text("r: &r {x: 0}\nfirst:\n  deep: &a\n    <<: *r\n    x: 1\nsecond:\n  <<: *a\n  x: 2\n")
    assert read_file(path)["second"] == {"x": 2}, "what is merged may be given again"


def test_environment_variables_are_set_as_trl_sets_them(monkeypatch):
    monkeypatch.delenv("DPPO_TEST", raising=False)
    parse_fields({**REQUIRED, "env": {"DPPO_TEST": 3}}, DPPOConfig)
    assert os.environ.pop("DPPO_TEST") == "3"


@pytest.mark.parametrize("kind", [DPPOConfig, GRPOConfig])
def test_null_is_no_value_one_word_is_a_list_and_advantages_are_divided_as_trl_reads_it(kind):
    run = parse_fields({**REQUIRED, "eval_benchmark_limit": None, "eval_benchmarks": "math500"}, kind)
    assert run.data.eval_benchmark_limit is None and run.data.eval_benchmarks == ["math500"]
    for given, meant in ((True, "group"), (False, "none"), ("batch", "batch")):
        assert parse_fields({**REQUIRED, "scale_rewards": given}, kind).training.scale_rewards == meant
