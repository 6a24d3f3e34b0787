"""TRL's YAML and flags, with errors that name the field."""

from pathlib import Path

import pytest

from dppo.comparison.contestants import choose
from dppo.comparison.plan import read_config
from dppo.errors import ConfigError
from dppo.launch import build_parser, parse_run

EXAMPLES = Path(__file__).parents[2] / "examples"
CPU = "use_cpu: true\nbf16: false\nreport_to: none\n"


def config(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(f"model_name_or_path: m\ndataset_name: d.jsonl\noutput_dir: {tmp_path / 'out'}\n{CPU}{text}")
    return str(path)


def test_flags_win_over_the_file(tmp_path):
    path = config(tmp_path, "completion_prune_rate: 0.25\nlearning_rate: 1e-5\nnum_generations: 4\n")
    run = parse_run([path, "--completion_prune_rate", "0.75", "--dry_run", "true"])
    assert run.training.completion_prune_rate == 0.75
    assert run.training.learning_rate == 1e-5 and run.training.num_generations == 4
    assert run.data.dry_run and run.model.model_name_or_path == "m"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("completion_prune_rat: 0.5\n", "completion_prune_rat"),
        ("completion_prune_rate: 1.5\n", r"completion_prune_rate=1\.5 must be in \[0, 1\)"),
        ("reward_workers: 0\n", "reward_workers=0 must be greater than 0"),
        ("num_generations: 1\n", "at least 2"),
        ("loss_type: luspo\n", "loss_type='luspo' is not served"),
    ],
)
def test_bad_fields_are_named(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        parse_run([config(tmp_path, text)])


def test_text_that_is_not_yaml(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("a: [1, 2\nb: }")
    with pytest.raises(ConfigError, match="the configuration is not YAML"):
        parse_run([str(path)])


def test_flags_with_an_equals_sign(tmp_path):
    assert parse_run([config(tmp_path, ""), "--completion_prune_rate=0.25"]).training.completion_prune_rate == 0.25


def test_missing_file_and_missing_dataset(tmp_path):
    with pytest.raises(ConfigError, match=r"no configuration file .*nothing\.yaml"):
        parse_run([str(tmp_path / "nothing.yaml")])
    with pytest.raises(ConfigError, match="dataset_name is not set"):
        parse_run(["--output_dir", str(tmp_path), "--use_cpu", "true", "--bf16", "false"])


def test_help_has_ours_first():
    text = build_parser().format_help()
    ours, theirs = text.index("--completion_prune_rate"), text.index("--num_generations")
    assert text.index("--dataset_name") < ours < theirs
    assert text.count("--completion_prune_rate COMPLETION_PRUNE_RATE") == 1


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_example_parses(path, tmp_path):
    if path.stem == "fsdp2":
        pytest.skip("a configuration of accelerate")
    fields, contestants = read_config(path)
    assert fields["method"] == "dppo" and bool(contestants) == (path.stem == "embedded_compare")
    if contestants:
        for contestant in choose(None, contestants, fields):
            assert contestant.parse(contestant.fields(fields, 0, tmp_path / "out")).training.seed == 0
    else:
        run = parse_run([str(path), "--output_dir", str(tmp_path / "out"), "--dry_run", "true"])
        assert run.training.method == "dppo"
