"""Methods that run beside points of the map: their steps, and what is added to a point that else stays as it is."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from learning_records import REGIME, SEEDS, recorded

from benchmarks.learning import beside, regimes
from benchmarks.learning.points import CONTROL, STOCK

ADDED = ("final_accuracy", "curves", "overrides", "seconds")


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """The folder of a comparison, and by call how many seeds and steps ``compare`` was asked for.

    A step of the default takes .4 s, of another method .8 s, and one of CPPO with all seeds 1 s.
    """
    asked = []

    def module(name, *words):
        given = dict(pairwise(words))
        if name == "tune":
            assert given["--steps"] == f"{STOCK}=100", "a rough figure: the first seed corrects it"
            own = {"method": "trl", "num_generations": 8, "per_device_train_batch_size": 32, "max_steps": 100}
            Path(given["--output"]).write_text(yaml.safe_dump({"compare": {"methods": {STOCK: own}}}))
            return
        methods = yaml.safe_load(Path(words[0]).read_text())["compare"]["methods"]
        count, steps = int(given["--seeds"]), {each: own["max_steps"] for each, own in methods.items()}
        asked.append((count, *steps.values()))
        pace = {"default": 0.4, "cppo": 0.8 if count == 1 else 1.0}
        slopes = {each: (REGIME["control"][0], pace.get(each, 0.8) * steps[each], steps[each]) for each in steps}
        folder = tmp_path / "reported"
        ends = [given[word] for word in ("--ours", "--against", "--targets")]
        record = recorded(folder, slopes, SEEDS[:count], ends[0], [ends[1]], [ends[2]])
        Path(given["--output"]).write_text(json.dumps(record))

    for program in (beside, regimes):
        monkeypatch.setattr(program, "module", module)
    return tmp_path, asked


def known(steps):
    own = {"learning_rate": 2e-4, "max_steps": steps, "num_generations": 4}
    return {"overrides": {CONTROL: own, "default": own}, "final_accuracy": {CONTROL: {"mean": 0.7}}, "seeds": 10}


def test_trl_takes_the_seconds_of_the_default_it_runs_beside(ran):
    """100 steps of the default are 40 s, and 50 of TRL. The wrong twin takes seconds of another day for it."""
    folder, asked = ran
    settings = beside.settings_of("kl", {"kl": known(100)}, "default", [STOCK], folder)
    assert settings[STOCK]["per_device_train_batch_size"] == 32 and settings["default"]["method"] == "dppo"
    record = beside.in_turns("kl", settings, 3, folder)
    assert asked == [(1, 100, 100), (1, 100, 50), (3, 100, 50)]
    found = beside.added(known(100), record, [STOCK], folder)
    assert found["against_trl_g8"]["median"] == pytest.approx(1.0) and found["seeds"] == 10
    assert all(found[part].keys() - known(100).get(part, {}).keys() == {STOCK} for part in ADDED)
    assert found["commits"].keys() == {STOCK} and "default" not in found["final_accuracy"]
    assert found["final_accuracy"][CONTROL] == {"mean": 0.7}, "what was measured stays"
    assert found["beside_stock"]["default"]["seconds"]["mean"] == pytest.approx(1.0)
    beside.in_turns("kl", settings, 3, folder)
    assert asked[3:] == [(3, 100, 50)], "what was found is found again, and nothing is run anew"


def test_all_run_again_in_turns_where_all_seeds_say_that_steps_are_off(ran, capsys):
    folder, asked = ran
    settings = beside.settings_of("kl", {"kl": known(100)}, CONTROL, ["cppo"], folder)
    assert settings["cppo"] == {"method": "cppo", **known(100)["overrides"][CONTROL]}
    record = beside.in_turns("kl", settings, 3, folder)
    assert asked == [(1, 100, 100), (3, 100, 100), (3, 100, 80)] and capsys.readouterr().out == ""
    (folder / "compare.json").unlink()  # stopped among the last runs: the first seed alone is not asked again
    assert beside.in_turns("kl", settings, 3, folder) == record and asked[3:] == [(3, 100, 80)]
    found = beside.added(known(100), record, ["cppo"], folder)
    assert "against_trl_g8" not in found and found["seconds"]["cppo"]["mean"] == pytest.approx(1.0)
    assert found["step_ratio"].keys() == {"cppo"} and found["step_ratio"]["cppo"]["mean"] == pytest.approx(0.8)


def test_a_method_begins_with_the_steps_that_other_points_would_give_it(tmp_path):
    """A step of GRESO is several times as long: with the control's steps its first seed would take minutes for one."""
    points = {"kl": known(100)}
    for regime, steps in (("plain", 30), ("silent", 40), ("rare", 90)):
        control = known(100)["overrides"][CONTROL]
        points[regime] = {"overrides": {CONTROL: control, "greso": {**control, "max_steps": steps}}}
    settings = beside.settings_of("kl", points, CONTROL, ["cppo", "greso"], tmp_path)
    assert settings["greso"] == {"method": "greso", **known(100)["overrides"][CONTROL], "max_steps": 40}
    assert settings["cppo"]["max_steps"] == 100, "no point has it"


def test_methods_of_two_partners_are_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["beside", "kl", "--methods", "cppo,trl_g8"])
    with pytest.raises(SystemExit):
        beside.main()
    assert "--methods cppo,trl_g8 have no one partner. Write --methods cppo,greso" in capsys.readouterr().err


def test_methods_of_a_measured_point_take_the_controls_seconds():
    """Only points that were corrected for it; docs/results.md has how far off the others are."""
    points = json.loads(regimes.RESULTS.read_text())["regimes"]
    ratios = {
        (name, method): each["mean"] for name in points for method, each in points[name].get("seconds", {}).items()
    }
    near = {"cppo": beside.ROUGH, "greso": beside.ROUGH}
    off = {which: abs(ratio - 1) for which, ratio in ratios.items()}
    assert ratios and [which for which, much in off.items() if round(much, 2) > near.get(which[1], regimes.NEAR)] == []
