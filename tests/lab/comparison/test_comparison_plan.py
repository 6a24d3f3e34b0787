"""What a comparison is made of, what it refuses, and what it finds in a folder."""

import json

import pytest
import yaml
from refusals import refused

from answer_judge.errors import FileError
from dppo.errors import ConfigError
from dppo.methods import METHODS
from dppo_lab.comparison.contestants import Contestant
from dppo_lab.comparison.plan import changes, open_folder, plan

FIELDS = {
    "model_name_or_path": "scratch:embedded_quick",
    "dataset_name": "embedded_quick",
    "eval_benchmarks": ["embedded_quick"],
    "rollout_func": "embedded",
    "method": "dppo",
    "completion_prune_rate": 0.5,
    "prompt_prune_rate": 0.3,
    "num_generations": 4,
    "per_device_train_batch_size": 16,
    "max_steps": 2,
    "use_cpu": True,
    "bf16": False,
    "seed": 7,
}


@pytest.fixture
def config(tmp_path):
    def write(**changes):
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({**FIELDS, "output_dir": str(tmp_path / "out"), **changes}))
        return path

    return write


def test_names_seeds_and_order(config):
    given = block(half={"method": "grpo", "per_device_train_batch_size": 8}, trl={})
    comparison = plan(config(**given), methods=["trl", "dppo", "half"], seeds=3)
    assert comparison.seeds == (7, 8, 9) and comparison.baseline == "trl"
    order = [(seed, each.name) for seed, each in comparison.order()]
    assert order[:3] == [(7, "dppo"), (7, "half"), (7, "trl")]
    assert [name for _, name in order[3:]] == ["half", "trl", "dppo", "trl", "dppo", "half"]
    assert [each.name for each in plan(config(**given)).contestants] == ["half", "trl"]
    assert [each.name for each in plan(config()).contestants] == ["trl", "grpo", "dppo"]
    assert plan(config(), methods=["dppo", "grpo"]).baseline == "dppo"


def test_what_each_is_given(config):
    comparison = plan(config(), methods=["trl", "grpo", "cppo", "dppo"])
    trl, grpo, cppo, dppo = (comparison.fields(each, 8) for each in comparison.contestants)
    assert not {"method", "completion_prune_rate", "prompt_prune_rate", "accept_bias"} & trl.keys()
    assert "completion_prune_rate" not in grpo and grpo["method"] == "grpo"
    assert cppo["completion_prune_rate"] == 0.5 and "prompt_prune_rate" not in cppo and cppo["accept_bias"]
    assert (dppo["completion_prune_rate"], dppo["prompt_prune_rate"]) == (0.5, 0.3)
    assert {fields["seed"] for fields in (trl, grpo, cppo, dppo)} == {8}
    assert all(fields["model_name_or_path"].endswith("starts/seed_8") for fields in (trl, grpo, cppo, dppo))
    runs = comparison.check()
    assert type(runs["trl"].training).__name__ == "GRPOConfig"
    biased = {name: bool(run.training.build_method().biases()) for name, run in runs.items() if name != "trl"}
    assert biased == {"grpo": False, "cppo": True, "dppo": True}


def test_papers_keep_their_scores_and_their_losses(config):
    """A score set for ours would rewrite a paper's rule, and a method that stands for a loss brings it."""
    names = ["trl", "dppo", "cppo", "pods", "dppo_threshold", "dapo", "gspo"]
    comparison = plan(config(completion_score="advantage", loss_type="dr_grpo"), methods=names)
    runs = comparison.check()
    methods = {name: runs[name].training.build_method() for name in names[1:]}
    assert methods["dppo"].score_name == "absolute advantage"
    assert methods["cppo"].completions.score is METHODS["cppo"].completions.score
    assert methods["pods"].completions.score is METHODS["pods"].completions.score
    losses = [runs[name].training.loss_type for name in ("trl", "dppo", "dapo", "gspo")]
    assert losses == ["dr_grpo", "dr_grpo", "dapo", "grpo"]


def test_a_loss_that_says_nothing_of_a_method_is_left_out_for_it(config):
    names = ["trl", "grpo", "divergence_ppo_tv"]
    shared = {"loss_type": "sapo", "delta": 2.0, "off_policy_mask_threshold": 0.1}
    comparison = plan(config(**shared), methods=names)
    left_out = {each.name: set(each.left_out(shared)) for each in comparison.contestants}
    assert left_out == {"trl": set(), "grpo": set(), "divergence_ppo_tv": set(shared)}
    runs = comparison.check()
    assert [runs[name].training.loss_type for name in names] == ["sapo", "sapo", "dapo"]
    denominator = comparison.contestants[2].left_out({"loss_type": "dr_grpo"})
    assert denominator == [], "it leaves the denominator to the run"


def test_flags_win_over_the_file_and_a_contestants_own_fields_over_both(config):
    given = block(slow={"method": "grpo", "learning_rate": 1e-5})
    words = ["--learning_rate", "3e-4", "--max_steps=4", "--reward_funcs", "embedded"]
    comparison = plan(config(**given), words, methods=["slow", "grpo"])
    slow, grpo = (each.parse(comparison.fields(each, 7)) for each in comparison.contestants)
    assert (slow.training.learning_rate, grpo.training.learning_rate) == (1e-5, 3e-4)
    assert slow.training.max_steps == 4 and slow.data.reward_funcs == ["embedded"]


def test_the_seed_in_a_path(config):
    comparison = plan(config(model_name_or_path="models/{seed}", dataset_path="data/{seed}.jsonl"), methods=["grpo"])
    fields = comparison.fields(comparison.contestants[0], 9)
    assert (fields["model_name_or_path"], fields["dataset_path"]) == ("models/9", "data/9.jsonl")


def block(**methods):
    return {"compare": {"methods": methods}}


@pytest.mark.parametrize(
    ("changes", "settings", "named"),
    [
        ({}, {"methods": ["dpppo"]}, ("'dpppo'", "Did you mean dppo?", "trl, grpo")),
        ({}, {"methods": ["qqq"]}, ("'qqq'", "trl, grpo")),
        ({}, {"methods": ["grpo", "grpo"]}, ("grpo twice",)),
        ({}, {"methods": []}, ("--methods",)),
        (block(mine={"method": "cpo"}), {}, ("'cpo' of mine", "cppo")),
        (block(a={"method": "grpo", "dataset_name": "x"}), {}, ("a:", "dataset_name")),
        (block(a={"method": "grpo", "seed": 3}), {}, ("a:", "seed")),
        (block(a={"method": "trl", "prune_floor": 0.2}), {}, ("a:", "prune_floor", "method: grpo")),
        (block(**{"a/b": {"method": "trl"}}), {}, ("'a/b'",)),
        (block(a=3), {}, ("a: 3", "a: {}")),
        ({"compare": {"method": {}}}, {}, ("compare:", "'method'", "{methods:")),
        ({"compare": [1]}, {}, ("compare:", "[1]")),
        ({}, {"seeds": 0}, ("--seeds 0", "--seeds 5")),
        ({}, {"target": 1.5}, ("--target 1.5", "--target 0.8")),
        ({"output_dir": None}, {}, ("output_dir",)),
        ({"seed": "x"}, {}, ("seed='x'", "seed: 0")),
        ({}, {"flags": ["loose"]}, ("'loose'",)),
        ({}, {"flags": ["--dry_run"]}, ("dry_run", "dppo train")),
    ],
)
def test_what_is_wrong_is_named(config, changes, settings, named):
    with refused(ConfigError, *named):
        plan(config(**changes), **settings)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (block(mine={"method": "grpo", "completion_prune_rate": 0.5}), ("mine:", "completion_prune_rate=0.5")),
        ({"eval_benchmarks": None}, ("eval_benchmarks: [embedded]",)),
    ],
)
def test_what_the_check_of_the_runs_finds(config, changes, named):
    with refused(ConfigError, *named):
        plan(config(**changes)).check()


def test_files_that_are_wrong(tmp_path):
    with refused(ConfigError, "none.yaml"):
        plan(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1")
    with refused(ConfigError, "bad.yaml", "YAML"):
        plan(tmp_path / "bad.yaml")


def made(comparison, seed, contestant):
    """A run's folder as the runner begins it."""
    folder = comparison.run_folder(contestant, seed)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(comparison.fields(contestant, seed)))
    return folder


def test_folders_that_are_something_else(tmp_path, config):
    comparison = plan(config())
    comparison.folder.mkdir()
    (comparison.folder / "notes.txt").write_text("mine")
    with refused(ConfigError, comparison.folder, "--output_dir"):
        open_folder(comparison, overwrite=True)
    (comparison.folder / "comparison.json").write_text("{")
    with refused(FileError, "comparison.json"):
        open_folder(comparison, overwrite=False)
    (comparison.folder / "comparison.json").write_text('{"format": 9}')
    with refused(FileError, "comparison.json"):
        open_folder(comparison, overwrite=False)


def test_changed_fields_are_refused_by_name_and_only_those_runs_go(config):
    comparison = plan(config(), methods=["grpo", "dppo"])
    open_folder(comparison, overwrite=False)
    folders = [made(comparison, *run) for run in comparison.order()]
    open_folder(plan(config(), methods=["grpo", "dppo", "trl"], seeds=5), overwrite=False)  # more is no change
    changed = plan(config(**block(grpo={"method": "grpo", "learning_rate": 1e-5}, dppo={})))
    with refused(ConfigError, "(grpo: learning_rate)", "--overwrite"):
        open_folder(changed, overwrite=False)
    assert all(folder.exists() for folder in folders)
    open_folder(changed, overwrite=True)
    assert [folder.exists() for folder in folders] == ["dppo" in str(folder) for folder in folders]


def test_another_start_takes_the_starts_along(config):
    comparison = plan(config(), methods=["grpo"])
    open_folder(comparison, overwrite=False)
    made(comparison, *comparison.order()[0])
    comparison.start_folder(7).mkdir(parents=True)
    other = plan(config(model_name_or_path="scratch:embedded"), methods=["grpo"])
    with refused(ConfigError, "the task: model_name_or_path"):
        open_folder(other, overwrite=False)
    open_folder(other, overwrite=True)
    assert not (comparison.folder / "starts").exists() and not (comparison.folder / "runs").exists()


def test_a_damaged_run_folder(config):
    comparison = plan(config(), methods=["grpo"])
    folder = made(comparison, *comparison.order()[0])
    (folder / "config.yaml").write_text("just words")
    with refused(ConfigError, folder, "damaged", "Remove it"):
        changes(comparison, {})
    record = comparison.as_json()
    assert json.loads(json.dumps(record)) == record


def test_fields_that_only_some_methods_take_are_left_out_for_the_others():
    """A shared prior of difficulty and rates that are chosen must not stop a comparison with GRPO or CPPO."""
    shared = {"difficulty_features": "length", "completion_prune_rate": "auto", "prompt_prune_rate": "auto"}
    left = {
        name: Contestant(name=name, method=name, overrides={}).left_out(shared)
        for name in ("grpo", "cppo", "dppo", "dppo_history")
    }
    assert left["dppo_history"] == [] and left["dppo"] == ["difficulty_features"]
    assert {"difficulty_features", "completion_prune_rate"} <= set(left["cppo"]) and left["grpo"] == sorted(shared)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_take_part(config, name):
    """Fields that all share, of an objective too, are kept from methods that have their own; so are values."""
    shared = {"loss_type": "dr_grpo", "scale_rewards": "none", "beta": 0.0, "prompt_values": "of_{seed}.jsonl"}
    comparison = plan(config(**shared), methods=[name, "trl"])
    run, stock = (each.parse(comparison.fields(each, 8)) for each in comparison.contestants)
    assert stock.training.loss_type == "dr_grpo" and run.training.build_method().name == METHODS[name].name
    rule = METHODS[name].advantages
    assert run.training.prompt_values == ("of_8.jsonl" if rule.from_values or rule.from_history else None)


def test_values_that_are_not_named_are_asked_for(config):
    comparison = plan(config(), methods=["dppo_a_star_po"])
    with refused(ConfigError, "dppo_a_star_po:", "prompt_values: FILE"):
        comparison.contestants[0].parse(comparison.fields(comparison.contestants[0], 7))
