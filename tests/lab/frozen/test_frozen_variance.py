"""The variance table: figures known in closed form, and the order that theory gives."""

from dataclasses import replace

import pytest
import torch

from dppo.lab.frozen.variance import KEEPS, at_share, figures_of, pilot_ceilings, variance_table
from dppo.methods import METHODS
from dppo.pruning import POISSON, Pruning, absolute_advantage, proportional, threshold, uniform, uniform_score
from dppo.pruning.ceiling import selection_ceiling
from dppo.types import Completions
from dppo.verification.draws import full_batch

DPPO, DR_GRPO = METHODS["dppo"], METHODS["dr_grpo"]


def test_every_rule_and_score_has_its_figures_at_every_share_and_uniform_draws_those_of_the_formula(subject):
    table = variance_table(subject, [replace(DPPO, normaliser=DR_GRPO.normaliser), DPPO], draws=40, seed=0)
    keys = {(row.rule, row.score, row.keep, row.normaliser): row for row in table}
    assert len(keys) == len(table) == 10 * 3 * 2
    assert {key[2] for key in keys} == set(KEEPS) and {key[3] for key in keys} == {"grpo", "dr_grpo"}
    for row in table:
        assert row.added_variance is None or row.added_variance > 0
        assert row.biased == (row.rule == "top k (CPPO)")
    for keep in KEEPS:
        row = keys["uniform", "none", keep, "dr_grpo"]
        assert row.largest_weight == pytest.approx(1 / keep)
        assert row.effective_rows == pytest.approx(keep * int(subject.completions(DPPO).live_N.sum()), abs=1)


def test_the_variance_is_the_poisson_formula_for_independent_draws(subject):
    """``sum (1 / prob - 1) |f|^2 / |sum f|^2``, for the same code with another design."""
    pruning = Pruning(rate=0.5, rule=uniform, score=uniform_score, design=POISSON)
    found = figures_of(subject, DPPO, pruning, draws=2000, seed=0)
    full = full_batch(subject, DPPO)
    exact = float((full.square() * subject.gram_NN.diagonal()).sum() / (full @ subject.gram_NN @ full))
    assert abs(found["added_variance"] - exact) < 4 * found["added_variance_error"] < 4 * 0.05 * exact


def test_a_share_is_met_by_raising_the_rate_of_a_rule_that_spares_rows():
    rows = {"tokens_N": torch.ones(10), "group_N": torch.zeros(10).long(), "live_N": torch.ones(10).bool()}
    few_low = Completions(advantage_N=torch.tensor([1.0] * 6 + [4.0] * 4), **rows)
    pruning = Pruning(score=absolute_advantage, rule=threshold)
    met = at_share(pruning, few_low, 0.6)
    assert met.rate == pytest.approx(2 / 3), "six rows may be pruned, and four of ten must be"
    assert at_share(pruning, few_low, 0.3) is None, "four rows are always kept"
    assert at_share(replace(pruning, rule=proportional), few_low, 0.3).rate == pytest.approx(0.7)


def test_a_pilot_of_enough_prompts_has_the_ceiling_of_both_levels(subject, monkeypatch):
    """By hand: V of completions is the squared score, V of prompts what was found where as much was expected."""
    monkeypatch.setattr("dppo.lab.frozen.variance.FEWEST", 2)
    prompts, completions = pilot_ceilings(subject, DPPO)
    found = subject.completions(DPPO)
    value_N = DPPO.score(found)[found.live_N].square()
    assert completions.value == pytest.approx(selection_ceiling(value_N, found.tokens_N[found.live_N]))
    assert completions.free == pytest.approx(1 - found.live_N.double().mean().item())
    assert prompts.units == 6 and prompts.free is None and 1 <= prompts.low <= prompts.value <= prompts.high
    assert str(prompts).endswith("of rollout and update") and str(completions).endswith("gradient, which are free")
