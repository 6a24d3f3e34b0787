"""``Pruning`` and ``PromptPruning``: what they check, what they keep, and how many."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dppo.errors import ConfigError, DesignError
from dppo.pruning import (
    DESIGNS,
    DETERMINISTIC,
    PIVOTAL,
    POISSON,
    SYSTEMATIC,
    UNWEIGHTED,
    Budget,
    PromptPruning,
    Pruning,
    advantage_with_confidence,
    advantage_with_length,
    proportional,
    threshold,
    uniform,
)
from dppo.rng import Purpose, generator
from dppo.types import Candidates, Completions


def never_the_first(score_N, budget):
    """A rule with a hole, which no pruning with it says."""
    prob = uniform(score_N, budget)
    prob[0] = 0
    return prob


def completions(groups: int = 8, size: int = 8, seed: int = 0) -> Completions:
    source = torch.Generator().manual_seed(seed)
    advantage = torch.randn(groups, size, generator=source).sub_(0.2)
    advantage[0] = 0
    advantage = advantage.flatten()
    return Completions(
        advantage_N=advantage,
        tokens_N=torch.randint(1, 50, (groups * size,), generator=source),
        group_N=torch.arange(groups).repeat_interleave(size),
        live_N=advantage != 0,
    )


def candidates(signal, seen=None, tokens=None) -> Candidates:
    size = len(signal)
    return Candidates(
        row_P=torch.arange(size),
        signal_P=torch.tensor(signal, dtype=torch.float64),
        tokens_P=torch.tensor(tokens if tokens else [1.0] * size, dtype=torch.float64),
        seen_P=torch.tensor(seen if seen else [True] * size, dtype=torch.bool),
    )


def rng(seed: int = 0):
    return generator(seed, Purpose.CHECK)


@pytest.mark.parametrize("level", [Pruning, PromptPruning])
def test_all_problems_are_reported_at_once(level):
    with pytest.raises(ConfigError) as error:
        level(rate=0.7, floor=0.5, budget="bits")
    text = str(error.value)
    assert f"{level.__name__}: 2 problems" in text
    assert "floor=0.5 must be in (0, 0.3]" in text and "budget='bits'" in text


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_rates_out_of_range_are_refused(rate):
    with pytest.raises(ConfigError, match=r"must be in \[0, 1\)"):
        Pruning(rate=rate)


def test_a_floor_equal_to_the_budget_in_decimal_is_accepted():
    rows = completions()
    draw = Pruning(rate=0.9, floor=0.1).draw(rows, rng())
    torch.testing.assert_close(draw.prob_N[rows.live_N], torch.full((56,), 0.1, dtype=torch.float64))


@pytest.mark.parametrize("level", [Pruning, PromptPruning])
def test_another_rate_lowers_the_floor_to_half_of_what_is_kept(level):
    """A floor of all that is kept would leave the rule no choice."""
    for rate, floor in ((0.0, 0.1), (0.8, 0.1), (0.9, 0.05), (0.95, 0.025)):
        changed = level(rate=0.5, floor=0.1, rule=uniform).at_rate(rate)
        assert (changed.rate, changed.rule) == (rate, uniform) and changed.floor == pytest.approx(floor)
    assert level(rate=0.5, floor=0.4).at_rate(0.3).floor == 0.4, "a lower rate leaves the floor that was asked for"
    with pytest.raises(ConfigError, match=r"rate=1 must be in \[0, 1\)"):
        level().at_rate(1.0)


def test_rate_zero_keeps_every_live_row_at_weight_one_whatever_the_parts():
    rows = completions()
    for design in DESIGNS.values():
        draw = Pruning(rate=0.0, rule=never_the_first, design=design, score=advantage_with_confidence).draw(rows, rng())
        assert torch.equal(draw.keep_N, rows.live_N)
        assert torch.equal(draw.weight_N, rows.live_N.double())
        assert torch.equal(draw.prob_N, rows.live_N.double())


def test_no_live_rows_and_no_rows_at_all():
    rows = completions()
    dead = replace(rows, live_N=torch.zeros(64, dtype=torch.bool))
    draw = Pruning(rate=0.5).draw(dead, rng())
    assert not draw.keep_N.any() and not draw.weight_N.any() and not draw.prob_N.any()
    none = torch.zeros(0)
    empty = Completions(advantage_N=none, tokens_N=none, group_N=none.long(), live_N=none.bool())
    assert Pruning(rate=0.5).draw(empty, rng()).keep_N.shape == (0,)
    assert PromptPruning(rate=0.5).draw(candidates([]), rng()).keep_N.shape == (0,)


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_rows_without_a_gradient_are_never_kept_and_results_are_in_the_order_given(design):
    rows = completions()
    pruning = Pruning(rate=0.5, design=design, score=advantage_with_length, budget="tokens")
    draw = pruning.draw(rows, rng())
    assert not draw.keep_N[~rows.live_N].any() and not draw.prob_N[~rows.live_N].any()
    live = rows.live_N
    budget = Budget(rate=0.5, floor=0.1, cost_N=rows.tokens_N[live].double())
    expected = proportional(advantage_with_length(rows)[live], budget)
    torch.testing.assert_close(draw.prob_N[live], expected, rtol=1e-12, atol=0)
    kept = draw.keep_N
    torch.testing.assert_close(draw.weight_N[kept], 1 / draw.prob_N[kept], rtol=0, atol=0)
    assert not draw.weight_N[~kept].any()


def test_a_budget_in_tokens_is_met_in_tokens():
    rows = completions()
    tokens = rows.tokens_N.double() * rows.live_N
    for budget in ("rows", "tokens"):
        draw = Pruning(rate=0.6, budget=budget).draw(rows, rng())
        expected = (draw.prob_N * tokens).sum() / tokens.sum()
        assert (abs(expected.item() - 0.4) < 1e-12) == (budget == "tokens")
        assert (abs(draw.prob_N.sum().item() / 56 - 0.4) < 1e-12) == (budget == "rows")


def test_a_live_row_without_tokens_costs_one():
    rows = replace(completions(), tokens_N=torch.zeros(64, dtype=torch.long))
    draw = Pruning(rate=0.5, budget="tokens").draw(rows, rng())
    assert draw.prob_N.sum().item() == pytest.approx(28)


def sides_kept(pruning: Pruning, seed: int) -> set[int]:
    """Rows kept of each (group, sign) when every group has two of each sign, in a scrambled order."""
    group = torch.arange(6).repeat_interleave(4)
    advantage = torch.tensor([1.0, 1, -1, -1] * 6)
    mix = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    rows = Completions(
        advantage_N=advantage[mix],
        tokens_N=torch.ones(24),
        group_N=group[mix],
        live_N=torch.ones(24, dtype=torch.bool),
    )
    keep = pruning.draw(rows, rng(seed)).keep_N
    side = (2 * group + (advantage > 0))[mix]
    return set(torch.bincount(side[keep], minlength=12).tolist())


def test_the_pivotal_draw_takes_its_share_of_each_group_and_sign():
    assert all(sides_kept(Pruning(rate=0.5, rule=uniform), seed) == {1} for seed in range(20))
    assert any(sides_kept(Pruning(rate=0.5, rule=uniform, design=SYSTEMATIC), seed) != {1} for seed in range(20))


def test_a_row_that_can_never_be_kept_is_refused_unless_the_bias_is_declared():
    rows, block = completions(), candidates([1.0, 2, 3, 4, 5])
    with pytest.raises(DesignError, match="1 units with a gradient have probability 0"):
        Pruning(rate=0.5, rule=never_the_first).draw(rows, rng())
    with pytest.raises(DesignError, match="probability 0"):
        PromptPruning(rate=0.5, rule=never_the_first).draw(block, rng())
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
    block = candidates(signal + [1.0] * unseen, [True] * seen + [False] * unseen, tokens)
    pruning = PromptPruning(rate=rate, floor=0.1, rule=rule, budget=budget, design=design)
    if -(-total // multiple) * multiple > total:
        multiple = 1
    draws = [pruning.draw(block, rng(seed), multiple=multiple) for seed in range(3)]
    counts = {int(draw.keep_N.sum()) for draw in draws}
    assert len(counts) == 1
    (count,) = counts
    assert count % multiple == 0 and 1 <= count <= total
    assert draws[0].prob_N.sum().item() == pytest.approx(count, abs=1e-9)
    assert all(draw.keep_N[seen:].all() and (draw.prob_N[seen:] == 1).all() for draw in draws)
    assert draws[0].prob_N.min() >= 0.1 - 1e-9
    if rule is uniform or (rule is proportional and budget == "rows"):
        lowest = max(round((1 - rate) * seen) + unseen, 1)
        assert lowest <= count < lowest + multiple + 1


def test_golden_prompt_draw():
    """Half of 8 seen prompts and 2 unseen are 6; as a multiple of 4 they are 8, so 6 of the 8 seen ones."""
    block = candidates([1.0] * 10, [True] * 8 + [False] * 2)
    draw = PromptPruning(rate=0.5).draw(block, rng())
    torch.testing.assert_close(draw.prob_N, torch.tensor([0.5] * 8 + [1.0] * 2, dtype=torch.float64))
    assert draw.keep_N.sum() == 6
    draw = PromptPruning(rate=0.5).draw(block, rng(), multiple=4)
    torch.testing.assert_close(draw.prob_N, torch.tensor([0.75] * 8 + [1.0] * 2, dtype=torch.float64))
    assert draw.keep_N.sum() == 8


def test_without_history_every_prompt_is_kept():
    for design in DESIGNS.values():
        draw = PromptPruning(rate=0.9, design=design, rule=never_the_first).draw(
            candidates([1.0] * 7, [False] * 7), rng()
        )
        assert draw.keep_N.all() and (draw.weight_N == 1).all() and (draw.prob_N == 1).all()


def test_counts_that_cannot_be_are_refused():
    with pytest.raises(DesignError, match=r"multiple of 4 prompts.*the block has 6"):
        PromptPruning(rate=0.1).draw(candidates([1.0] * 6), rng(), multiple=4)
    with pytest.raises(DesignError, match="the block has 6"):
        PromptPruning(rate=0.0).draw(candidates([1.0] * 6), rng(), multiple=4)
    with pytest.raises(DesignError, match="'poisson' keeps a random number"):
        PromptPruning(rate=0.5, design=POISSON).draw(candidates([1.0] * 8), rng(), multiple=4)
    with pytest.raises(DesignError, match="no rate keeps 1 of 20 prompts"):
        PromptPruning(rate=0.5).at_total(candidates([1.0] * 20), 1)


@given(
    total=st.integers(3, 24),
    rule=st.sampled_from([proportional, uniform]),
    budget=st.sampled_from(["rows", "tokens"]),
)
def test_any_total_above_the_floor_can_be_asked_for(total, rule, budget):
    block = candidates([0.0, 0.1, 1.0, 4.0] * 6, [True] * 22 + [False] * 2, [1.0, 5.0, 2.0] * 8)
    pruning = PromptPruning(rate=0.5, rule=rule, budget=budget)
    assert pruning.fewest(block) == pytest.approx(2 + 2.2)
    if total >= 5:
        draw = pruning.at_total(block, total).draw(block, rng())
        assert draw.keep_N.sum() == total
        assert draw.prob_N.sum().item() == pytest.approx(total, abs=1e-9)


def test_prompts_that_cost_more_are_rolled_out_less_often():
    block = candidates([1.0] * 4, tokens=[1.0, 1.0, 4.0, 4.0])
    prob = PromptPruning(rate=0.5, budget="tokens").draw(block, rng()).prob_N
    assert prob[0] / prob[2] == pytest.approx(2.0)


def test_equal_generators_give_equal_draws_and_single_precision_is_enough():
    rows = completions()
    first, again = (Pruning(rate=0.5).draw(rows, rng(5)) for _ in range(2))
    assert torch.equal(first.keep_N, again.keep_N) and torch.equal(first.weight_N, again.weight_N)
    assert first.weight_N.dtype == torch.float64 and rows.advantage_N.dtype == torch.float32


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_what_is_pruned_is_said_with_every_part(design):
    pruning = Pruning(rate=0.25, design=design, score=advantage_with_length, rule=threshold, budget="tokens", floor=0.2)
    for part in ("0.25 of the tokens", "threshold rule", "advantage with length", design.name, "floor 0.2"):
        assert part in str(pruning)
    assert "inverse probability weights" in str(pruning)
    assert "expected signal" in str(PromptPruning(rate=0.25))
    assert str(Pruning()) == str(PromptPruning()) == ""
