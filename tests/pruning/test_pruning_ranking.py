"""Rules without chance: exact counts, ties by the lowest index, and the subset of largest variance by brute force."""

from fractions import Fraction
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dppo.pruning import (
    DETERMINISTIC,
    Pruning,
    above_lowest,
    all_but_smallest,
    fixed_denominator,
    kept_mean,
    kept_tokens,
    largest,
    max_variance,
    unweighted,
    whole_processes,
    whole_prompts,
    whole_step,
)
from dppo.rng import generator
from dppo.types import Completions

RATES = [0.0, 0.1, 0.3, 0.5, 0.7, 0.75, 0.8, 0.875, 0.9, 0.9375, 0.95]


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def batch(advantage_PG, tokens=None, processes=None) -> Completions:
    advantage = tensor(advantage_PG)
    size = advantage.numel()
    return Completions(
        advantage_N=advantage.flatten(),
        tokens_N=torch.ones(size) if tokens is None else torch.tensor(tokens),
        group_N=torch.arange(size) // advantage.shape[1],
        live_N=advantage.flatten() != 0,
        process_N=None if processes is None else torch.tensor(processes),
    )


def kept(pruning, rows) -> list[int]:
    return pruning.draw_completions(rows, generator(0)).keep_N.nonzero().squeeze(1).tolist()


@pytest.mark.parametrize("rate", RATES)
def test_what_is_dropped_is_counted_in_integers(rate):
    exact = Fraction(str(rate))
    for size in range(1, 65):
        score = torch.arange(size).double()
        rounded_up = all_but_smallest(score, rate=rate, floor=0.1).sum().item()
        assert rounded_up == size - size * exact // 1
        difference = rounded_up - largest(score, rate=rate, floor=0.1).sum().item()
        assert difference == (0 if (size * exact).denominator == 1 else 1)


def test_the_two_codes_of_cppo_keep_one_row_more_or_less():
    """Of 256 rows at rate 0.9, 230.4 are to go: one code keeps 26, the other 25; of 160 both keep 16, not 15."""
    counts = {n: [rule(torch.arange(n).double(), rate=0.9, floor=0.1).sum() for rule in (all_but_smallest, largest)]
              for n in (256, 160)}  # fmt: skip
    assert counts == {256: [26, 25], 160: [16, 16]}


def test_ties_go_to_the_lowest_index():
    assert all_but_smallest(tensor([2] * 6), rate=0.5, floor=0.1).tolist() == [1, 1, 1, 0, 0, 0]
    assert all_but_smallest(tensor([1, 3, 3, 3, 1]), rate=0.8, floor=0.1).tolist() == [0, 1, 0, 0, 0]


# Two prompts: rewards of the first are 1 right of 8, of the second 4 of 8.
MINORITY, EVEN = [2.4742] + [-0.3535] * 7, [0.9353] * 4 + [-0.9353] * 4


def test_scopes_keep_different_rows_of_the_same_batch():
    rows = batch([MINORITY, EVEN])
    half = Pruning(rate=0.5, rule=largest, design=DETERMINISTIC)
    per_prompt = kept(Pruning(rate=0.5, rule=largest, design=DETERMINISTIC, scope=whole_prompts), rows)
    over_step = kept(Pruning(rate=0.5, rule=largest, design=DETERMINISTIC, scope=whole_step), rows)
    assert per_prompt == [0, 1, 2, 3, 8, 9, 10, 11]
    assert over_step == [0, *range(8, 15)], "the prompt with one right answer keeps one completion"
    assert kept(half, rows) == [0, 1, 2, 3, 12, 13, 14, 15], "by side: ties go to the negative one"


def test_prompts_without_signal_give_their_places_to_others():
    """They count in a flat ranking and are the first to go: an implicit filter of prompts."""
    rows = batch([[0.0] * 8, EVEN])
    over_step = Pruning(rate=0.5, rule=largest, design=DETERMINISTIC, scope=whole_step)
    assert kept(over_step, rows) == list(range(8, 16))
    per_prompt = Pruning(rate=0.5, rule=largest, design=DETERMINISTIC, scope=whole_prompts)
    assert kept(per_prompt, rows) == [0, 1, 2, 3, 8, 9, 10, 11], "here rows without a gradient are kept"
    assert kept(over_step, batch([[0.0] * 4])) == []


def test_processes_rank_their_own_rows():
    rows = batch([MINORITY, EVEN, EVEN, [0.1] * 8], processes=[0] * 16 + [1] * 16)
    pruning = Pruning(rate=0.75, rule=all_but_smallest, design=DETERMINISTIC, scope=whole_processes)
    assert kept(pruning, rows) == [0, 8, 9, 10, *range(16, 20)]
    alone = batch([MINORITY, EVEN])
    one = kept(Pruning(rate=0.75, rule=all_but_smallest, design=DETERMINISTIC, scope=whole_processes), alone)
    assert one == [0, 8, 9, 10], "one process where none is named"


def test_kept_tokens_make_a_mean_over_tokens_kept_on_each_process():
    loss_N, tokens_N = torch.rand(16, generator=torch.Generator().manual_seed(0)), torch.arange(1, 17)
    rows = batch([MINORITY, EVEN], tokens=tokens_N.tolist(), processes=[0] * 8 + [1] * 8)
    pruning = Pruning(
        rate=0.5,
        rule=all_but_smallest,
        design=DETERMINISTIC,
        scope=whole_processes,
        weighting=unweighted,
        rescaling=kept_tokens,
    )
    draw = pruning.draw_completions(rows, generator(0))
    means = []
    for part in (slice(0, 8), slice(8, 16)):
        keep = draw.keep_N[part]
        means.append((loss_N[part] * tokens_N[part])[keep].sum() / tokens_N[part][keep].sum())
    got = (draw.weight_N * loss_N * tokens_N).sum() / tokens_N.sum()
    torch.testing.assert_close(got, (sum(means) / 2).double())
    pooled = (loss_N * tokens_N)[draw.keep_N].sum() / tokens_N[draw.keep_N].sum()
    assert abs(got - pooled) > 1e-3, "one mean over both processes is another number"


def test_a_process_that_keeps_no_tokens_weighs_nothing():
    keep, tokens = torch.tensor([True, True, False, True]), tensor([2, 0, 3, 0])
    factor = kept_tokens(keep, tokens, torch.tensor([0, 0, 1, 1]))
    assert factor.isfinite().all() and factor[0] == 5 / 2 / 2


# Max variance.


def widest_by_brute_force(score, kept):
    return max(tensor(subset).var(correction=0).item() for subset in combinations(score, kept))


@given(
    score=st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.5, 2.0]) | st.floats(0, 3), min_size=1, max_size=8),
    rate=st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9]),
)
def test_max_variance_finds_the_best_of_all_subsets(score, rate):
    prob = max_variance(tensor(score), rate=rate, floor=0.1)
    expected = min(max(int(len(score) * (1 - Fraction(str(rate)))), 2), len(score))
    assert prob.sum() == expected
    found = tensor(score)[prob == 1].var(correction=0).item()
    assert found == pytest.approx(widest_by_brute_force(score, expected), rel=1e-9, abs=1e-9)


def test_the_largest_deviations_are_not_the_widest_subset():
    """The wrong twin: two far from the mean on the same side differ little from each other."""
    score = tensor([0, 0.1, 0.2, 5, 5, 5, 5])
    widest = score[max_variance(score, rate=0.5, floor=0.1) == 1]
    farthest = score[largest((score - score.mean()).abs(), rate=0.5, floor=0.1) == 1]
    assert farthest.tolist() == [0, 0.1, 0.2] and widest.var() > 10 * farthest.var()


def test_max_variance_balances_binary_rewards():
    one_of_eight, five_of_eight = tensor([0, 0, 0, 1, 0, 0, 0, 0]), tensor([1, 0, 1, 1, 0, 1, 0, 1])
    assert max_variance(one_of_eight, rate=0.5, floor=0.1).tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert max_variance(five_of_eight, rate=0.5, floor=0.1).tolist() == [1, 1, 1, 0, 1, 0, 0, 0]
    assert max_variance(tensor([0.3] * 8), rate=0.5, floor=0.1).tolist() == [1] * 4 + [0] * 4, "ties: the first"


def test_max_variance_keeps_two_at_least_and_works_in_each_group():
    score, group = tensor([0, 1, 2, 3, 5, 5, 9, 5]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    assert max_variance(score, rate=0.9, floor=0.1, group_N=group).tolist() == [1, 0, 0, 1, 1, 0, 1, 0]
    assert max_variance(tensor([4.0]), rate=0.9, floor=0.1).tolist() == [1]


def test_max_variance_does_not_lose_small_differences_of_large_rewards():
    score = tensor([1e6, 1e6 + 1, 1e6, 1e6 + 2, 1e6, 1e6 + 2])
    assert max_variance(score, rate=0.3, floor=0.1).tolist() == [1, 0, 1, 1, 0, 1]


def test_the_score_of_max_variance_is_the_reward_up_to_shift_and_scale():
    rows = batch([[2.0, -1, -1, 0], [0.5, 0.5, -1, 0]])
    assert above_lowest(rows).tolist() == [3, 0, 0, 1, 1.5, 1.5, 0, 1]
    mixed = Completions(
        advantage_N=tensor([1, 5, -1, -5]), tokens_N=torch.ones(4), group_N=torch.tensor([7, 2, 7, 2]),
        live_N=torch.ones(4, dtype=torch.bool),
    )  # fmt: skip
    assert above_lowest(mixed).tolist() == [2, 10, 0, 0]


@pytest.mark.parametrize("rule", [all_but_smallest, max_variance], ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("weighting", [kept_mean, unweighted], ids=lambda w: w.__name__)
def test_the_bias_is_named(rule, weighting):
    bias = Pruning(rate=0.5, rule=rule, design=DETERMINISTIC, weighting=weighting, scope=whole_step).bias
    assert rule.__name__ in bias and weighting.__name__ in bias


def test_dividing_by_the_tokens_kept_is_biased_with_the_right_weights_too():
    """The wrong twin of a fixed denominator: a ratio of two random numbers, here over every independent draw."""
    value, tokens, prob = tensor([1, -2, 4]), tensor([5, 1, 2]), tensor([0.5, 0.5, 0.5])
    masks = [torch.tensor([bool(n & 1), bool(n & 2), bool(n & 4)]) for n in range(8)]
    mean = {}
    for rescaling in (fixed_denominator, kept_tokens):
        weights = [keep / prob * rescaling(keep, tokens, torch.zeros(3)) for keep in masks]
        mean[rescaling.__name__] = sum((w * value * tokens).sum() for w in weights) / 8 / tokens.sum()
    exact = (value * tokens).sum() / tokens.sum()
    assert abs(mean["fixed_denominator"] - exact) < 1e-12
    assert abs(mean["kept_tokens"] - exact) > 0.05
    assert Pruning(rate=0.5, rescaling=kept_tokens).bias.startswith("sums are divided by the tokens that are kept")
