"""The grid of the frozen table: every line at every rate, and what is biased found."""

from dataclasses import replace

import pytest
from refusals import refused
from wrong_weights import DOUBLED, FORGOTTEN

from dppo.context import NOTHING_KNOWN
from dppo.errors import ConfigError
from dppo.lab.comparison.contestants import choose
from dppo.lab.frozen import lines
from dppo.lab.frozen.grid import FrozenSettings, compare_frozen
from dppo.lab.frozen.lines import EVERY_RATE, PrunedLevel
from dppo.lab.frozen.sample import bias_of, sample
from dppo.lab.subject import remembered
from dppo.pruning import uniform
from dppo.verification import draws
from dppo.verification.draws import root, step_prompts

BUILD = lines.as_embedded()
QUICK = FrozenSettings(rates=(0.5,), draws=100)
BLOCK = ("trl", "dapo", "greso")
HISTORY = ("grpo_history", "dppo_history", "dppo_history_sizes")


def compared(subject, names, build=BUILD, *, controls=False):
    """The table of these methods; its ``uniform`` and ``oracle`` lines only where asked for, since they take long."""
    contestants = choose(names, {}, {})
    found = lines.lines_of(contestants, lines.methods_of(contestants, build, {}), subject, build)
    return compare_frozen(found if controls else found[: len(names)], QUICK)


def test_the_grid_finds_the_biased_passes_the_unbiased_and_shares_false_alarms_among_rows_with_chance(subject):
    names = [*BLOCK, "cppo", "pods", "infobatch", "dppo_deterministic", "dppo_threshold", "dppo", *HISTORY]
    grid = compared(subject, names, controls=True)
    assert grid.passed
    verdicts = {(row.name, row.level): row.verdict for row in grid.measured}
    unbiased = ("dppo", "dppo_threshold", "uniform", "oracle", "dppo_history", "dppo_history_sizes")
    levels = {
        **{name: {PrunedLevel.BLOCK} for name in (*BLOCK, "grpo_history")},
        **{"cppo": {PrunedLevel.COMPLETIONS}, "pods": {PrunedLevel.COMPLETIONS}, "infobatch": {PrunedLevel.PROMPTS}},
        **dict.fromkeys(("dppo_deterministic", *unbiased), EVERY_RATE),
    }
    assert set(verdicts) == {(name, level) for name, taken in levels.items() for level in taken}
    assert {verdicts[name, PrunedLevel.COMPLETIONS] for name in ("cppo", "pods", "dppo_deterministic")} == {"biased"}
    assert {verdicts[name, level] for name in unbiased for level in EVERY_RATE} == {"unbiased"}
    assert verdicts["grpo_history", PrunedLevel.BLOCK] == "unbiased"
    found = {(row.name, row.level): row.figures for row in grid.measured}
    for level in EVERY_RATE:
        assert found["oracle", level].added_variance < found["uniform", level].added_variance
    (row,) = [row for row in grid.measured if (row.name, row.level) == ("dppo_history", PrunedLevel.PROMPTS)]
    method = BUILD("dppo_history")
    known = replace(subject, candidates=remembered(subject, method))
    drawn = sample(known, method.with_rates(prompt=0.5, completion=0.0).at(0.0), QUICK.draws, 0)
    tests = sum(not row.figures.exact for row in grid.measured)
    assert row.squared_bias_bound == bias_of(drawn, root(subject.gram_NN)).bound(1e-3 / tests)


def test_draws_without_the_history_of_their_full_batch_are_wrong(subject, monkeypatch):
    monkeypatch.setattr(draws, "step_prompts", lambda *of: replace(step_prompts(*of), context=NOTHING_KNOWN))
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
    assert not result.passed and wrong == {level}


def test_a_contestant_keeps_its_own_fields_and_others_those_of_the_configuration():
    fields = {"dataset_name": "embedded", "loss_type": "grpo", "method": "dppo", "prune_floor": 0.4}
    fields |= {"completion_prune_rate": 0.5, "use_cpu": True, "bf16": False}
    block = {"mean": {"method": "dppo", "completion_score": "uncertainty"}, "fewer": {"method": "grpo", "beta": 0.1}}
    names = ["trl", "mean", "fewer", "dppo", "dapo"]
    contestants = choose(names, block, fields)
    assert [each.preset for each in contestants] == ["grpo", "dppo", "grpo", "dppo", "dapo"]
    methods = lines.methods_of(contestants, lines.as_configured(lines.configured(fields)), fields)
    found = {each.name: method for each, method in zip(contestants, methods, strict=True)}
    assert found["mean"].score_name == "advantage with uncertainty per token"
    assert found["dppo"].score_name == "absolute advantage"
    assert found["mean"].completions.floor == found["dppo"].completions.floor == 0.4
    assert (found["fewer"].beta, found["trl"].beta) == (0.1, 0.0)
    assert (found["trl"].normaliser.name, found["dapo"].normaliser.name) == ("grpo", "dapo")
    assert all(method.prompts.rate == method.completions.rate == 0 for method in methods)


def test_bad_input():
    for setting, named in (({"rates": (0.5, 1.0)}, "rate 1"), ({"draws": 3}, "draws=3"), ({"seed": -1}, "seed=-1")):
        with refused(ConfigError, named, *(f"--{name}" for name in setting)):
            FrozenSettings(**setting)
