"""The comparison's own script: who takes part, what is tried and chosen, and how it goes from a grid to its runs."""

import json
import math
import multiprocessing
import sys
import threading
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
    grid,
    known,
    summary,
    tables,
    write_run,
)

from answer_judge.files import write_json
from dppo.errors import ConfigError


def test_every_stage_parses_on_every_task(tmp_path):
    asked = []

    def pace(name, entry, setting):
        asked.append(name)
        return 0.5

    chosen = chosen_for(name for name, entry in known(CONTESTANTS).items() if entry.groups)
    for task, seconds in entries.TASKS.items():
        stages, rungs = {}, []
        for name, entry in compare.entries_of("grid").items():
            if entry.grid():
                grid.Grid(tmp_path, task).train(name, entry, pace, rungs.append)
        assert len(seconds.rungs) == len(entries.RUNGS)
        for compared in rungs:
            replace(compared, contestants=compared.contestants[: len(entries.GROUPS)]).check()  # every group size
        asked.clear()
        for stage in ("ours", "main", "more", "ablation", "sizes"):
            stages[stage] = compare.reported(compare.entries_of(stage, "dppo"), chosen, seconds.reported, pace)
        assert asked == [each.name for contestants in stages.values() for each in contestants], "a pilot of each"
        for contestants in stages.values():
            compare.comparison(tmp_path, task, contestants, entries.SEEDS).check()
        assert {each.overrides["per_device_train_batch_size"] for each in stages["sizes"]} == {64, 88, 128}
        assert {each.name for each in stages["more"]} == {*entries.MORE, "dppo"}
    of_grid = [seed for rung in entries.RUNGS for seed in rung.seeds]
    of_grid.append(compare.PILOT_SEED)
    reported = {*entries.SEEDS, *entries.MORE_SEEDS}
    assert not {*of_grid, *entries.OURS_SEEDS} & reported and len({*of_grid}) == len(of_grid)
    assert {*entries.TARGETS, *entries.OPPONENTS} <= CONTESTANTS.keys()


def test_a_setting_becomes_fields():
    """By hand: 64 completions are 16 prompts of 4, and 0.7 of them 11; 20 s of 0.4 s are 50 steps, asked 12 times."""
    own = Entry(method="grpo").contestant("x", POINT, grid.steps_in(20, 0.4)).overrides
    assert own == {"per_device_train_batch_size": 64, "num_generations": 4, "learning_rate": 4e-4, "max_steps": 50,
                   "eval_benchmark_every": 5}  # fmt: skip
    fewer = CONTESTANTS["fewer_prompts"].contestant("x", POINT, 10).overrides
    assert fewer["per_device_train_batch_size"] == 44
    assert grid.steps_in(1.0, 100.0) == 2


def trained(folder, name, *, reach, pace=lambda name, entry, setting: 0.4):
    """A grid whose runs are written by hand: ``reach(setting, seed)`` at the end; what was asked for."""
    asked, entry = [], CONTESTANTS[name]

    def train(compared):
        place = 0 if compared.folder == made.folder(0) else 1
        for contestant in compared.contestants:
            setting = Setting.read(contestant.name.removeprefix(f"{name}-"))
            for seed in compared.seeds:
                asked.append((place, setting, seed))
                steps = contestant.overrides["max_steps"]
                value = reach(setting, seed)
                if value is not None and not compared.run_folder(contestant, seed).exists():
                    points = [(0, 0, 0.2), (steps, steps * pace(name, entry, setting), value)]
                    write_run(compared.folder, contestant.name, seed, entry, setting, points)

    made = grid.Grid(folder, "embedded")
    made.train(name, entry, pace, train)
    return made, asked


def test_contestants_have_equal_seconds_and_not_equal_steps(tmp_path):
    pace, steps = {"trl": 0.8, "dppo": 0.2}, {}
    for name, seconds in pace.items():

        def train(compared, name=name):
            steps.setdefault(name, {each.overrides["max_steps"] for each in compared.contestants})

        grid.Grid(tmp_path, "embedded").train(name, CONTESTANTS[name], lambda *asked, took=seconds: took, train)
    first, _ = entries.TASKS["embedded"].rungs
    assert steps == {"trl": {round(first / 0.8)}, "dppo": {round(first / 0.2)}}


def test_stock_trl_at_eight_completions_is_a_part_of_the_grid_of_trl():
    assert CONTESTANTS["trl_g8"].grid() == () and len(CONTESTANTS["trl"].grid()) == 18
    sizes = {name: {setting.group for setting in entry.grid()} for name, entry in CONTESTANTS.items()}
    assert sizes["grpo_rows"] == {2, 4, 8} == sizes["trl"] and sizes["dppo_predicted"] == {*entries.WITH_HISTORY}


def near(best):
    """Accuracy that falls with every factor of two from a setting."""

    def reach(setting, seed):
        steps = [abs(math.log2(getattr(setting, axis) / getattr(best, axis))) for axis in ("group", *grid.AXES)]
        return 0.8 - 0.05 * sum(steps)

    return reach


def test_the_best_of_the_first_rung_get_to_the_second_and_its_best_is_chosen(tmp_path):
    """By hand: 18 settings, then three, with two seeds each; three more of groups of 8, for the one with these."""
    best = Setting(learning_rate=2e-4, completions=64, group=2)
    made, asked = trained(tmp_path, "trl", reach=near(best))
    assert [place for place, _, _ in asked].count(0) == 18
    second = {setting for place, setting, seed in asked if place == 1}
    assert {seed for place, _, seed in asked if place == 1} == {*entries.RUNGS[1].seeds}
    assert best in second and sum(setting.group == 8 for setting in second) >= 3
    chosen, eight = (made.choose(name, CONTESTANTS[name]) for name in ("trl", "trl_g8"))
    assert chosen.setting == best and chosen.accuracy == pytest.approx(0.8) and chosen.at_edge == []
    assert eight.setting == replace(best, group=8) and chosen.seconds_per_step == pytest.approx(0.4)
    assert made.choose("dppo", CONTESTANTS["dppo"]) is None


def test_no_step_has_more_prompts_than_the_task(tmp_path):
    asked = []
    pace = lambda name, entry, setting: 0.4  # noqa: E731
    sparse = grid.Grid(tmp_path, "embedded_sparse")
    sparse.train("dppo_predicted", CONTESTANTS["dppo_predicted"], pace, asked.append)
    settings = [Setting.read(each.name.removeprefix("dppo_predicted-")) for each in asked[0].contestants]
    assert len(settings) == 16 and max(each.completions / each.group for each in settings) == 64


def test_what_a_later_seed_shows_is_what_counts(tmp_path):
    """The wrong twin chooses by the first rung, where another setting was lucky."""
    best, lucky = POINT, replace(POINT, completions=32)

    def reach(setting, seed):
        return 0.9 if setting == lucky and seed == entries.RUNGS[0].seeds[0] else near(best)(setting, seed)

    made, _ = trained(tmp_path, "dppo", reach=reach)
    first = made.tried("dppo", 0)
    assert max(first, key=lambda setting: first[setting].accuracy) == lucky
    assert made.choose("dppo", CONTESTANTS["dppo"]).setting == best


@pytest.mark.parametrize(("axis", "ends"), [("learning_rate", (1e-4, 5e-5, 8e-4)), ("completions", (16, 128, 256))])
def test_the_grid_grows_where_its_best_is_at_an_end(tmp_path, axis, ends):
    for number, value in enumerate(ends):
        best = replace(POINT, **{axis: value})
        made, asked = trained(tmp_path / str(number), "dppo", reach=near(best))
        chosen = made.choose("dppo", CONTESTANTS["dppo"])
        assert chosen.setting == best and axis not in chosen.at_edge
        assert len(asked) < 18 + 2 * 3 + 2 * 8, "and by no more than it must"


def test_growth_ends_where_all_are_equal_and_a_setting_that_fails_is_not_asked_for_again(tmp_path):
    beyond = replace(POINT, learning_rate=8e-4)
    made, asked = trained(tmp_path / "equal", "dppo", reach=lambda setting, seed: 0.5)
    assert made.choose("dppo", CONTESTANTS["dppo"]).setting in CONTESTANTS["dppo"].grid()

    def reach(setting, seed):
        return None if setting == beyond else near(beyond)(setting, seed)

    made, asked = trained(tmp_path / "fails", "dppo", reach=reach)
    assert [setting for _, setting, _ in asked].count(beyond) == len(entries.RUNGS[1].seeds)
    assert beyond not in made.tried("dppo", 1)


def test_the_best_of_ours_is_unbiased_and_no_control(monkeypatch):
    accuracy = {"grpo_rows": 0.95, "cppo": 0.94, "dppo": 0.8, "dppo_threshold": 0.81, "mine": 0.9}
    monkeypatch.setitem(CONTESTANTS, "mine", Entry(method="dppo_unweighted", groups=(8,), ours=True))
    monkeypatch.setitem(CONTESTANTS, "dppo_threshold", Entry(method="dppo_threshold", groups=(8,), ours=True))
    assert choice.best_of_ours(accuracy) == "dppo_threshold"
    assert max(accuracy, key=lambda name: accuracy[name]) == "grpo_rows", "the wrong twin takes any"
    with pytest.raises(ConfigError, match="no unbiased method of ours"):
        choice.best_of_ours({"cppo": 0.94, "mine": 0.9})


def test_longer_runs_settle_the_best_of_ours(tmp_path):
    """In the grid every contestant reaches the same, and the first would be taken."""
    for name in ("dppo_completions", "dppo"):
        trained(tmp_path, name, reach=near(POINT))
    assert choice.grid_of(tmp_path, "embedded", {})["best"] == "dppo_completions"
    for name, reached in (("dppo_completions", 0.7), ("dppo", 0.8), ("dppo_predicted", 0.9)):
        for seed in entries.OURS_SEEDS[: 2 if name == "dppo_predicted" else None]:
            write_run(
                tmp_path / "embedded" / "ours", name, seed, CONTESTANTS[name], POINT, [(0, 0, 0.2), (9, 9, reached)]
            )
    found = choice.grid_of(tmp_path, "embedded", {})
    assert found["best"] == "dppo" and found["ours"] == pytest.approx({"dppo_completions": 0.7, "dppo": 0.8})
    assert "`dppo` 0.800" in tables.show_grid(found)


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
        with compare.locked(tmp_path / "two"):
            assert other.is_alive()
        threading.Timer(0.2, done.set).start()
        with compare.locked(tmp_path / "locks" / "one"):
            assert done.is_set(), "not before the other had let go"
    finally:
        done.set()
        other.join()


def test_the_grid_is_summed_up_into_a_file(tmp_path, monkeypatch):
    for name in set(CONTESTANTS) - {"trl", "trl_g8", "dppo", "cppo"}:
        monkeypatch.delitem(CONTESTANTS, name)
    for name in ("trl", "dppo"):
        trained(tmp_path, name, reach=near(POINT))
    path = tmp_path / "settings.json"
    write_json(path, {"tasks": {"another": {"kept": True}}})
    choice.write_settings(tmp_path, path)
    found = json.loads(path.read_text())["tasks"]
    assert found["another"] == {"kept": True} and found["embedded"]["best"] == "dppo"
    chosen, _ = entries.read_settings(path, "embedded")
    assert chosen["trl"].setting == POINT and chosen["trl_g8"].setting == replace(POINT, group=8)
    assert len(found["embedded"]["grid"]["rung_1"]) == 36 and found["embedded"]["unfinished"] == ["cppo"]
    assert [rung["seconds"] for rung in found["embedded"]["rungs"]] == [*entries.TASKS["embedded"].rungs]
    assert "`dppo`" in tables.show_grid(found["embedded"]) and "not finished: cppo" in tables.show_grid(
        found["embedded"]
    )


def test_contestants_of_other_runs_keep_their_settings(tmp_path, monkeypatch):
    """A grid that was run elsewhere is not lost to one of a single contestant."""
    for name in set(CONTESTANTS) - {"trl", "dppo"}:
        monkeypatch.delitem(CONTESTANTS, name)
    path, before = tmp_path / "settings.json", replace(POINT, group=8)
    for name, point in (("dppo", before), ("trl", POINT)):
        trained(tmp_path / name, name, reach=near(point))
        choice.write_settings(tmp_path / name, path)
    task = json.loads(path.read_text())["tasks"]["embedded"]
    chosen, best = entries.read_settings(path, "embedded")
    assert list(chosen) == ["trl", "dppo"] and best == "dppo" and task["unfinished"] == []
    assert (chosen["trl"].setting, chosen["dppo"].setting) == (POINT, before) and len(task["grid"]["rung_1"]) == 36


@pytest.fixture
def tiny(monkeypatch):
    """The scripts on the short task, with two contestants' worth of settings and untrained starts."""
    from dppo.verification.tiny_model import build_model
    from dppo.verification.tiny_tokenizer import build_tokenizer

    made = []

    def quickly(folder, *, seed, **options):
        made.append(seed)
        build_model(seed).save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)

    monkeypatch.setattr("dppo_lab.runs.parts.prepare_embedded", quickly)
    monkeypatch.setattr(entries, "LEARNING_RATES", (4e-4,))
    monkeypatch.setattr(entries, "COMPLETIONS", (8,))
    monkeypatch.setattr(grid, "AXES", ())
    monkeypatch.setattr(compare, "TIMED_STEPS", 2)
    monkeypatch.setattr(compare, "SEEDS", (10,))
    monkeypatch.setitem(entries.TASKS, "embedded_quick", entries.Seconds(rungs=(1e-3, 1e-3), reported=1e-3))
    monkeypatch.setitem(entries.LONGEST, "embedded_quick", 8)
    monkeypatch.setitem(entries.PROBLEMS, "embedded_quick", 192)
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
    assert sorted(tiny) == [100, 101, 102], "a start is made once, for timing and for the grid"
    assert call(summary, "grid") == 0
    chosen, best = entries.read_settings(tmp_path / "settings.json", "embedded_quick")
    assert chosen.keys() == {"trl", "trl_g8", "dppo"} and best == "dppo"
    assert call(compare, "main", "--task", "embedded_quick", "--only", "dppo,fewer_prompts") == 0
    assert sorted(tiny) == [10, 100, 101, 102, 103]
    capsys.readouterr()
    assert call(compare, "main", "--task", "embedded_quick", "--only", "dppo,fewer_prompts") == 0
    assert capsys.readouterr().out.count("kept") == 2
    with pytest.raises(ConfigError, match="--only nobody takes no part in main"):
        call(compare, "main", "--task", "embedded_quick", "--only", "nobody")
