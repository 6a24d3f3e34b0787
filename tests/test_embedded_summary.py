"""What the comparison's own script says of its runs: every figure from runs made by hand."""

import json
import sys
from pathlib import Path

import pytest
from compared_runs import CONTESTANTS, POINT, chosen_for, entries, sizes, summary, tables, write_run

from dppo.errors import ConfigError

ROOT = Path(__file__).parents[1]
SLOPES = {
    "trl_g8": (0.3, 80),
    "trl": (0.4, 80),
    "grpo_rows": (0.5, 80),
    "grpo_rows_centred": (0.5, 80),
    "dppo": (0.6, 40),
    "dapo": (0.1, 80),
}
"""Accuracy gained over a run, from 0.2, and its seconds."""


@pytest.fixture
def work(tmp_path):
    """Ten seeds of those that have ten and five of dapo; with seed 14 dppo learns nothing."""
    folder = tmp_path / "embedded" / "reported"
    for name, (gain, seconds) in SLOPES.items():
        for seed in entries.SEEDS + (() if name == "dapo" else entries.MORE_SEEDS):
            got = 0.01 if (name, seed) == ("dppo", 14) else gain
            write_run(folder, name, seed, CONTESTANTS[name], POINT, [(0, 0, 0.2), (100, seconds, 0.2 + got)])
    return tmp_path


@pytest.fixture
def record(work):
    return summary.task_record(work / "embedded" / "reported", "embedded", chosen_for(SLOPES), "dppo")


def test_every_figure_by_hand(record):
    """To where trl_g8 ends it takes 80 s, dppo half of its 40 s, grpo_rows 48 s; dppo missed it once, at 40 s."""
    assert record["targets"]["trl_g8"]["per_seed"]["10"] == pytest.approx(0.5)
    found = record["best_against"]["trl_g8"]["trl_g8"]
    assert found["median"] == found["low"] == pytest.approx(80 / 20) and found["reached"] == "9 of 10"
    assert found["missed"] == {"method": 1, "baseline": 0, "both": 0}
    assert found["restricted_mean"]["horizon"] == 40
    assert found["restricted_mean"]["ratio"] == pytest.approx(40 / (0.9 * 20 + 0.1 * 40))
    assert found["rollouts"]["median"] == found["tokens_trained"]["median"] == pytest.approx(4)
    # To .7 dppo takes 33.3 s, trl_g8 never gets there in its 80.
    beyond = record["best_against"]["trl_g8"]["grpo_rows"]
    assert beyond["median"] == pytest.approx(80 / (40 * 5 / 6)) and beyond["at_most"] is None
    assert beyond["missed"] == {"method": 0, "baseline": 9, "both": 1}
    assert record["default_against"] == {}, "it has no run here"
    uniform = record["best_against"]["grpo_rows"]["trl_g8"]
    assert uniform["median"] == pytest.approx(48 / 20)
    spent = record["to_target"]["trl_g8"]
    assert spent["dppo"]["seconds"]["median"] == pytest.approx(20)
    assert spent["dppo"]["rollout_tokens"]["median"] == pytest.approx(40_000)
    assert spent["dapo"]["reached"] == "0 of 5" and spent["dapo"]["seconds"]["median"] is None
    assert len(record["methods"]["dapo"]["runs"]) == 5 and record["methods"]["dapo"]["finished"] == "5 of 5"
    assert record["methods"]["trl"]["equal_seconds"]["at_per_seed"]["10"] == 40
    json.dumps(record, allow_nan=False)


def test_a_run_that_missed_is_not_as_good_as_one_that_arrived_at_its_end(record):
    """The wrong twins: left out, the mean ratio is 4; as if it had arrived, seed 14's ratio is 2, and known."""
    found = record["best_against"]["trl_g8"]["trl_g8"]
    assert found["both_reached"] == pytest.approx(4) and found["per_seed"]["14"] == [0, 2]


def test_the_tables_say_so(record):
    text = tables.show_task(record)
    assert "| `trl_g8` | `trl_g8` | 4.00 [4.00, 4.00] | 9 of 10 |" in text
    assert "| `trl_g8` | `grpo_rows` | >= 2.40 [2.40, no end] | 9 of 10 |" in text
    assert "| `dapo` | not reached | 0 of 5 | - | - | - | - |" in text
    assert "| `dppo` | 16 x 4, 0.0004 |" in text and "| `dppo` | 0.400 | 0.200 | 0.100 | 40 |" in text


def test_the_first_table_has_what_the_default_does_beside_the_best(record):
    worse = json.loads(json.dumps(record["best_against"]))
    worse["trl_g8"]["trl_g8"]["median"] = 1.5
    text = tables.headline({"tasks": {"embedded": {**record, "default_against": worse}}})
    assert "| `embedded`, `dppo_default` | `embedded`, `dppo` |" in text
    first = next(line for line in text.splitlines() if line.startswith("| `trl_g8` | `trl_g8` |")).split(" | ")
    assert "1.50" in first[2] and "4.00" in first[3] and "1.50" not in first[3]
    assert "dppo_default" not in tables.headline({"tasks": {"embedded": record}})


def test_the_figures_on_top_are_the_least_favourable(record):
    other = json.loads(json.dumps(record["best_against"]))
    other["trl"]["trl_g8"]["median"] = 1.1
    other["grpo_rows"]["trl_g8"] |= {"median": None, "missing": None}
    other["trl_g8"] = {name: {**each, "missing": "x did not improve"} for name, each in other["trl_g8"].items()}
    found = summary.best_against({"embedded": record["best_against"], "hard": other})
    assert (found["trl"]["median"], found["trl"]["task"], found["trl"]["target"]) == (1.1, "hard", "trl_g8")
    assert found["grpo_rows"]["median"] is None and found["grpo_rows"]["task"] == "hard"
    assert found["trl_g8"]["task"] == "embedded" and found["trl_g8"]["median"] == pytest.approx(2.4)
    assert found["trl"]["each"].keys() == {"embedded", "hard"}
    nothing = {"hard": {**other, "trl": other["trl_g8"], "grpo_rows": other["trl_g8"]}}
    assert summary.best_against(nothing)["trl"]["median"] is None


def test_a_control_that_did_not_improve_is_no_target(work):
    folder = work / "embedded" / "reported"
    for seed in entries.SEEDS + entries.MORE_SEEDS:
        flat = [(0, 0, 0.2), (100, 80, 0.2 + 0.01 * (-1) ** seed)]
        for path in (folder / "runs" / "grpo_rows" / f"seed_{seed}").iterdir():
            path.unlink()
        (folder / "runs" / "grpo_rows" / f"seed_{seed}").rmdir()
        write_run(folder, "grpo_rows", seed, CONTESTANTS["grpo_rows"], POINT, flat)
    found = summary.task_record(folder, "embedded", chosen_for(SLOPES), "dppo")
    assert found["targets"]["grpo_rows"]["missing"].startswith("grpo_rows did not improve")
    assert found["best_against"]["trl"]["grpo_rows"]["median"] is None
    assert "no target: grpo_rows did not improve" in tables.show_task(found)
    assert summary.best_against({"embedded": found["best_against"]})["trl"]["target"] == "trl_g8"


def test_a_summary_without_a_run_of_an_opponent_is_refused(work):
    chosen = chosen_for(SLOPES)
    with pytest.raises(ConfigError, match="has no run of dppo_threshold"):
        summary.task_record(work / "embedded" / "reported", "embedded", chosen, "dppo_threshold")


def test_other_opponents_can_be_asked_for(work):
    """Runs of another machine have opponents of their own."""
    folder = work / "embedded" / "reported"
    found = summary.task_record(folder, "embedded", chosen_for(SLOPES), "grpo_rows", ["dapo", "trl_g8"])
    assert list(found["best_against"]) == ["dapo", "trl_g8"] and found["best"] == "grpo_rows"
    assert found["best_against"]["trl_g8"]["trl_g8"]["median"] == pytest.approx(80 / 48)
    assert found["best_against"]["dapo"]["trl_g8"]["missed"]["baseline"] == 5
    assert set(summary.best_against({"embedded": found["best_against"]})) == {"dapo", "trl_g8"}
    assert "difference to `trl` at equal seconds" in tables.accuracies(found, ["dapo"])
    head = tables.headline({"tasks": {"embedded": found}}).splitlines()
    assert len(head) == 3 and head[2].startswith("| `trl_g8` | `trl_g8` | 1.67")


def test_equal_sizes_of_a_step_are_compared_pair_by_pair(work):
    """By hand: with 22 prompts the control takes 40 s to where trl_g8 ends, the default 9.2; a step of it takes a
    quarter. After the default's 20 s the control is at .35: .5 less. At their ends, as the wrong twin has it, .05 less.
    """
    folder = work / "embedded" / "reported"
    runs = {"grpo_rows_22x4": (80, 0.8), "dppo_default_22x4": (20, 0.85), "grpo_rows_16x4": (80, 0.8)}
    for name, (seconds, end) in runs.items():
        for seed in entries.SEEDS:
            setting = entries.sizes()[name].setting
            write_run(folder, name, seed, CONTESTANTS["dppo"], setting, [(0, 0, 0.2), (100, seconds, end)])
    targets = ["trl_g8", "grpo_rows_22x4"]
    found = summary.task_record(folder, "embedded", chosen_for(SLOPES), "dppo", ["trl"], targets)
    sooner = found["sooner_at_sizes"]
    assert set(sooner) == {"22x4"} and set(found["sizes"]) == {"22x4", "mean"}, "of 16 x 4 the default has no run"
    assert list(sooner["22x4"]) == list(found["targets"]) == list(found["best_against"]["trl"]) == targets
    assert sooner["22x4"]["trl_g8"]["median"] == pytest.approx(40 / (20 * 0.3 / 0.65))
    assert sooner["22x4"]["grpo_rows_22x4"]["median"] == pytest.approx(80 / (20 * 0.6 / 0.65))
    assert found["sizes"]["mean"] == found["sizes"]["22x4"], "the only one"
    assert found["sizes"]["mean"]["difference"]["mean"] == pytest.approx(0.5)
    assert found["sizes"]["mean"]["step"]["mean"] == pytest.approx(4)
    assert found["methods"]["grpo_rows_22x4"]["setting"]["completions"] == 88
    first, last = tables.sizes(found).splitlines()[-2:]
    accuracies = "| 22x4 | 0.800 [0.800, 0.800] | 0.850 [0.850, 0.850] |"
    assert first.startswith(f"{accuracies} +50.0 [+50.0, +50.0] | 4.00 [4.00, 4.00] | 4.33 [4.33, 4.33] |")
    assert last == "| mean |  |  | +50.0 [+50.0, +50.0] | 4.00 [4.00, 4.00] |  |  |"
    assert tables.sizes(found) in tables.show_task(found)


def test_a_mean_over_sizes_has_all_sizes_or_is_none():
    one, other = sizes.Level(difference=0.1, step=1.0), sizes.Level(difference=0.3, step=2.0)
    assert sizes.mean_of([one, other]) == sizes.Level(difference=pytest.approx(0.2), step=1.5)
    assert sizes.mean_of([one, None]) is None and sizes.side_by_side(None, []) is None and sizes.levels({}) == {}


def test_a_task_that_ran_on_another_machine_keeps_its_record(work, tmp_path, monkeypatch):
    """Its runs are not here; the wrong twin writes a file of the tasks that are, and the other is lost."""
    monkeypatch.setattr(summary, "read_settings", lambda path, task: (chosen_for(SLOPES), "dppo"))
    elsewhere, output = tmp_path / "elsewhere", tmp_path / "all.json"
    summary.write_summary(work, tmp_path / "settings.json", output)
    first = json.loads(output.read_text())
    elsewhere.mkdir()
    (work / "embedded").rename(elsewhere / "embedded_sparse")
    summary.write_summary(elsewhere, tmp_path / "settings.json", output, "dppo", ["dapo", "trl_g8"])
    both = json.loads(output.read_text())
    assert set(first["tasks"]) == {"embedded"} and set(both["tasks"]) == {"embedded", "embedded_sparse"}
    assert both["tasks"]["embedded"] == first["tasks"]["embedded"]
    assert set(both["best_against"]["dapo"]["each"]) == {"embedded_sparse"}
    assert set(both["best_against"]["trl_g8"]["each"]) == {"embedded", "embedded_sparse"}


def test_the_picture_shows_when_seeds_arrive(record):
    """By hand: at 20 s nine of ten runs of dppo arrive, and the tenth ends at 40 s without."""
    sys.path.insert(0, str(ROOT / "docs"))
    import results_figure

    axes = results_figure.plt.figure().subplots()
    results_figure.arrivals(axes, record)
    found = {line.get_label(): line for line in axes.lines}
    assert found["dppo"].get_xdata()[-2:].tolist() == [pytest.approx(20), 40]
    assert found["dppo"].get_ydata()[-2:].tolist() == pytest.approx([0.9, 0.9])
    assert results_figure.colours(record)["dppo"] == results_figure.SHOWN["dppo"] and "dapo" in found
    others = {**record["methods"], "ours": record["methods"]["dppo"]}
    unnamed = results_figure.colours({**record, "methods": others, "best": "ours"})
    assert unnamed["ours"] == results_figure.OURS, "the best of ours has a colour where it is none of the known"
    default = {**record["methods"], "dppo_default": record["methods"]["dppo"]}
    found = results_figure.colours({**record, "methods": default})
    assert found["dppo_default"] == results_figure.SHOWN["dppo"] and "dppo" not in found, (
        "the default in place of the best"
    )
    results_figure.plt.close("all")
