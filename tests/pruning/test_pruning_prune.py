"""``Pruning`` and ``PromptPruning``: what they check, what they keep, and how many."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from arrays import candidates_of
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from dppo.errors import ConfigError, DesignError
from dppo.pruning import Budget, PromptPruning, Pruning, advantage_with_length, advantage_with_uncertainty
from dppo.pruning.designs import DESIGNS, DETERMINISTIC, PIVOTAL, POISSON, SYSTEMATIC, UNWEIGHTED
from dppo.pruning.probabilities import proportional, threshold, uniform
from dppo.rng import Purpose, generator
from dppo.types import Completions


def never_the_first(score_N, budget):
    """A rule with a hole, which no pruning with it says."""
    prob = uniform(score_N, budget)
    prob[0] = 0
    return prob


def completions(groups: int = 8, size: int = 8) -> Completions:
    source = torch.Generator().manual_seed(0)
    advantage = torch.randn(groups * size, generator=source).sub_(0.2)
    advantage[:size] = 0
    return Completions(
        advantage_N=advantage,
        tokens_N=torch.randint(1, 50, (groups * size,), generator=source),
        group_N=torch.arange(groups).repeat_interleave(size),
        live_N=advantage != 0,
    )


def rng(seed: int = 0):
    return generator(seed, Purpose.CHECK)


def test_impossible_settings_are_refused_together():
    for level in (Pruning, PromptPruning):
        with refused(ConfigError, f"{level.__name__}: 2 problems", "floor=0.5 must be in (0, 0.3]", "budget='bits'"):
            level(rate=0.7, floor=0.5, budget="bits")
        with refused(ConfigError, "rate=1", "[0, 1)"):
            level().at_rate(1.0)
    for kind in (partial(Pruning, rate=0.5), partial(Budget, rate=0.5, floor=0.2)):
        with refused(ConfigError, "least=1.5"):
            kind(least=1.5)
    with refused(DesignError, "floor=0.6", "rate=0.5 keeps", "floor=0.25"):  # also where some may be below the floor
        Budget(rate=0.5, floor=0.6, least=0.1)


@pytest.mark.parametrize("level", [Pruning, PromptPruning])
def test_another_rate_lowers_the_floor_to_half_of_what_is_kept(level):
    for rate, floor in ((0.0, 0.1), (0.8, 0.1), (0.9, 0.05), (0.95, 0.025)):
        changed = level(rate=0.5, floor=0.1, rule=uniform).at_rate(rate)
        assert (changed.rate, changed.rule) == (rate, uniform) and changed.floor == pytest.approx(floor)
    assert level(rate=0.5, floor=0.4).at_rate(0.3).floor == 0.4, "a lower rate leaves the floor that was asked for"


def test_a_term_whose_size_is_not_known_keeps_one_floor_for_all():
    level = Pruning(rate=0.6, floor=0.2, least=0.05, score=advantage_with_length)
    advantage_N, live_N = torch.tensor([0.0, 1.2, 0.0, -0.8, 0.0, 0.0]), torch.ones(6, dtype=torch.bool)
    rows = replace(completions(1, 6), advantage_N=advantage_N, live_N=live_N, beta=0.1, other=0.2)
    assert level.informed(rows).least == 0.05 and level.draw(rows, rng()).prob_N.min() < 0.2
    unknown = replace(rows, other=None)
    assert level.informed(unknown).least is None and level.draw(unknown, rng()).prob_N.min() == pytest.approx(0.2)


def test_rate_zero_keeps_every_live_row_and_no_history_every_prompt_whatever_the_parts():
    rows, unseen = completions(), candidates_of([1.0] * 7, seen=[False] * 7)
    for design in DESIGNS.values():
        off = Pruning(rate=0.0, rule=never_the_first, design=design, score=advantage_with_uncertainty)
        new = PromptPruning(rate=0.9, rule=never_the_first, design=design)
        for draw, live_N in ((off.draw(rows, rng()), rows.live_N), (new.draw(unseen, rng()), ~unseen.seen_P)):
            assert torch.equal(draw.keep_N, live_N)
            assert torch.equal(draw.weight_N, live_N.double()) and torch.equal(draw.prob_N, live_N.double())


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_rows_without_a_gradient_are_never_kept_and_results_are_in_the_order_given(design):
    rows = completions()
    live, score_N = rows.live_N, advantage_with_length(rows)
    draw = Pruning(rate=0.5, design=design, score=advantage_with_length, budget="tokens").draw(rows, rng())
    expected_N = torch.zeros(len(live)).double()
    expected_N[live] = proportional(score_N[live], Budget(rate=0.5, floor=0.1, cost_N=rows.tokens_N[live].double()))
    torch.testing.assert_close(draw.prob_N, expected_N, rtol=1e-12, atol=0)
    assert not draw.keep_N[~live].any()
    torch.testing.assert_close(draw.weight_N, torch.where(draw.keep_N, 1 / draw.prob_N, 0.0), rtol=0, atol=0)


def sides_kept(pruning: Pruning, seed: int) -> set[int]:
    """Rows kept of each (group, sign) when every group has two of each sign, in a scrambled order."""
    mix, ones = torch.randperm(24, generator=torch.Generator().manual_seed(1)), torch.ones(24)
    group, advantage = torch.arange(6).repeat_interleave(4)[mix], torch.tensor([1.0, 1, -1, -1] * 6)[mix]
    rows = Completions(advantage_N=advantage, tokens_N=ones, group_N=group, live_N=ones.bool())
    side = 2 * group + (advantage > 0)
    return set(torch.bincount(side[pruning.draw(rows, rng(seed)).keep_N], minlength=12).tolist())


def test_the_pivotal_draw_takes_its_share_of_each_group_and_sign():
    assert all(sides_kept(Pruning(rate=0.5, rule=uniform), seed) == {1} for seed in range(20))
    assert any(sides_kept(Pruning(rate=0.5, rule=uniform, design=SYSTEMATIC), seed) != {1} for seed in range(20))


def test_a_row_that_can_never_be_kept_is_refused_unless_the_bias_is_declared():
    rows = completions()
    for level, units in ((Pruning, rows), (PromptPruning, candidates_of([1.0, 2, 3, 4, 5]))):
        with refused(DesignError, "1 units", "probability 0"):
            level(rate=0.5, rule=never_the_first).draw(units, rng())
    for declared in ({"design": DETERMINISTIC}, {"weighting": UNWEIGHTED}):
        draw = Pruning(rate=0.5, rule=never_the_first, **declared).draw(rows, rng())
        assert (draw.prob_N[rows.live_N] == 0).sum() == 1


@given(
    signal=st.lists(st.floats(0, 5) | st.just(0.0), min_size=1, max_size=20),
    unseen=st.integers(0, 8),
    rate=st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]),
    multiple=st.sampled_from([1, 1, 2, 4]),
    budget=st.sampled_from(["rows", "tokens"]),
    rule=st.sampled_from([proportional, threshold, uniform]),
    design=st.sampled_from([PIVOTAL, SYSTEMATIC, DETERMINISTIC]),
)
def test_prompt_counts_are_fixed_whole_and_multiples(signal, unseen, rate, multiple, budget, rule, design):
    seen, total = len(signal), len(signal) + unseen
    tokens = [1.0 + (7 * n) % 11 for n in range(total)]
    block = candidates_of(signal + [1.0] * unseen, seen=[True] * seen + [False] * unseen, tokens=tokens)
    pruning = PromptPruning(rate=rate, floor=0.1, rule=rule, budget=budget, design=design)
    multiple = 1 if total % multiple else multiple
    draws = [pruning.draw(block, rng(seed), multiple=multiple) for seed in range(3)]
    (count,) = {int(draw.keep_N.sum()) for draw in draws}
    assert count % multiple == 0 and 1 <= count <= total
    assert draws[0].prob_N.sum().item() == pytest.approx(count, abs=1e-9)
    assert all(draw.keep_N[seen:].all() and (draw.prob_N[seen:] == 1).all() for draw in draws)
    assert draws[0].prob_N.min() >= 0.1 - 1e-9
    if rule is uniform or (rule is proportional and budget == "rows"):
        lowest = max(round((1 - rate) * seen) + unseen, 1)
        assert lowest <= count < lowest + multiple + 1


def test_counts_that_cannot_be_are_refused():
    for rate in (0.0, 0.1):
        with refused(DesignError, "multiple of 4", "the block has 6"):
            PromptPruning(rate=rate).draw(candidates_of([1.0] * 6), rng(), multiple=4)
    with refused(DesignError, "'poisson'"):
        PromptPruning(rate=0.5, design=POISSON).draw(candidates_of([1.0] * 8), rng(), multiple=4)
    with refused(DesignError, "1 of 20"):
        PromptPruning(rate=0.5).at_total(candidates_of([1.0] * 20), 1)
