"""The grid of the frozen table: every line at every rate, what is biased found, and the controls."""

from dataclasses import replace

import pytest
from refusals import refused
from wrong_weights import DOUBLED, FORGOTTEN

from dppo.errors import ConfigError
from dppo.lab.comparison.contestants import choose
from dppo.lab.frozen.grid import FrozenSettings, cells, compare_frozen
from dppo.lab.frozen.lines import EVERY_RATE, PrunedLevel
from dppo.lab.frozen.methods import as_configured, configured, embedded_training, lines_of, methods_of
from dppo.lab.frozen.sample import bias_of, sample
from dppo.methods import METHODS
from dppo.pruning import uniform
from dppo.verification import draws
from dppo.verification.draws import root

BUILD = embedded_training().build_other
QUICK = FrozenSettings(rates=(0.5,), draws=100)
BLOCK = ("trl", "dapo", "greso")
HISTORY = ("grpo_history", "dppo_history", "dppo_history_sizes")


def compared(subject, names, build=BUILD, setting=QUICK, *, controls=False):
    """The table of these methods; its ``uniform`` and ``oracle`` lines only where asked for, since they take long."""
    contestants = choose(names, {}, {})
    lines = lines_of(contestants, methods_of(contestants, build, {}), subject, build)
    return compare_frozen(lines if controls else lines[: len(names)], build("dppo"), setting)


@pytest.fixture(scope="module")
def grid(subject):
    names = [*BLOCK, "cppo", "pods", "infobatch", "dppo_deterministic", "dppo_threshold", "dppo", *HISTORY]
    return compared(subject, names, controls=True)


def test_the_grid_finds_the_biased_and_passes_the_unbiased(grid, subject):
    assert grid.passed and grid.completions_with_gradient == int(subject.completions(METHODS["grpo"]).live_N.sum())
    verdicts = {(row.name, row.level): row.verdict for row in grid.measured}
    one, other = frozenset({PrunedLevel.COMPLETIONS}), frozenset({PrunedLevel.PROMPTS})
    unbiased = ("dppo", "dppo_threshold", "uniform", "oracle", "dppo_history", "dppo_history_sizes")
    levels = {
        **dict.fromkeys((*BLOCK, "grpo_history"), frozenset({PrunedLevel.BLOCK})),
        **{"cppo": one, "pods": one, "infobatch": other},
        **dict.fromkeys(("dppo_deterministic", *unbiased), EVERY_RATE),
    }
    assert {line.name: line.levels for line in grid.lines} == levels
    assert set(verdicts) == {(name, level) for name, taken in levels.items() for level in taken}
    assert {verdicts[name, PrunedLevel.COMPLETIONS] for name in ("cppo", "pods", "dppo_deterministic")} == {"biased"}
    assert {verdicts[name, level] for name in unbiased for level in EVERY_RATE} == {"unbiased"}
    assert verdicts["grpo_history", PrunedLevel.BLOCK] == "unbiased"
    dashes = [(each["name"], each["rate_of"]) for each in grid.as_json()["not_taken"]]
    assert ("cppo", "prompts") in dashes and ("infobatch", "completions") in dashes
    assert all(row.found for row in grid.controls) and len(grid.controls) == 4


def test_the_oracle_beats_knowing_nothing_and_uniform_is_the_formula(grid, subject):
    found = {(row.name, row.level): row.figures for row in grid.measured}
    live = int(subject.completions(METHODS["grpo"]).live_N.sum())
    for level in (PrunedLevel.COMPLETIONS, PrunedLevel.PROMPTS):
        assert found["oracle", level].added_variance < found["uniform", level].added_variance
    row = found["uniform", PrunedLevel.COMPLETIONS]
    assert row.largest_weight == pytest.approx(2.0) and row.effective_rows == pytest.approx(live / 2, abs=1)
    assert found["uniform", PrunedLevel.PROMPTS].prompts_kept == 0.5


def test_draws_without_the_history_of_their_full_batch_are_wrong(subject, monkeypatch):
    monkeypatch.setattr(draws, "with_context", lambda prompts, context: prompts)
    wrong = {row.name for row in compared(subject, HISTORY).measured if row.verdict == "WRONG"}
    assert wrong == set(HISTORY)


@pytest.mark.parametrize(("weighting", "level"), [(DOUBLED, "completions"), (FORGOTTEN, "prompts")])
def test_a_method_that_lies_about_its_bias_is_named(subject, weighting, level):
    """The wrong twin of a method that is unbiased: it declares nothing, and its weights are wrong at one level."""

    def lying(name):
        method = BUILD(name)
        if name != "dppo_threshold":
            return method
        return replace(method, **{level: replace(getattr(method, level), weighting=weighting, rule=uniform)})

    result = compared(subject, ["dppo_threshold"], lying)
    wrong = {row.level for row in result.measured if row.verdict == "WRONG"}
    assert not result.passed
    assert wrong == {PrunedLevel.COMPLETIONS if level == "completions" else PrunedLevel.PROMPTS, PrunedLevel.BOTH}


def test_false_alarms_are_shared_among_the_rows_with_chance(grid, subject):
    assert grid.tests == len([row for row in grid.measured if not row.exact])
    (row,) = [row for row in grid.measured if (row.name, row.level) == ("dppo", PrunedLevel.BOTH)]
    (line,) = [line for line in grid.lines if line.name == "dppo"]
    (both,) = [made for _, _, made in cells([line], [0.5]) if made.prompts.rate == made.completions.rate == 0.5]
    pairs = [
        (made.prompts.rate, made.completions.rate) for _, level, made in cells([line], [0.3, 0.7]) if "both" in level
    ]
    assert pairs == [(0.3, 0.3), (0.3, 0.7), (0.7, 0.3), (0.7, 0.7)], "of prompts, then of completions"
    bias = bias_of(sample(line.subject, both, QUICK.draws, 0), root(subject.gram_NN))
    assert row.squared_bias_bound == bias.bound(1e-3 / grid.tests) and row.chance_without_bias == bias.chance


def test_methods_have_the_objective_of_the_configuration_or_their_own():
    build = embedded_training().build_other
    assert build("dppo").normaliser.name == build("cppo").normaliser.name == "dr_grpo"
    assert build("cppo_trl").normaliser.name == "bnpo" and build("dapo").normaliser.name == "dapo"
    assert all(build(name).prompts.rate == build(name).completions.rate == 0 for name in METHODS)


def test_a_contestant_keeps_its_own_fields_and_others_those_of_the_configuration():
    fields = {"dataset_name": "embedded", "loss_type": "grpo", "method": "dppo", "prune_floor": 0.4}
    fields |= {"completion_prune_rate": 0.5, "use_cpu": True, "bf16": False}
    block = {"mean": {"method": "dppo", "completion_score": "uncertainty"}, "fewer": {"method": "grpo", "beta": 0.1}}
    names = ["trl", "mean", "fewer", "dppo", "dapo"]
    contestants = choose(names, block, fields)
    assert [each.preset for each in contestants] == ["grpo", "dppo", "grpo", "dppo", "dapo"]
    methods = methods_of(contestants, as_configured(configured(fields)), fields)
    found = {each.name: method for each, method in zip(contestants, methods, strict=True)}
    assert found["mean"].score_name == "advantage with uncertainty per token"
    assert found["dppo"].score_name == "absolute advantage"
    assert found["mean"].completions.floor == found["dppo"].completions.floor == 0.4
    assert (found["fewer"].beta, found["trl"].beta) == (0.1, 0.0)
    assert (found["trl"].normaliser.name, found["dapo"].normaliser.name) == ("grpo", "dapo")


@pytest.mark.parametrize(
    ("names", "setting", "named"),
    [
        (["dppo"], {"rates": (0.5, 1.0)}, ("rate 1", "--rates")),
        (["dppo"], {"draws": 3}, ("draws=3", "--draws")),
    ],
)
def test_bad_input(subject, names, setting, named):
    with refused(ConfigError, *named):
        compared(subject, names, setting=FrozenSettings(**setting))
