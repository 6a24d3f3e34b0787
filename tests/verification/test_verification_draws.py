"""Draws on rollouts that stand still: coefficients are those of autograd, and only what is biased is found biased."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from drafts import Run
from refusals import refused

from dppo.context import NOTHING_KNOWN, StepContext
from dppo.errors import ConfigError
from dppo.methods import METHODS
from dppo.methods.a_star_po import optimal_value
from dppo.objective import DAPO_TOKENS, HISTORY_CENTRED, Tokens, history_advantages, weighted_sum
from dppo.pruning import PromptHistory, PromptStream
from dppo.rng import step_streams
from dppo.types import Rewards
from dppo.verification.draws import (
    deviance,
    deviance_bound,
    draw,
    draw_errors,
    estimate_bias,
    full_batch,
    step_prompts,
)
from dppo.verification.subject import log_probs

DPPO, GRESO, DAPO = METHODS["dppo"], METHODS["greso"], METHODS["dapo"]


@pytest.mark.parametrize(
    "method",
    [DPPO, METHODS["dr_grpo"], METHODS["gspo"], replace(DPPO, normaliser=DAPO_TOKENS, beta=0.1)],
    ids=lambda m: m.normaliser.name,
)
def test_the_full_batch_is_the_gradient_of_the_whole_loss(subject, method):
    pairs = [(subject.prompt_tokens[i // 4], each) for i, each in enumerate(subject.completion_tokens)]
    logps = [log_probs(subject.model, *pair) for pair in pairs]
    logp = torch.nn.utils.rnn.pad_sequence(logps, batch_first=True).double()
    tokens = Tokens(
        logp_BT=logp,
        old_logp_BT=logp.detach(),
        advantage_B=method.advantages(subject.rewards, subject.context),
        mask_BT=torch.arange(logp.shape[1]) < subject.tokens_N[:, None],
        ref_logp_BT=logp.detach(),
    )
    per_sequence = method.normaliser.per_sequence
    total = weighted_sum(method.loss(tokens), tokens.mask_BT, torch.ones(len(pairs)), per_sequence=per_sequence)
    total = total / method.normaliser.denominator(len(pairs), float(subject.tokens_N.sum()), subject.max_tokens)
    gradient = torch.autograd.grad(total, list(subject.model.parameters()))
    square = sum(float(g.double().square().sum()) for g in gradient)
    full = full_batch(subject, method)
    assert float(full @ subject.gram_NN @ full) == pytest.approx(square, rel=1e-4)


HISTORY = [name for name, method in METHODS.items() if method.advantages.from_history]


def history_of(subject, **outcome):
    """By hand: a history that saw the earlier set at step 0."""
    history = PromptHistory(np.arange(6, dtype=np.uint64))
    history.update(torch.arange(6), subject.earlier_rewards, torch.ones(6), torch.ones(24), 0, **outcome)
    return history


def source_of(history, method, prompts, seed):
    """A source of the training, which takes the six prompts in their own order."""
    return Run(PromptStream(6, seed, shuffle=False), history, method, prompts=prompts)


@pytest.mark.parametrize("name", HISTORY)
def test_advantages_of_completions_are_against_the_history(subject, name):
    expected, method = history_of(subject).expected(torch.arange(6), 1), METHODS[name]
    real_N = history_advantages(subject.rewards, StepContext(expected=expected))
    if method.advantages is not HISTORY_CENTRED:
        real_N = real_N / (expected.variance_QF.sum(1).sqrt() + 0.1).repeat_interleave(4)
    assert torch.allclose(subject.completions(method).advantage_N, real_N, rtol=0, atol=1e-12)
    alone = replace(subject, context=NOTHING_KNOWN)
    assert (full_batch(alone, method) - full_batch(subject, method)).abs().max() > 1e-3, "the wrong twin: siblings"


def test_what_is_expected_of_a_draw_is_what_training_would_expect(subject):
    method = METHODS["dppo_history"].with_rates(prompt=0.5)
    for seed in range(20):
        source = source_of(history_of(subject), method, 6, seed)
        known = replace(subject, candidates=source.history.candidates(torch.arange(6), 1))
        trained, verified = source.block(1, generations=4), step_prompts(known, method, step_streams(seed, 1))
        assert torch.equal(verified.draw.keep_N, trained.draw.keep_N) and 0 < len(trained.row_Q) < 6
        for field in ("mean_QF", "variance_QF", "strength_QF"):
            assert torch.equal(getattr(verified.context.expected, field), getattr(trained.context.expected, field))
        shifted = subject.context.expected.take((trained.row_Q + 1) % 6)
        assert not torch.equal(shifted.mean_QF, trained.context.expected.mean_QF), "the wrong twin: of other prompts"


def test_a_value_from_before_is_what_advantages_are_against_and_goes_with_its_prompt(subject):
    """The wrong twin knows no values, which is an error and no other advantage."""
    method = METHODS["dppo_a_star_po"].with_rates(prompt=0.5, completion=0.5)
    value_P = optimal_value(subject.earlier_rewards.total_N.view(6, 4), beta=0.5)
    real_N = subject.rewards.total_N - value_P.repeat_interleave(4)
    drawn = draw(subject, method, step_streams(0, 0))
    kept_N = drawn.weight_N > 0
    assert 0 < kept_N.sum() < 12 and torch.equal(drawn.advantage_N[kept_N], real_N[kept_N])
    with refused(ConfigError, "value"):
        draw(replace(subject, context=NOTHING_KNOWN), method, step_streams(0, 0))


def test_only_methods_with_a_history_look_at_it(subject):
    alone = replace(subject, context=replace(subject.context, expected=None))
    for name in (name for name, method in METHODS.items() if name not in HISTORY and not method.tokens.active):
        assert torch.equal(full_batch(alone, METHODS[name]), full_batch(subject, METHODS[name]))
        assert torch.equal(*(draw_errors(one, METHODS[name], 3, 0) for one in (alone, subject)))


REWARD_PG = torch.tensor(
    [[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 1], [0, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 1]], dtype=torch.float64
)


def test_rounds_in_which_no_group_counts_train_on_nothing(subject):
    alike = Rewards.of_groups(torch.ones(6, 4))
    assert draw(replace(subject, rewards=alike), DAPO, step_streams(0, 0)).weight_N.sum() == 0


@pytest.mark.parametrize("wanted", [1, 2])
@pytest.mark.parametrize("method", [GRESO, DAPO], ids=lambda m: m.name)
def test_rounds_that_are_verified_are_those_of_training(subject, method, wanted):
    """Equal prompts and pasts give equal coins, counted groups and numbers of rounds."""
    now_PG = REWARD_PG[[0, 2, 3, 1, 5, 2]]
    now, earlier = Rewards.of_groups(now_PG), Rewards.of_groups(REWARD_PG)
    known = replace(subject, rewards=now, earlier_rewards=earlier, wanted=wanted)
    skipping, seen, history = method.rounds.skipping, [], PromptHistory(np.arange(6, dtype=np.uint64))
    if skipping is not None:
        kind_P, _ = skipping.learn(skipping.start(), known.earlier_rewards, epochs=0.0)
        history = history_of(known, outcome_Q=kind_P)
    for seed in range(40):
        source = source_of(history, method, wanted, seed)
        trained = source.rounds(0, lambda number, block: Rewards.of_groups(now_PG[block.row_Q]))
        verified = step_prompts(known, method, step_streams(seed, 0))
        if source.stream.epochs > 1:
            continue  # prompts that are known once cannot be taken twice
        seen.append(trained.collected.rounds)
        assert torch.equal(verified.draw.keep_N, trained.draw.keep_N)
        assert torch.equal(verified.draw.prob_N, trained.draw.prob_N)
        assert torch.equal(verified.weight_Q, trained.weight_Q) and verified.sequences == trained.sequences
        assert verified.collected == trained.collected and len(trained.draw.keep_N) < 7
    assert seen and (method is GRESO or max(seen) > 1), "some are compared, and of several rounds"


# The estimate of a bias, and its bound.

VECTORS = torch.randn(6, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
GRAM = VECTORS @ VECTORS.T
FULL = torch.ones(6, dtype=torch.float64)
NORM = float((FULL @ VECTORS).norm() ** 2)


def poisson_errors(rng, draws, prob, factor=1.0):
    """Errors of independent draws with weights ``factor / prob``."""
    keep = torch.from_numpy(rng.random((draws, 6)) < prob)
    return factor * keep / torch.as_tensor(prob) - 1


PROB = np.array([0.2, 0.5, 0.9, 0.4, 0.7, 0.3])


@pytest.mark.parametrize("factor", [1.0, 1.05, 0.8])
def test_the_squared_bias_is_right_on_average_and_its_standard_error_too(factor):
    rng = np.random.default_rng(0)
    found = [estimate_bias(poisson_errors(rng, 100, PROB, factor), GRAM, FULL) for _ in range(400)]
    squared = torch.tensor([bias.squared for bias in found])
    truth = (factor - 1) ** 2
    assert abs(squared.mean() - truth) < 4 * squared.std() / 20
    if factor == 1.0:
        stated = torch.tensor([bias.standard_error for bias in found]).mean()
        assert 0.85 < stated / squared.std() < 1.15


def test_the_bound_holds_at_its_rate_and_not_because_it_is_infinite():
    rng = np.random.default_rng(1)
    found = [estimate_bias(poisson_errors(rng, 200, PROB), GRAM, FULL) for _ in range(1000)]
    alarms = {rate: sum(bias.squared > bias.bound(rate) for bias in found) for rate in (0.5, 0.2, 0.05, 0.01)}
    assert all(count <= 1000 * rate for rate, count in alarms.items()) and alarms[0.5] > 20
    wrong = [estimate_bias(poisson_errors(rng, 200, PROB, 0.6), GRAM, FULL) for _ in range(50)]
    assert all(bias.squared > bias.bound(1e-5) for bias in wrong)


def test_the_spectrum_is_that_of_the_vectors():
    error_MN = poisson_errors(np.random.default_rng(2), 500, PROB)
    bias = estimate_bias(error_MN, GRAM, FULL)
    vector_MK = error_MN @ VECTORS
    eigenvalues = torch.linalg.eigvalsh(vector_MK.T.cov())
    assert bias.spectrum[0] == pytest.approx(float(eigenvalues.norm()) / 500 / NORM)
    assert bias.spectrum[1] == pytest.approx(float(eigenvalues.max()) / 500 / NORM)
    x = math.log(1 / 1e-3)
    assert bias.bound(1e-3) == pytest.approx(2 * bias.spectrum[0] * math.sqrt(x) + 2 * bias.spectrum[1] * x)


def test_no_variance_and_no_bias_passes_and_the_least_bias_without_variance_does_not():
    exact = estimate_bias(torch.zeros(10, 6, dtype=torch.float64), GRAM, FULL)
    assert exact.squared <= exact.bound(1e-4)
    slight = estimate_bias(torch.full((10, 6), 1e-4, dtype=torch.float64), GRAM, FULL)
    assert slight.squared == pytest.approx(1e-8) and slight.squared > slight.bound(1e-4)


def test_deviance_by_hand():
    half = torch.tensor([0.5], dtype=torch.float64)
    keep = torch.zeros(100, 1, dtype=torch.bool)
    keep[:50] = True
    assert deviance(keep, half) == 0.0
    keep[:60] = True
    assert deviance(keep, half) == pytest.approx(math.sqrt(200 * (0.6 * math.log(1.2) + 0.4 * math.log(0.8))))
    assert deviance(keep, half) == pytest.approx(2.0, abs=0.02), "ten more than 50 of 100: two standard deviations"
    for prob in (torch.zeros(1).double(), torch.ones(1).double()):
        assert deviance(keep, prob) == math.inf and deviance(prob.expand(10, 1).bool(), prob) == 0.0


def test_deviance_stays_within_its_bound_at_the_stated_rate():
    rng, prob = np.random.default_rng(3), np.array([0.01, 0.3, 0.5, 0.97])
    alarms = 0
    for _ in range(500):
        keep = torch.from_numpy(rng.random((200, 4)) < prob)
        alarms += deviance(keep, torch.from_numpy(prob)) > deviance_bound(4, 0.05)
    assert alarms <= 25
    keep = torch.from_numpy(rng.random((2000, 4)) < prob + np.array([0, 0.1, 0, 0]))
    assert deviance(keep, torch.from_numpy(prob)) > deviance_bound(4, 1e-4)
