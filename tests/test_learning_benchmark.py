"""The comparison of methods that learn: which settings are tried and chosen, and what its tables say of runs."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import run_folders
import yaml
from learning_records import POINT, REGIME, SEEDS, SLOPES, recorded

from benchmarks.learning import map, points, regimes, tune
from benchmarks.learning.pooled import pooled
from benchmarks.learning.tune import Setting, Tuning, best_setting, overrides
from dppo.errors import ConfigError
from dppo_lab.comparison.curves import AMOUNTS
from dppo_lab.comparison.plan import plan, read_config
from dppo_lab.comparison.results import RunResult

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "benchmarks" / "learning" / "embedded.yaml"
GRID = [
    Setting(learning_rate=rate, completions=size, group=group)
    for rate in (2e-4, 4e-4)
    for size in (32, 64, 128)
    for group in (2, 4, 8)
]


def test_a_setting_becomes_fields():
    """By hand: 64 completions are 16 prompts of 4, and 0.7 of them 11; 50 steps with 12 evaluations, one every 5."""
    assert tune.steps_in(20, 0.4) == 50 and tune.steps_in(1.0, 100.0) == 2
    own = overrides({"method": "grpo", "groups": [4], "scale_rewards": "none"}, POINT, 50, 12)
    assert own == {"per_device_train_batch_size": 64, "num_generations": 4, "learning_rate": 4e-4, "max_steps": 50,
                   "eval_benchmark_every": 5, "scale_rewards": "none"}  # fmt: skip
    assert overrides({"prompts": 0.7}, POINT, 10, 12)["per_device_train_batch_size"] == 44


def near(best):
    """Accuracy that falls with every factor of two from a setting."""
    axes = ("group", *tune.AXES)
    return lambda each: 0.8 - 0.05 * sum(abs(math.log2(getattr(each, a) / getattr(best, a))) for a in axes)


def searched(accuracy, *, most_prompts=192, grid=GRID):
    """The best setting, and what was asked for in each of two rounds; ``accuracy(setting, round)`` may be None."""
    asked = ([], [])

    def reached(settings, number):
        asked[number].extend(settings)
        return {each: value for each in settings if (value := accuracy(each, number)) is not None}

    return best_setting(grid, [3], reached, most_prompts), asked


def test_the_best_three_get_to_the_second_round_and_its_best_is_chosen():
    best = Setting(learning_rate=2e-4, completions=64, group=2)
    found, (first, second) = searched(lambda each, number: near(best)(each))
    assert found == best and first == GRID
    # Three, and one with half the learning rate: the best is at that end.
    assert len(second) == 4 and second[-1] == replace(best, learning_rate=1e-4)


def test_what_a_later_seed_shows_is_what_counts():
    """The wrong twin chooses by the first round, where another setting was lucky."""
    lucky = replace(POINT, completions=32)
    accuracy = lambda each, number: 0.9 if (each, number) == (lucky, 0) else near(POINT)(each)  # noqa: E731
    assert max(GRID, key=lambda each: accuracy(each, 0)) == lucky
    assert searched(accuracy)[0] == POINT


@pytest.mark.parametrize(("axis", "ends"), [("learning_rate", (1e-4, 5e-5, 8e-4)), ("completions", (16, 128, 256))])
def test_the_grid_grows_where_its_best_is_at_an_end(axis, ends):
    for value in ends:
        best = replace(POINT, **{axis: value})
        found, (_, second) = searched(lambda each, number, best=best: near(best)(each))
        assert found == best and len(second) < 3 + 8, "and by no more than it must"


def test_what_has_one_value_is_fixed():
    best = replace(POINT, learning_rate=8e-4, completions=256)
    found, (_, second) = searched(
        lambda each, number: near(best)(each), grid=[each for each in GRID if each.completions == 64]
    )
    assert found == replace(best, completions=64) and {each.completions for each in second} == {64}


class Told(Tuning):
    """A tuning whose runs are not trained: seconds of a step by method, accuracy by setting."""

    paces = {"trl": 0.8, "trl_g8": 0.8}  # noqa: RUF012

    def seconds_per_step(self, name, setting, steps, seeds, kind):
        return self.paces.get(name, 0.2)

    def run(self, name, run, fields, seeds):
        self.steps = {**getattr(self, "steps", {}), (name, tuple(seeds)): fields["max_steps"]}
        group, size = fields["num_generations"], fields["per_device_train_batch_size"]
        accuracy = near(POINT)(Setting(learning_rate=fields["learning_rate"], completions=size, group=group))
        end = type("Point", (), {"accuracy": accuracy})
        return [type("Run", (), {"finished": True, "curve": [end]}) for _ in seeds]


def test_the_file_tunes_every_method_to_equal_seconds_and_not_equal_steps(tmp_path):
    fields, _ = read_config(CONFIG)
    block, folder = fields.pop("tune"), Path(fields.pop("output_dir"))
    tuning = Told(fields, block, folder)
    methods = tuning.tuned(list(tuning.methods))
    assert tuning.steps["trl", (100,)] == 19 and tuning.steps["dppo", (100,)] == 75, "15 s each"
    assert methods["trl"]["max_steps"] == 75 and methods["dppo"]["max_steps"] == 300, "60 s each"
    assert methods["trl_g8"]["num_generations"] == 8 and methods["trl"]["num_generations"] == 4
    assert methods["fewer_prompts"]["per_device_train_batch_size"] == 44
    assert methods["dppo_default"]["completion_prune_rate"] == "auto"
    seeds = [*(seed for each in block["rounds"] for seed in each["seeds"]), *block["pilot_seeds"]]
    of_tuning = {*seeds}
    assert len(of_tuning) == len(seeds) and not of_tuning & {*range(block["seed"], block["seed"] + 10)}
    written = tmp_path / "tuned.yaml"
    whole = {**fields, "output_dir": str(tmp_path / "runs"), "seed": 10, "compare": {"methods": methods}}
    written.write_text(yaml.safe_dump(whole))
    assert plan(written).check().keys() == methods.keys() == block["methods"].keys()


def test_steps_of_another_method_are_taken_over_and_other_steps_come_from_pilots():
    """At 0.2 s a step 60 s are 300 steps; twice the prompts for as many steps as the control."""
    fields, _ = read_config(regimes.CONFIG)
    tuning = Told(fields, fields.pop("tune"), Path(fields.pop("output_dir")))
    tuning.paces = {"control": 0.4}
    methods = tuning.tuned(["control", "default", *regimes.SAME_STEPS])
    assert {name: found["max_steps"] for name, found in methods.items()} == {
        "control": 150, "default": 300, **dict.fromkeys(regimes.SAME_STEPS, 150),
    }  # fmt: skip
    assert (
        methods["twice_same_steps"]["per_device_train_batch_size"] == 128 and methods["same_steps"]["method"] == "dppo"
    )
    with pytest.raises(ConfigError, match="write --methods control,same_steps"):
        tuning.tuned(["same_steps"])


def test_a_pace_is_the_mean_over_its_seeds(tmp_path):
    """By hand: 10 and 30 s for the last 16 of 20 steps."""
    tuning = Tuning({}, {"methods": {"control": {}}, "rounds": [], "pilot_seeds": [3, 4]}, tmp_path)
    for seed, seconds in ((3, 10), (4, 30)):
        points = [(step, max(0, step - 4) * seconds / 16, step, 0.5) for step in range(21)]
        place = tmp_path / "runs" / "control-g4-c64-0.0004-pilot" / f"seed_{seed}"
        run_folders.write_run(place, points, method="control", seed=seed, updates=20)
    tuning.run = lambda name, run, fields, seeds: [
        RunResult(seed=seed, status="finished", curve=(None,)) for seed in seeds
    ]
    assert tuning.seconds_per_step("control", POINT, 20, [3, 4], "pilot") == pytest.approx(20 / 16)


def test_every_figure_by_hand(tmp_path):
    """To where trl_g8 ends it takes 80 s, dppo half of its 40 s, grpo_rows 48 s; dppo missed it once, at 40 s."""
    opponents = ["trl_g8", "grpo_rows"]
    record = recorded(tmp_path, SLOPES, SEEDS, "dppo", opponents, opponents)
    assert record["targets"]["trl_g8"]["per_seed"]["10"] == pytest.approx(0.5)
    found = record["best_against"]["trl_g8"]["trl_g8"]
    assert found["median"] == found["low"] == pytest.approx(80 / 20) and found["reached"] == "9 of 10"
    assert found["missed"] == {"method": 1, "baseline": 0, "both": 0}
    # The wrong twins: left out, the mean ratio is 4; as if it had arrived, seed 14's ratio is 2, and known.
    assert found["per_seed"]["14"] == [0, 2]
    assert found["rollouts"]["median"] == found["tokens_trained"]["median"] == pytest.approx(4)
    # To .7 dppo takes 33.3 s, trl_g8 never gets there in its 80.
    beyond = record["best_against"]["trl_g8"]["grpo_rows"]
    assert beyond["median"] == pytest.approx(80 / (40 * 5 / 6)) and beyond["at_most"] is None
    assert record["best_against"]["grpo_rows"]["trl_g8"]["median"] == pytest.approx(48 / 20)
    spent = record["to_target"]["trl_g8"]
    assert spent["dppo"]["rollout_tokens"]["median"] == pytest.approx(40_000)
    assert spent["dapo"]["reached"] == "0 of 10" and spent["dapo"]["seconds"]["median"] is None
    json.dumps(record, allow_nan=False)


def test_methods_that_are_not_run_again_stay_in_the_file():
    known = {"seeds": 5, "against_trl_g8": {"median": 4.0}} | {
        part: {"cppo": 1, "default": 1} for part in points.PER_METHOD
    }
    found = points.merged(known, {"seeds": 10} | {part: {"default": 2} for part in points.PER_METHOD})
    assert found["seeds"] == 10 and found["against_trl_g8"] == {"median": 4.0}
    assert all(found[part] == {"cppo": 1, "default": 2} for part in points.PER_METHOD)


def test_a_regime_by_hand(tmp_path):
    """To the control's .7, its 80 s, the default takes 33.3 s of its 40; a step takes .8, .4 and .2 s."""
    record = recorded(tmp_path / "reported", REGIME, SEEDS[:3], "default", ["trl_g8", "control"], ["control", "trl_g8"])
    chosen = {name: points.logged(tmp_path, record["seeds"], name) for name in (points.CONTROL, "default")}
    assert chosen == {"control": {"silent_share": 0.25}, "default": {"silent_share": 0.9, "completion_rate": 0.6}}
    same = regimes.SAME_STEPS[0]
    beside = {points.CONTROL: record["methods"]["control"], same: record["methods"]["default"]}
    record["at_same_steps"] = {name: found | {"against_control": {"median": 2.4}} for name, found in beside.items()}
    point = points.point(record, chosen)
    assert point["at_same_steps"][same]["step_ratio"]["mean"] == pytest.approx(2.0) and point["chosen"] == chosen
    assert point["at_same_steps"][same]["against_control"]["median"] == 2.4
    assert point["at_same_steps"][same]["control"]["chosen"] == chosen[points.CONTROL]
    # To .7 the control takes all of its 100 steps, the default 5/6 of its own.
    assert point["at_same_steps"][same]["pooled"]["ratio"] == pytest.approx(6 / 5)
    beside = points.beside_stock(record, "default", chosen)
    assert [beside["against_trl_g8"]["median"], beside["pooled"]["ratio"]] == pytest.approx([80 / 20] * 2)
    assert beside["seconds"]["mean"] == pytest.approx(0.5) and beside["chosen"] == chosen["default"]
    # At TRL's 50 steps, half of their own: .5 and .45.
    assert point["at_same_steps"][same]["difference"]["mean"] == pytest.approx(0.05)
    assert {name: found["mean"] for name, found in point["seconds"].items()} == {
        "control": 1, "default": 0.5, "tokens": 0.5, "trl_g8": 1,
    }  # fmt: skip
    assert point["against_control"]["median"] == pytest.approx(80 / (40 * 5 / 6))
    assert point["against_trl_g8"]["median"] == pytest.approx(80 / 20)
    assert point["planning_share"][points.CONTROL] == pytest.approx(1 / 30)
    assert point["step_share"] == pytest.approx(1 / 3) and point["silent_share"] == 0.25 and point["seeds"] == 3
    assert [point["step_ratio"][name]["mean"] for name in ("default", "tokens")] == pytest.approx([2.0, 4.0])
    # At the 40 s of the default the control has gained half of its .5.
    assert point["equal_seconds"]["default"]["difference"]["mean"] == pytest.approx(0.6 - 0.25)
    assert "| kl | 33% | 25% | 2.00 [2.00, 2.00] | 2.40 [2.40, 2.40] | 4.00 [4.00, 4.00] |" in regimes.summary(
        {"kl": point}
    )
    assert json.dumps(point, allow_nan=False)


def test_methods_whose_seconds_are_not_the_controls_get_other_steps(tmp_path):
    """The default takes 40 of the control's 80 s, so twice its 100 steps; TRL 82 s, which is near."""
    slopes = {**REGIME, "trl_g8": (0.3, 82, 50)}
    methods = recorded(tmp_path / "reported", slopes, SEEDS[:3], "default", ["control"], ["control"])["methods"]
    assert regimes.corrected(methods) == {"default": 200, "tokens": 200}


def test_steps_that_are_given_stand_in_place_of_what_pilots_say():
    fields, _ = read_config(CONFIG)
    block = fields.pop("tune")
    given = tune.given_steps(["dppo_default=200", "trl_g8=40"], block["methods"])
    assert given == {"dppo_default": 200, "trl_g8": 40}
    block["methods"]["dppo_default"]["steps"] = given["dppo_default"]
    found = Told(fields, block, Path(fields.pop("output_dir"))).tuned(["dppo_default", "trl"])
    steps = {name: (each["max_steps"], each["eval_benchmark_every"]) for name, each in found.items()}
    assert steps == {"dppo_default": (200, 17), "trl": (75, 7)}, "12 evaluations"
    assert "steps" not in found["dppo_default"]
    for word in ("other=200", "trl=", "trl=-3", "trl"):
        with pytest.raises(ConfigError, match=f"--steps {word}: expected a method"):
            tune.given_steps([word], block["methods"])


def test_commits_are_those_of_the_runs_and_not_of_what_compared_them(tmp_path):
    for method, made in (("default", ("aaaaaaa", "bbbbbbb", "bbbbbbb")), ("same_steps", ("ccccccc",) * 3)):
        for seed, commit in zip(SEEDS[:3], made, strict=True):
            run = tmp_path / "reported" / "runs" / method / f"seed_{seed}"
            run.mkdir(parents=True)
            (run / "run.json").write_text(json.dumps({"format": 1, "environment": {"commit": commit}}))
    record = {"seeds": list(SEEDS[:3]), "methods": {"default": {}}, "at_same_steps": {"same_steps": {}}}
    assert points.commits(tmp_path, record) == {"default": "bbbbbbb, aaaaaaa", "same_steps": "ccccccc"}


def test_the_plan_of_each_log_of_the_control(tmp_path):
    """Where completions of silent groups have a gradient, as under a KL term, most of the update can go."""
    told = {"reward": 0.5, "completions/mean_length": 40.0, "frac_reward_zero_std": 0.8, "step_time": 0.3}
    phases = {"time/rollout": 0.1, "time/forward_backward": 0.2}

    def gains(kl):
        for seed, silent in ((10, 0.8), (11, 0.3)):
            steps = [(step, step, 100 * step, 0.2) for step in range(12)]
            also = lambda step, silent=silent: told | phases | {"frac_reward_zero_std": silent, "kl": kl}  # noqa: E731
            folder = tmp_path / f"{kl}" / "reported" / "runs" / points.CONTROL / f"seed_{seed}"
            run_folders.write_run(folder, steps, also, method="grpo", seed=seed, updates=11)
        return points.plans(tmp_path / f"{kl}", [10, 11], 4)

    with_kl = gains(0.01)["completions"]
    assert 1.5 < with_kl["mean"] < 3 and with_kl["per_seed"]["10"] > with_kl["per_seed"]["11"] > 1
    assert gains(0.0)["completions"]["mean"] < with_kl["mean"] - 0.3


def test_a_comparison_is_run_again_until_seconds_agree(tmp_path, monkeypatch, capsys):
    """The default's 100 steps take half of the control's seconds: it is run with 200, and the control anew."""
    slopes = {name: REGIME[name] for name in ("control", "default")}
    folder, asked = tmp_path / "kl" / "reported", []
    methods = {name: {"max_steps": 100, "eval_benchmark_every": 20} for name in slopes}

    def module(name, *words):
        output = Path(words[words.index("--output") + 1])
        if name == "tune":
            given = words[words.index("--steps") + 1].split(",") if "--steps" in words else []
            steps = {each: {"max_steps": count} for each, count in tune.given_steps(given, methods).items()}
            output.write_text(yaml.safe_dump({"compare": {"methods": methods | steps}}))
            return
        steps = yaml.safe_load(Path(words[0]).read_text())["compare"]["methods"]["default"]["max_steps"]
        asked.append((steps, (folder / "runs" / "default").exists(), (folder / "runs" / "control").exists()))
        faster = {**slopes, "default": (0.6, 0.4 * steps, steps)}
        record = recorded(folder, faster, SEEDS[:3], "default", ["control"], ["control"])
        output.write_text(json.dumps(record))

    monkeypatch.setattr(regimes, "module", module)
    found = regimes.run("kl", tmp_path, 3, "control,default")
    assert [steps for steps, *_ in asked] == [100, 200] and asked[1] == (200, False, False)
    assert regimes.corrected(found["methods"]) == {} and capsys.readouterr().out == ""
    assert regimes.run("kl", tmp_path, 3, "control,default") and asked[2][0] == 200, "what was corrected stays so"
    slopes["control"] = (0.5, 300, 100)  # beyond what the corrections of a call can follow
    monkeypatch.setattr(regimes, "CORRECTIONS", 0)
    regimes.run("kl", tmp_path, 3, "control,default")
    assert "kl: seconds of default are more than 5% from the control's" in capsys.readouterr().out


def test_each_method_beside_trl_is_compared_with_trl_alone(tmp_path, monkeypatch):
    """And with nothing where TRL is not run."""
    asked = []

    def module(name, *words):
        value = dict(pairwise(words))
        if name == "compare":
            asked.append([value[f"--{each}"] for each in ("methods", "ours", "against", "targets")])
            Path(value["--output"]).write_text(json.dumps({"methods": {}, "ours": value["--ours"]}))

    monkeypatch.setattr(regimes, "module", module)
    found = regimes.run("kl", tmp_path, 3, "control,trl_g8,four_updates,prior")
    every = "control,trl_g8"
    assert asked[0] == ["control,trl_g8,four_updates,prior", "default", every, every]
    assert asked[1:] == [[f"trl_g8,{name}", name, "trl_g8", "trl_g8"] for name in ("prior", "four_updates")]
    assert [(name, each["ours"]) for name, each in found["beside_stock"].items()] == [
        ("prior",) * 2,
        ("four_updates",) * 2,
    ]
    assert "beside_stock" not in regimes.run("kl", tmp_path, 3, "control,four_updates")


@pytest.mark.parametrize("name", regimes.REGIMES)
def test_every_regime_changes_fields_of_a_run(name):
    fields, _ = read_config(regimes.CONFIG, [f"--{field}={value}" for field, value in regimes.REGIMES[name].items()])
    assert all(str(fields[field]).strip("[]'") == str(value) for field, value in regimes.REGIMES[name].items())


def test_the_map_expects_what_a_step_allows():
    """Nothing where the update is free, at most the whole update, and less where the control skips silent groups."""
    assert map.expected(0.05, 0.4, every=False) == pytest.approx(1, abs=0.01)
    under_kl = [map.expected(0.6, silent, every=True) for silent in (0.2, 0.5, 0.8)]
    assert under_kl == sorted(under_kl) and under_kl[0] > 1 and under_kl[-1] < 1 / (1 - 0.6)
    assert map.expected(0.6, 0.8, every=False) < 1.1 < 1.5 < under_kl[-1]


def test_the_map_says_how_far_the_plan_was_off(tmp_path, monkeypatch):
    """A regime named with a KL term is compared with the surface of one: the other surface is a third lower."""
    expected = map.expected(0.6, 0.7, every=True)
    found = {"median": expected / 1.1, "at_most": expected / 1.1, "low": 1, "high": 2, "missing": None}
    step = {"default": {"mean": 1.2, "low": 1.1, "high": 1.3}}
    point = {"step_share": 0.6, "silent_share": 0.7, "step_ratio": step}
    point |= {"against_control": {**found, "per_seed": {"0": [1, 1]}}}
    point |= {"equal_seconds": {"default": {"difference": {"mean": 0.01, "low": -0.029, "high": 0.05}}}}
    assert map.errors({"kl": point})["kl"] == pytest.approx(0.1)
    assert map.errors({"plain": point})["plain"] < -0.2
    shown = map.show({"kl": point})
    assert (
        f"| 1.20 [1.10, 1.30] | {found['median']:.2f} [1.00, 2.00] | +1.0 [-2.9, +5.0] | yes | {expected:.2f} |  |"
        in shown
    )
    assert "| 60% | 70% |" in shown and "plan: 10.0%" in shown
    logged = {**point, "plan_of_logs": {"completions": {"mean": 1.5 * found["median"]}}}
    assert map.errors({"plain": logged, "kl": point}, map.from_logs) == {"plain": pytest.approx(0.5)}
    assert "plan: 10.0% over 1 points; from logs 50.0% over 1, where the map is 10.0% off" in map.show({"kl": logged})
    worse = {"default": {"difference": {"mean": 0.01, "low": -0.031, "high": 0.05}}}
    assert "| +1.0 [-3.1, +5.0] | not shown |" in map.show({"kl": {**point, "equal_seconds": worse}})
    censored = {**point, "against_control": {**point["against_control"], "at_most": None}}
    assert f"| >= {expected / 1.1:.2f} [1.00, 2.00] |" in map.show({"kl": censored})
    missed = {**point, "against_control": {**point["against_control"], "median": None}}
    assert "| not reached |" in map.show({"plain": point, "kl": missed}) and map.errors({"kl": missed}) == {}
    assert map.errors({"kl": censored}) == {}, "a bound is no error of the plan"
    never = {**point, "against_control": {**found, "median": 0.0, "at_most": 0.0, "per_seed": {"0": [0, 0]}}}
    assert map.errors({"kl": never}) == {}
    monkeypatch.setattr(map, "AXIS", map.AXIS[::4])
    map.draw({"kl": point, "plain": censored, "silent": missed}, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 10_000


NOTHING = dict.fromkeys(AMOUNTS, 0.0)


def runs_of(*accuracies):
    return [
        {"seed": seed, "curve": [NOTHING | {"step": 10.0 * i, "accuracy": value} for i, value in enumerate(curve)]}
        for seed, curve in enumerate(accuracies)
    ]


def test_mean_curves_say_how_much_sooner_where_the_last_evaluation_of_a_seed_is_noise():
    """Ours is twice as fast on average; the control's last evaluations are off by .1 up and down."""
    control = runs_of([0.2, 0.3, 0.4, 0.4, 0.7], [0.2, 0.3, 0.4, 0.6, 0.5], [0.2, 0.3, 0.4, 0.5, 0.6])
    ours = runs_of(*[[0.2, 0.4, 0.6, 0.6, 0.6]] * 3)
    found = pooled(control, ours, "step")
    assert found["ratio"] == pytest.approx(2.0) and found["seeds"] == 3 and found["over"] == "step"
    assert found["low"] < 2.0 and found["high"] >= 2.0
    # The wrong twin, a ratio of each seed: ours never gets to .7, and the control was early at its .5.
    alone = [pooled([one], [other], "step")["ratio"] for one, other in zip(control, ours, strict=True)]
    assert alone == pytest.approx([0.0, 25 / 15, 40 / 20])


def test_mean_curves_of_what_never_gets_there_and_of_other_seeds():
    control, worse = runs_of([0.2, 0.4, 0.6]), runs_of([0.2, 0.3, 0.5])
    found = pooled(control, worse, "step")
    assert found["ratio"] == 0.0 and found["low"] is None and found["high"] is None
    assert pooled(control, runs_of([0.7, 0.8, 0.9]), "step")["ratio"] == 0.0, "there before it was trained"
    with pytest.raises(ValueError, match="other seeds"):
        pooled(control, runs_of([0.2], [0.3]), "step")
