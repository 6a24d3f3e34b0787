"""What a comparison is made of, what it refuses, and what it finds in a folder."""

import pytest
import yaml
from refusals import refused
from small_runs import EMBEDDED, SMALL

from dppo.errors import ConfigError, FileError
from dppo.lab.comparison.curves import RESULTS_FILE
from dppo.lab.comparison.plan import check_folder, open_folder, plan
from dppo.methods import METHODS

FIELDS = {
    **SMALL,
    **EMBEDDED,
    "model_name_or_path": "scratch:embedded_quick",
    "method": "dppo",
    "completion_prune_rate": 0.5,
    "prompt_prune_rate": 0.3,
    "max_steps": 2,
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
    assert biased == {"grpo": False, "cppo": True, "dppo": False}


def test_papers_keep_their_scores_and_their_losses(config):
    """A score set for ours would rewrite a paper's rule, and a method that stands for a loss brings it."""
    names = ["trl", "dppo", "cppo", "pods", "dppo_threshold", "dapo", "gspo"]
    comparison = plan(config(completion_score="advantage", loss_type="dr_grpo"), methods=names)
    runs = comparison.check()
    methods = {name: runs[name].training.build_method() for name in names[1:]}
    assert methods["dppo"].score_name == "absolute advantage"
    for name in ("cppo", "pods"):
        assert methods[name].completions.score is METHODS[name].completions.score
    losses = [runs[name].training.loss_type for name in ("trl", "dppo", "dapo", "gspo")]
    assert losses == ["dr_grpo", "dr_grpo", "dapo", "grpo"]


def test_flags_win_over_the_file_and_a_contestants_own_fields_over_both(config):
    own = block(slow={"method": "grpo", "learning_rate": 1e-5})
    comparison = plan(config(**own), ["--learning_rate", "3e-4", "--max_steps=4"], methods=["slow", "grpo"])
    slow, grpo = (each.parse(comparison.fields(each, 7)).training for each in comparison.contestants)
    assert (slow.learning_rate, grpo.learning_rate, slow.max_steps) == (1e-5, 3e-4, 4)


def block(**methods):
    return {"compare": {"methods": methods}}


@pytest.mark.parametrize(
    ("changes", "settings", "named"),
    [
        ({}, {"methods": ["dpppo"]}, ("'dpppo'", "Did you mean dppo?", "trl, grpo")),
        ({}, {"methods": []}, ("--methods",)),
        (block(half={"completion_prune_rate": 0.5}), {}, ("half has no method", "half: {method: dppo}")),
        (block(mine={"method": "cpo"}), {}, ("'cpo' of mine", "cppo")),
        (block(a={"method": "grpo", "dataset_name": "x"}), {}, ("a:", "dataset_name")),
        (block(a={"method": "trl", "prune_floor": 0.2}), {}, ("a:", "prune_floor", "method: grpo")),
        (block(**{"a/b": {"method": "trl"}}), {}, ("'a/b'",)),
        ({"compare": {"method": {}}}, {}, ("compare:", "'method'", "{methods:")),
        ({}, {"seeds": 0}, ("--seeds 0", "--seeds 5")),
        ({}, {"seconds": 0.0}, ("--cpu_seconds 0.0", "--cpu_seconds 60")),
        ({}, {"target": 1.5}, ("--target 1.5", "--target 0.8")),
        ({}, {"flags": ["--dry_run"]}, ("dry_run", "dppo train")),
    ],
)
def test_what_is_wrong_is_named(config, changes, settings, named):
    with refused(ConfigError, *named):
        plan(config(**changes), **settings)


def test_folders_that_are_something_else(config):
    comparison = plan(config())
    comparison.folder.mkdir()
    (comparison.folder / "notes.txt").write_text("mine")
    with refused(ConfigError, comparison.folder, "--output_dir"):
        check_folder(comparison.folder)
    (comparison.folder / "comparison.json").write_text('{"format": 9}')
    with refused(FileError, "comparison.json"):
        open_folder(comparison, overwrite=False)


def test_changed_fields_are_refused_by_name_and_only_those_runs_go(config):
    """More seeds are no change, nor a value that is written otherwise: YAML reads ``1e-5`` as text."""
    same = {"learning_rate": "1e-5", "reward_funcs": "embedded"}
    comparison = plan(config(**same), methods=["grpo", "dppo"])
    open_folder(comparison, overwrite=False)
    folders = [comparison.run_folder(contestant, seed) for seed, contestant in comparison.order()]
    for folder, (seed, contestant) in zip(folders, comparison.order(), strict=True):  # as the runner begins them
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(comparison.fields(contestant, seed)))
    same = {"learning_rate": 1e-5, "reward_funcs": ["embedded"]}
    open_folder(plan(config(**same), methods=["grpo", "dppo", "trl"], seeds=5), overwrite=False)
    changed = plan(config(**same, **block(grpo={"method": "grpo", "learning_rate": 1e-4}, dppo={})))
    with refused(ConfigError, "runs/grpo/seed_7: learning_rate", "--overwrite"):
        open_folder(changed, overwrite=False)
    assert all(folder.exists() for folder in folders)
    results = comparison.folder / RESULTS_FILE
    results.write_text("{}")
    open_folder(comparison, overwrite=True)
    assert results.exists(), "nothing changed"
    open_folder(changed, overwrite=True)
    assert not results.exists(), "it is of the runs that are gone, too"
    assert [folder.exists() for folder in folders] == ["dppo" in str(folder) for folder in folders]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_take_part(config, name):
    """Fields that all share, of an objective too, are kept from methods that have their own; so are values."""
    shared = {"loss_type": "dr_grpo", "scale_rewards": "none", "beta": 0.0, "prompt_values": "of_{seed}.jsonl"}
    comparison = plan(config(**shared), methods=[name, "trl"])
    run, stock = (each.parse(comparison.fields(each, 8)) for each in comparison.contestants)
    assert stock.training.loss_type == "dr_grpo" and run.training.build_method().name == METHODS[name].name
    rule = METHODS[name].advantages
    assert run.training.prompt_values == ("of_8.jsonl" if rule.from_values or rule.from_history else None)
