"""The comparison's own script: who takes part, what is tried and chosen, and how it goes from a grid to its runs."""

import json
import multiprocessing
import sys
from dataclasses import replace

import pytest
from compared_runs import (
    CONTESTANTS,
    POINT,
    Entry,
    Setting,
    choice,
    chosen_for,
    compare,
    entries,
    known,
    summary,
    tables,
    write_run,
)

from dppo.errors import ConfigError
from dppo.files import write_json


def test_every_stage_parses_on_every_task(tmp_path):
    asked = []

    def pace(name, entry, setting):
        asked.append(name)
        return 0.5

    chosen = chosen_for(name for name, entry in known(CONTESTANTS).items() if entry.groups)
    for task, seconds in entries.TASKS.items():
        stages = {"grid": compare.grid(compare.entries_of("grid"), seconds.grid, pace)}
        assert len({each.name for each in stages["grid"]}) == len(stages["grid"])
        asked.clear()
        for stage in ("main", "more", "ablation"):
            stages[stage] = compare.reported(compare.entries_of(stage, "dppo"), chosen, seconds.reported, pace)
        assert asked == ["fewer_prompts", *entries.TAKEN_AWAY], "only those without a grid are timed"
        for contestants in stages.values():
            compare.comparison(tmp_path, task, contestants, entries.SEEDS).check()
        assert {each.name for each in stages["more"]} == {*entries.MORE, "dppo"}
    assert not set(entries.GRID_SEEDS) & {*entries.SEEDS, *entries.MORE_SEEDS}
    assert {*entries.TARGETS, *entries.OPPONENTS} <= CONTESTANTS.keys()


def test_a_setting_becomes_fields():
    """By hand: 64 completions are 16 prompts of 4, and 0.7 of them 11; 20 s of 0.4 s are 50 steps, asked 12 times."""
    own = Entry(method="grpo").contestant("x", POINT, compare.steps_in(20, 0.4)).overrides
    assert own == {"per_device_train_batch_size": 64, "num_generations": 4, "learning_rate": 4e-4, "max_steps": 50,
                   "eval_benchmark_every": 5}  # fmt: skip
    fewer = CONTESTANTS["fewer_prompts"].contestant("x", POINT, 10).overrides
    assert fewer["per_device_train_batch_size"] == 44
    assert compare.steps_in(1.0, 100.0) == 2


def test_contestants_have_equal_seconds_and_not_equal_steps():
    pace = {"trl": 0.8, "dppo": 0.2}
    two = {name: CONTESTANTS[name] for name in pace}
    found = compare.grid(two, 20.0, lambda name, entry, setting: pace[name])
    steps = {each.name.split("-")[0]: each.overrides["max_steps"] for each in found}
    assert steps == {"trl": 25, "dppo": 100}


def test_stock_trl_at_eight_completions_is_a_part_of_the_grid_of_trl():
    assert CONTESTANTS["trl_g8"].grid() == () and len(CONTESTANTS["trl"].grid()) == 27
    sizes = {name: {setting.group for setting in entry.grid()} for name, entry in CONTESTANTS.items()}
    assert sizes["grpo_rows"] == {2, 4, 8} == sizes["trl"] and sizes["dppo_history"] == {*entries.WITH_HISTORY}


def accuracies(found):
    return {name: {"accuracy": accuracy, "seconds_per_step": 0.5} for name, accuracy in found.items()}


def test_the_best_accuracy_is_chosen_within_the_group_sizes_of_the_contestant():
    settings = {(s.group, s.completions, s.learning_rate): s.named("trl") for s in CONTESTANTS["trl"].grid()}
    figures = accuracies(dict.fromkeys(settings.values(), 0.5))
    figures[settings[2, 64, 4e-4]]["accuracy"] = 0.8
    figures[settings[8, 128, 4e-4]]["accuracy"] = 0.7
    best = choice.choose("trl", CONTESTANTS["trl"], figures)
    assert best.setting == Setting(learning_rate=4e-4, completions=64, group=2) and best.at_edge == []
    eight = choice.choose("trl_g8", CONTESTANTS["trl_g8"], figures)
    assert eight.setting == Setting(learning_rate=4e-4, completions=128, group=8) and eight.accuracy == 0.7
    assert eight.at_edge == ["completions"]
    assert choice.choose("dppo", CONTESTANTS["dppo"], figures) is None


def test_the_best_of_ours_is_unbiased_and_no_control(monkeypatch):
    accuracy = {"grpo_rows": 0.95, "cppo": 0.94, "dppo": 0.8, "dppo_threshold": 0.81, "mine": 0.9}
    monkeypatch.setitem(CONTESTANTS, "mine", Entry(method="dppo_unweighted", groups=(8,), ours=True))
    chosen = {name: replace(chosen_for([name])[name], accuracy=value) for name, value in accuracy.items()}
    assert choice.best_of_ours(chosen) == "dppo_threshold"
    assert max(chosen, key=lambda name: chosen[name].accuracy) == "grpo_rows", "the wrong twin takes any"
    with pytest.raises(ConfigError, match="no unbiased method of ours"):
        choice.best_of_ours({"cppo": chosen["cppo"], "mine": chosen["mine"]})


def test_settings_are_read_as_they_are_written(tmp_path):
    path, chosen = tmp_path / "settings.json", chosen_for(["trl", "dppo"], group=2)
    with pytest.raises(ConfigError, match="no settings for embedded: its grid has not been run"):
        entries.read_settings(path, "embedded")
    written = {name: each.as_json() for name, each in chosen.items()}
    write_json(path, {"tasks": {"embedded": {"settings": written, "best": "dppo"}}})
    read, best = entries.read_settings(path, "embedded")
    assert best == "dppo" and {name: replace(each, at_edge=()) for name, each in read.items()} == chosen
    with pytest.raises(ConfigError, match="no settings for other"):
        entries.read_settings(path, "other")


def test_a_method_this_version_does_not_have_is_left_out_and_without_settings_refused():
    new = {"trl": CONTESTANTS["trl"], "soon": Entry(method="not_yet", groups=(2,))}
    assert known(new).keys() == {"trl"}
    with pytest.raises(ConfigError, match=r"fewer_prompts has no settings: embedded_compare\.py grid --only dppo"):
        compare.reported({"fewer_prompts": CONTESTANTS["fewer_prompts"]}, chosen_for(["trl"]), 1.0, lambda *a: 1.0)


def hold(path, held, done):
    with compare.locked(path):
        held.set()
        done.wait(20)


def test_a_lock_keeps_a_second_process_out(tmp_path):
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "locks" / "one", held, done))
    other.start()
    try:
        assert held.wait(20)
        with compare.locked(tmp_path / "locks" / "one", wait=False) as free, compare.locked(tmp_path / "two") as two:
            assert not free and two
        done.set()
        with compare.locked(tmp_path / "locks" / "one") as free:
            assert free
    finally:
        done.set()
        other.join()


def test_the_grid_is_summed_up_into_a_file(tmp_path, monkeypatch):
    """By hand: of two settings the second is better on average, though worst with one seed; a third lacks a seed."""
    for name in set(CONTESTANTS) - {"trl", "trl_g8", "dppo"}:
        monkeypatch.delitem(CONTESTANTS, name)
    folder, tried = tmp_path / "embedded" / "grid", CONTESTANTS["trl"].grid()[:3]
    ends = {tried[0]: (0.6, 0.6), tried[1]: (0.4, 0.9), tried[2]: (0.95, None)}
    ends |= {CONTESTANTS["dppo"].grid()[5]: (0.7, 0.7)}
    for setting, accuracy in ends.items():
        name = "dppo" if accuracy[0] == 0.7 else "trl"
        for seed, value in zip(entries.GRID_SEEDS, accuracy, strict=True):
            if value is not None:
                points = [(0, 0, 0.2), (10, 20, value)]
                write_run(folder, setting.named(name), seed, CONTESTANTS[name], setting, points)
    path = tmp_path / "settings.json"
    write_json(path, {"tasks": {"another": {"kept": True}}})
    choice.write_settings(tmp_path, path)
    found = json.loads(path.read_text())["tasks"]
    assert found["another"] == {"kept": True} and found["embedded"]["best"] == "dppo"
    chosen, _ = entries.read_settings(path, "embedded")
    assert chosen["trl"].setting == tried[1] and chosen["trl"].accuracy == pytest.approx(0.65)
    assert chosen["trl"].seconds_per_step == 2.0
    assert tried[2].named("trl") in found["embedded"]["unfinished"]
    assert "`dppo`" in tables.show_grid(found["embedded"]) and "not finished: " in tables.show_grid(found["embedded"])


@pytest.fixture
def tiny(monkeypatch):
    """The scripts on the short task, with two contestants' worth of settings and untrained starts."""
    from dppo.demo.model import build_model
    from dppo.demo.tokenizer import build_tokenizer

    made = []

    def quickly(folder, *, seed, **options):
        made.append(seed)
        build_model(seed).save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)

    monkeypatch.setattr("dppo.runs.parts.prepare_embedded", quickly)
    monkeypatch.setattr(entries, "LEARNING_RATES", (4e-4,))
    monkeypatch.setattr(entries, "COMPLETIONS", (8,))
    monkeypatch.setattr(compare, "TIMED_STEPS", 2)
    monkeypatch.setattr(compare, "SEEDS", (10,))
    monkeypatch.setattr(compare, "GRID_SEEDS", (100,))
    monkeypatch.setattr(choice, "GRID_SEEDS", (100,))
    monkeypatch.setitem(entries.TASKS, "embedded_quick", entries.Seconds(grid=1e-3, reported=1e-3))
    monkeypatch.setitem(entries.LONGEST, "embedded_quick", 8)
    monkeypatch.setitem(entries.FIELDS, "eval_benchmark_limit", 3)
    groups = {"trl": (4,), "dppo": (4,), "trl_g8": (4,), "fewer_prompts": ()}
    for name in list(CONTESTANTS):
        if name in groups:
            monkeypatch.setitem(CONTESTANTS, name, replace(CONTESTANTS[name], groups=groups[name]))
        else:
            monkeypatch.delitem(CONTESTANTS, name)
    return made


@pytest.mark.slow
def test_the_script_from_grid_to_reported_runs(tiny, tmp_path, monkeypatch, capsys):
    paths = ["--work", str(tmp_path), "--settings", str(tmp_path / "settings.json")]

    def call(module, *words):
        monkeypatch.setattr(sys, "argv", ["script", *words, *paths])
        return module.main()

    with pytest.raises(ConfigError, match="its grid has not been run"):
        call(compare, "main", "--task", "embedded_quick")
    assert call(compare, "grid", "--task", "embedded_quick") == 0
    assert tiny == [100], "the start is made once, for timing and for the grid"
    assert call(summary, "grid") == 0
    chosen, best = entries.read_settings(tmp_path / "settings.json", "embedded_quick")
    assert chosen.keys() == {"trl", "trl_g8", "dppo"} and best == "dppo"
    assert call(compare, "main", "--task", "embedded_quick", "--only", "dppo,fewer_prompts") == 0
    assert tiny == [100, 10]
    capsys.readouterr()
    assert call(compare, "main", "--task", "embedded_quick", "--only", "dppo,fewer_prompts") == 0
    assert capsys.readouterr().out.count("kept") == 2
    with pytest.raises(ConfigError, match="--only nobody takes no part in main"):
        call(compare, "main", "--task", "embedded_quick", "--only", "nobody")
