"""Pass rates of a dataset: a prior before the first visit, rejected if they mislead, never a bias."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from arrays import tensor
from drafts import Run, trained
from pruning_enumeration import mean_weight
from refusals import refused

from dppo.errors import ConfigError, DataError, ShapeError
from dppo.methods import METHODS
from dppo.objective import DAPO_TOKENS, GRPO_MEAN
from dppo.pruning import PromptHistory, PromptPrior, PromptPruning, PromptValues
from dppo.pruning.prior import prior_of_column, prior_problems, read_prior
from dppo.types import Rewards

SIZE, PROMPTS, GROUP = 400, 16, 4
METHOD = replace(METHODS["dppo"], normaliser=GRPO_MEAN, prompts=PromptPruning(rate=0.5, floor=0.2))
LIVE = np.arange(SIZE) % 5 == 0
"""One prompt in five has a pass rate of a half, and all others one of 1."""
TRUE = torch.from_numpy(np.where(LIVE, 0.5, 1.0))


def source(rate_P, *, method=METHOD, completions=4.0):
    prior = None if rate_P is None else PromptPrior(rate_P=rate_P, completions=completions)
    return Run.over(SIZE, method, prompts=PROMPTS, seed=3, prior=prior)


def answers(row_Q):
    """Rewards of groups by the true rates: mixed for live ones."""
    reward_QG = torch.ones(len(row_Q), GROUP)
    reward_QG[torch.from_numpy(LIVE)[row_Q], :2] = 0.0
    return Rewards.of_groups(reward_QG)


def kept_share(prompts) -> float:
    """Share of the candidates that were rolled out."""
    return len(prompts.row_Q) / len(prompts.candidates.row_P)


taught = partial(trained, answers=answers, generations=GROUP, tokens=7)


def test_a_right_column_prunes_from_the_first_step_stays_in_use_and_rolls_out_more_groups_with_signal():
    run, without = source(TRUE), source(None)
    by_column, plain = taught(run, 20), taught(without, 20)
    first = by_column[0]
    live_P = torch.from_numpy(LIVE)[first.candidates.row_P]
    assert kept_share(first) < 0.7 and first.candidates.seen_P.all()
    assert first.draw.prob_N[live_P].min() > first.draw.prob_N[~live_P].max()
    assert kept_share(plain[0]) == 1, "the wrong twin: nothing is known of prompts without a history"
    assert run.checked_prior.rates is not None and not run.messages and len(run.checked_prior.first_visits) > 64
    live, usual = (np.concatenate([LIVE[each.row_Q.numpy()] for each in steps]).mean() for steps in (by_column, plain))
    assert live > 1.3 * usual


def test_prompts_whose_rate_is_not_known_are_always_rolled_out():
    rate_P = TRUE.clone()
    rate_P[1::2] = torch.nan
    (first,) = taught(source(rate_P), 1)
    unknown_P = rate_P[first.candidates.row_P].isnan()
    assert unknown_P.any() and (first.draw.prob_N[unknown_P] == 1).all() and (first.draw.prob_N[~unknown_P] < 1).any()


def test_a_mean_over_tokens_waits_for_the_first_generation():
    run = source(TRUE, method=replace(METHOD, normaliser=DAPO_TOKENS))
    first, second = taught(run, 2)
    assert kept_share(first) == 1 and first.expected_tokens is None
    assert kept_share(second) < 0.7 and second.expected_tokens == pytest.approx(7 * GROUP * PROMPTS)


@pytest.mark.parametrize("wrong", ["reversed", "noise"])
def test_a_misleading_column_is_turned_off_with_a_line(wrong, tmp_path):
    noise = torch.from_numpy(np.random.default_rng(0).choice([0.5, 1.0], SIZE, p=[0.2, 0.8]))
    run = source(1.5 - TRUE if wrong == "reversed" else noise, completions=64.0)
    steps = taught(run, 24)
    (message,) = run.messages
    assert run.checked_prior.rates is None and "prompt_prior is turned off" in message
    off = next(k for k, each in enumerate(steps) if not each.candidates.seen_P.all())
    assert all(kept_share(each) == 1 for each in steps[off:]), "prompts without a history are rolled out again"
    again = source(noise, completions=64.0)
    again.load(tmp_path, run.save(tmp_path))
    assert again.checked_prior.rates is None and not again.messages, "a resumed run repeats no message"


def test_a_prior_that_was_left_out_once_comes_back(tmp_path):
    def rates(run, *priors):
        """Rates in use after stops, each followed by a run with another prior."""
        for rate_P in priors:
            other = source(rate_P)
            other.load(tmp_path, run.save(tmp_path))
            run = other
        return run.checked_prior.rates

    run = source(TRUE)
    taught(run, 3)
    assert rates(run, None) is None and rates(run, None, TRUE).rate_P is TRUE
    run.checked_prior.rejected = True  # as where it was found to mislead
    assert rates(run, TRUE) is None and rates(run, None, TRUE) is None


@pytest.mark.parametrize("rate", [[0.0, 0.5, 1.0, 0.9, 0.2], [1.0, 1.0, 0.0, 0.1, 0.3]])
def test_weights_are_one_on_average_whatever_the_column_says(rate):
    """Over every real draw of a first block; the wrong twin leaves the weights out."""
    history = PromptHistory(np.arange(5, dtype=np.uint64))
    prior = PromptPrior(rate_P=tensor(rate), completions=8)
    candidates = history.candidates(torch.arange(5), 0, history.signal_prior(prior.signal_chance_P(GROUP), 2.0))
    bare_P = mean_weight(METHOD.prompts, candidates, lambda draw: draw.keep_N.double())
    assert (mean_weight(METHOD.prompts, candidates) - 1).abs().max() < 1e-12 < 0.1 < (bare_P - 1).abs().max()


def test_the_chance_of_a_mixed_group_is_that_of_the_beta_distribution():
    prior = PromptPrior(rate_P=tensor([0.25, 0.75, torch.nan]), completions=2.0)
    right = tensor([1.5, 2.5])  # 2 of its own and 2 of the mean, one half
    grid = torch.linspace(1e-6, 1 - 1e-6, 200001, dtype=torch.float64)[:, None]
    density = torch.distributions.Beta(right, 4 - right).log_prob(grid).exp()
    wanted = (density * (1 - grid**4 - (1 - grid) ** 4)).sum(0) / density.sum(0)
    found = prior.signal_chance_P(4)
    torch.testing.assert_close(found[:2], wanted, rtol=1e-4, atol=0)
    assert found[2].isnan() and prior.signal_chance_P(1)[0] == prior.signal_chance_P(2)[0]


def test_a_baseline_from_history_starts_from_the_column():
    first = source(TRUE, method=METHODS["dppo_history"]).block(0, generations=GROUP)
    expected, mixed = first.context.expected, (4 * TRUE[first.row_Q] + 2 * TRUE.mean()) / 6
    assert expected is not None and expected.strength_QF.unique().tolist() == [7.0]
    torch.testing.assert_close(expected.mean_QF[:, 0], mixed)


def test_what_is_wrong_with_the_setting_or_the_column_is_said():
    good = {"column": "solve_rate", "completions": 4}
    assert not prior_problems(good) and read_prior('{"column": "solve_rate", "completions": 4}') == good
    assert read_prior("solve_rate") == "solve_rate"
    for bad in ("solve_rate", {"column": "x"}, good | {"completions": 0}, good | {"column": 3}, good | {"of": 1}):
        (said,) = prior_problems(bad)
        assert "prompt_prior" in said and "{column: solve_rate, completions: 4}" in said
    assert prior_of_column([0, None, 1.0], 4, "p").rate_P.isnan().tolist() == [False, True, False]
    columns = ([0.5, "hard"], ("row 1", "'p'", "hard")), ([0.5, 37.5], ("row 1", "37.5")), ([None], ("prompt_prior",))
    for column, named in columns:
        with refused(DataError, *named):
            prior_of_column(column, 4, "p")
    with refused(ShapeError, "2 prompts", SIZE):
        source(tensor([0.5, 0.5]))
    one_P = torch.ones(4, dtype=torch.float64)
    values = PromptValues(value_P=one_P, count_P=one_P, mean_P=one_P, square_P=one_P)
    with refused(ConfigError, "priors"):
        Run.over(4, METHOD, prompts=2, values=values, prior=PromptPrior(rate_P=one_P, completions=4.0))


def test_a_prior_of_signals_leaves_lengths_alone():
    history = PromptHistory(np.arange(8, dtype=np.uint64))
    rewards, tokens_N = Rewards.of_groups(torch.tensor([[0.0, 0, 1, 1]] * 8)), torch.tensor([30.0] * 4 + [6.0] * 28)
    history.update(range(8), rewards, torch.ones(8), tokens_N, 0)
    priors = (None, history.signal_prior(torch.ones(8), 1000.0))
    plain, strong = (history.candidates(range(8), 1, prior=given) for given in priors)
    assert torch.equal(plain.tokens_P, strong.tokens_P) and plain.tokens_P[0] > 1.5 * plain.tokens_P[1]
