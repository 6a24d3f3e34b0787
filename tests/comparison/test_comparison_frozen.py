"""Draws on a frozen policy: what the trainer would draw, and figures that agree with a sum over every outcome."""

import math
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch

from dppo.comparison.contestants import choose
from dppo.comparison.frozen import bias_interval, bias_of, figures, group_norms, root
from dppo.comparison.frozen_draws import NoChance, block, gradients, sample
from dppo.comparison.frozen_grid import Setting, frozen_report
from dppo.comparison.frozen_methods import (
    Level,
    at_rates,
    configured,
    embedded_training,
    entries_of,
    from_training,
    lines_of,
)
from dppo.demo.model import build_model
from dppo.demo.tokenizer import build_tokenizer
from dppo.errors import ConfigError
from dppo.methods import CPPO, DAPO, DPPO, DPPO_DETERMINISTIC, DPPO_THRESHOLD, GRESO, GRPO, METHODS, PODS
from dppo.objective import BATCH_SCALED, DAPO_TOKENS
from dppo.pruning import POISSON, PromptHistory, advantage_with_confidence, inverse_probability, uniform
from dppo.rng import Purpose, generator
from dppo.trl.completions import CompletionSelector
from dppo.trl.draws import Schedule
from dppo.trl.prompts import Selection
from dppo.types import Candidates, Completions
from dppo.verification.enumerate import enumerated, every_way
from dppo.verification.estimate import draw_errors, estimate_bias, full_batch
from dppo.verification.subject import Sampling, frozen_subject, remembered

EXACT = 1e-10


@pytest.fixture(scope="module")
def subject():
    prompts = [[1, 4 + p, 14, 5 + p, 16, 2] for p in range(6)]
    return frozen_subject(
        build_model(0),
        build_tokenizer(),
        prompts,
        lambda prompt, tokens: torch.zeros(len(tokens)),
        sampling=Sampling(generations=4, max_new_tokens=10),
        title="untrained",
    )


@pytest.fixture(scope="module")
def small(subject):
    """Three prompts with a signal in both sets, so that every outcome can be gone through."""
    found = subject.candidates
    return replace(
        subject,
        prompt_tokens=subject.prompt_tokens[:3],
        completion_tokens=subject.completion_tokens[:12],
        reward_PG=torch.tensor([[1.0, 0, 0, 0], [0, 1, 1, 0], [1, 1, 0, 1]], dtype=torch.float64),
        confidence_N=subject.confidence_N[:12],
        gram_NN=subject.gram_NN[:12, :12],
        earlier_tokens=subject.earlier_tokens[:12],
        earlier_reward_PG=torch.tensor([[0.0] * 4, [1, 0, 0, 1], [1] * 4], dtype=torch.float64),
        candidates=Candidates(
            row_P=torch.arange(3),
            signal_P=torch.tensor([0.5, 1.0, 0.2], dtype=torch.float64),
            tokens_P=found.tokens_P[:3],
            seen_P=found.seen_P[:3],
        ),
    )


def selector(method, group):
    return CompletionSelector(
        method=method,
        schedule=Schedule(passes=1, shares=1, calls=1),
        seed=0,
        group=group,
        processes=1,
        gather=lambda tensor: tensor,
    )


CHANGED = {
    "batch deviation": replace(DPPO, advantages=BATCH_SCALED),
    "tokens, poisson": replace(DPPO, normaliser=DAPO_TOKENS, completions=replace(DPPO.completions, design=POISSON)),
    "token budget": replace(DPPO, completions=replace(DPPO.completions, budget="tokens")),
    "kl": replace(DPPO, beta=0.1),
}
PRUNING = {name: method for name, method in METHODS.items() if method.rounds is None} | CHANGED


@pytest.mark.parametrize("rates", [(0.0, 0.5), (0.5, 0.0), (0.5, 0.5)], ids=["completions", "prompts", "both"])
@pytest.mark.parametrize("name", PRUNING)
def test_draws_are_those_of_the_trainer(subject, name, rates):
    method = PRUNING[name].with_rates(prompt=rates[0], completion=rates[1])
    prepared = block(subject, method)
    drawn = [
        prepared.draw(generator(3, i, Purpose.PROMPT_DRAW), generator(3, i, Purpose.COMPLETION_DRAW, 0))
        for i in range(4)
    ]
    ours = gradients(subject, method, drawn) - full_batch(subject, method)
    assert torch.allclose(ours, draw_errors(subject, method, 4, 3), rtol=0, atol=1e-14)


def test_skipped_prompts_have_the_chance_that_their_past_gives_them(small):
    """One flat group before is one in a row: half a chance. What has no gradient now counts for nothing anyway."""
    before_PG = torch.tensor([[0.0] * 4, [1.0] * 4, [0, 1, 0, 1]], dtype=torch.float64)
    skipped = replace(small, earlier_reward_PG=before_PG)
    assert block(skipped, GRESO).rolled_out_P.tolist() == [0.5, 0.5, 1.0]
    found = sample(skipped, GRESO, 2000, 0)
    used_MP = (found.weight_MN > 0).view(2000, 3, 4).any(2).double()
    assert used_MP.mean(0).tolist() == pytest.approx([0.5, 0.5, 1.0], abs=0.05)
    assert set(found.weight_MN.flatten().tolist()) == {0.0, 1.0}
    assert not found.exact and sample(skipped, DAPO, 100, 0).exact


def test_rounds_weigh_a_block_as_the_trainer_does(small):
    small = replace(small, reward_PG=torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 1]], dtype=torch.float64))
    keep_P = torch.tensor([True, False, True])
    selection = Selection(row_Q=torch.arange(3), weight_Q=keep_P.double(), candidates=2, seen_share=1.0)
    theirs = selector(DAPO, 4).draw(small.completions(DAPO), small.reward_PG.flatten(), selection, 0)
    found = sample(small, DAPO, 100, 0)
    assert found.exact and torch.equal(found.weight_MN, theirs.weight_SN)
    kept_tokens = float((small.tokens_N * keep_P.repeat_interleave(4)).sum())
    row = figures(found, bias_of(found, root(small.gram_NN)), root(small.gram_NN))
    assert theirs.tokens == kept_tokens
    assert row.relative_bias == pytest.approx(float(small.tokens_N.sum()) / kept_tokens - 1)
    assert row.mean_cosine == pytest.approx(1.0)
    assert row.prompts_kept == pytest.approx(2 / 3)


def enumerate_all(subject, method):
    """(bias, variance, cosine, cosine of the mean, rows) summed over every outcome of both draws."""
    prepared = block(
        subject, replace(method, prompts=enumerated(method.prompts), completions=enumerated(method.completions))
    )
    ways = list(every_way(lambda tape: prepared.draw(cast(np.random.Generator, tape), cast(np.random.Generator, tape))))
    chance_W = torch.tensor([chance for _, chance in ways], dtype=torch.float64)
    gradient_WN = gradients(subject, method, [drawn for drawn, _ in ways])
    full_N, gram_NN = full_batch(subject, method), subject.gram_NN
    inner = lambda a, b: torch.einsum("...n,nm,...m->...", a, gram_NN, b)  # noqa: E731
    mean_N, norm = chance_W @ gradient_WN, inner(full_N, full_N)
    length_W = inner(gradient_WN, gradient_WN).clamp_min(1e-300).sqrt()
    cosine_W = inner(gradient_WN, full_N.expand_as(gradient_WN)) / (length_W * norm.sqrt())
    weight_WN = torch.stack([drawn.weight_N for drawn, _ in ways])
    rows_W = weight_WN.sum(1).square() / weight_WN.square().sum(1).clamp_min(1e-300)
    assert float(chance_W.sum()) == pytest.approx(1.0)
    return {
        "relative_bias": float((inner(mean_N - full_N, mean_N - full_N) / norm).sqrt()),
        "added_variance": float(chance_W @ inner(gradient_WN - mean_N, gradient_WN - mean_N) / norm),
        "cosine": float(chance_W @ cosine_W),
        "mean_cosine": float(inner(mean_N, full_N) / (inner(mean_N, mean_N) * norm).sqrt()),
        "effective_rows": float(chance_W @ rows_W),
    }


ENUMERATED = {
    "dppo, completions": DPPO.with_rates(prompt=0.0, completion=0.5),
    "dppo, prompts": DPPO.with_rates(prompt=0.5, completion=0.0),
    "dppo, both": DPPO.with_rates(prompt=0.3, completion=0.5),
    "threshold, both": DPPO_THRESHOLD.with_rates(prompt=0.5, completion=0.5),
    "cppo": CPPO,
    "cppo, prompts drawn": CPPO.with_rates(prompt=0.5, completion=0.5),
    "pods, prompts drawn": PODS.with_rates(prompt=0.5, completion=0.5),
    "token denominator": replace(DPPO, normaliser=DAPO_TOKENS).with_rates(prompt=0.5, completion=0.5),
    "rounds that skip": GRESO,
    "deterministic": DPPO_DETERMINISTIC.with_rates(prompt=0.5, completion=0.5),
}


@pytest.mark.parametrize("name", ENUMERATED)
def test_figures_agree_with_every_outcome(small, name):
    method = ENUMERATED[name]
    truth, root_NN = enumerate_all(small, method), root(small.gram_NN)
    found = sample(small, method, 1500, 0)
    row = figures(found, bias_of(found, root_NN), root_NN)
    assert (truth["relative_bias"] < EXACT) == method.unbiased
    if row.bias_low is None:
        assert found.exact and row.draws == 1
        for figure, value in truth.items():
            assert getattr(row, figure) == pytest.approx(value, abs=1e-9)
        return
    assert row.draws == 1500
    assert row.bias_low <= truth["relative_bias"] + 1e-9 and truth["relative_bias"] <= row.bias_high
    assert abs(row.added_variance - truth["added_variance"]) < 4 * row.added_variance_error
    assert abs(row.cosine - truth["cosine"]) < 4 * row.cosine_error
    assert row.mean_cosine == pytest.approx(truth["mean_cosine"], abs=0.02)
    assert row.effective_rows == pytest.approx(truth["effective_rows"], rel=0.05)


def test_the_variance_of_a_biased_method_leaves_its_bias_out(small):
    """The wrong twin: a mean of squared errors would count the bias as if more draws could remove it."""
    method, root_NN = ENUMERATED["cppo, prompts drawn"], root(small.gram_NN)
    found = sample(small, method, 1500, 0)
    bias = bias_of(found, root_NN)
    row, truth = figures(found, bias, root_NN), enumerate_all(small, method)["added_variance"]
    assert abs(bias.variance - truth) > 10 * row.added_variance_error > abs(row.added_variance - truth)


def test_the_root_of_the_mean_error_is_not_the_bias(small):
    """The wrong twin: with the noise of finite draws left in, an unbiased method has a bias of root(variance / M)."""
    method, root_NN = ENUMERATED["dppo, both"], root(small.gram_NN)
    found = sample(small, method, 400, 0)
    bias = bias_of(found, root_NN)
    naive = ((found.gradient_MN.mean(0) - found.full_N) @ root_NN).norm() / (found.full_N @ root_NN).norm()
    assert float(naive) ** 2 > bias.squared + 0.5 * bias.variance / 400
    assert bias.squared <= bias.bound(1e-4)


@pytest.mark.parametrize("true", [0.0, 0.03, 0.1, 0.5])
def test_the_interval_holds_the_bias_as_often_as_it_says(true):
    rng, full = np.random.default_rng(0), torch.eye(5, dtype=torch.float64)[0]
    spread = torch.tensor([1.0, 0.5, 0.5, 0.2, 0.1], dtype=torch.float64)
    held, widths = 0, []
    for _ in range(300):
        error_MK = torch.from_numpy(rng.standard_normal((400, 5))) * spread
        error_MK[:, 1] += true
        low, high = bias_interval(error_MK, estimate_bias(error_MK, torch.eye(5, dtype=torch.float64), full))
        held += low <= true <= high
        widths.append(high - low)
    assert held >= 0.91 * 300
    assert max(widths) < 0.4


def test_chance_is_the_rate_at_which_the_bound_is_met():
    error_MK = torch.from_numpy(np.random.default_rng(1).standard_normal((200, 4))) + 0.3
    bias = estimate_bias(error_MK, torch.eye(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64))
    assert 0 < bias.chance < 1e-3
    assert bias.bound(bias.chance) == pytest.approx(bias.squared)
    assert replace(bias, squared=-1.0).chance == 1.0
    assert replace(bias, spectrum=(0.0, 0.0)).chance == 0.0


def test_no_chance_is_known_by_asking_for_none(subject):
    for name in ("cppo", "cppo_trl", "cppo_verl", "pods", "dppo_deterministic", "grpo"):
        assert sample(subject, METHODS[name].with_rates(prompt=0.0), 100, 0).exact
    assert sample(subject, DPPO_DETERMINISTIC.with_rates(prompt=0.5, completion=0.5), 100, 0).exact
    assert not sample(subject, DPPO.with_rates(prompt=0.0, completion=0.5), 100, 0).exact
    assert not sample(subject, CPPO.with_rates(prompt=0.5, completion=0.5), 100, 0).exact
    with pytest.raises(Exception, match="random"):
        cast(np.random.Generator, NoChance()).random(2)


def test_nothing_pruned_is_the_full_batch(subject):
    root_NN = root(subject.gram_NN)
    assert torch.allclose(root_NN @ root_NN.T, subject.gram_NN, atol=1e-8 * float(subject.gram_NN.max()))
    found = sample(subject, GRPO, 100, 0)
    row = figures(found, bias_of(found, root_NN), root_NN)
    assert (row.relative_bias, row.added_variance, row.largest_weight) == (0.0, 0.0, 1.0)
    assert [row.cosine, row.mean_cosine] == pytest.approx([1.0, 1.0])
    assert row.effective_rows == found.rows == int(subject.completions(GRPO).live_N.sum())
    assert row.prompts_kept == row.rows_kept == 1.0


def test_a_draw_that_keeps_nothing_has_no_direction(small):
    method = replace(CPPO, completions=replace(CPPO.completions, rate=0.9))
    found, root_NN = sample(small, method, 100, 0), root(small.gram_NN)
    row = figures(found, bias_of(found, root_NN), root_NN)
    assert (row.relative_bias, row.cosine, row.mean_cosine) == (1.0, 0.0, 0.0)
    assert (row.effective_rows, row.rows_kept) == (0.0, 0.0)


def test_group_norms_are_those_of_the_vectors():
    vector_NK = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    full_N = torch.tensor([1.0, -2, 0.5, 0, 3, 1], dtype=torch.float64)
    wanted = (full_N[:, None] * vector_NK).view(3, 2, 9).sum(1).norm(dim=1)
    assert torch.allclose(group_norms(full_N, vector_NK @ vector_NK.T, 2), wanted)


@pytest.mark.parametrize("score", [None, advantage_with_confidence], ids=["own", "confidence"])
def test_what_is_remembered_is_what_the_trainer_would_remember(subject, score):
    method = DPPO if score is None else replace(DPPO, completions=replace(DPPO.completions, score=score))
    tokens_N = torch.tensor([len(tokens) for tokens in subject.earlier_tokens])
    advantage_N = method.advantages(subject.earlier_reward_PG).flatten()
    unsure = []
    for row, tokens in enumerate(subject.earlier_tokens):
        sequence = torch.tensor([subject.prompt_tokens[row // 4] + tokens])
        with torch.no_grad():
            probs = subject.model(input_ids=sequence).logits[0].float().softmax(-1)
        start = sequence.shape[1] - len(tokens) - 1
        unsure.append([1 - float(probs[start + place, token]) for place, token in enumerate(tokens)])
    completions = Completions(
        advantage_N=advantage_N,
        tokens_N=tokens_N,
        group_N=torch.arange(24) // 4,
        live_N=method.live(advantage_N),
        confidence_N=torch.tensor([math.sqrt(sum(u * u for u in row)) for row in unsure], dtype=torch.float64),
    )
    history = PromptHistory(np.arange(6, dtype=np.uint64))
    signal_Q = selector(method, 4).signal(completions)
    history.update(torch.arange(6), subject.earlier_reward_PG, signal_Q, tokens_N.view(6, 4), 0)
    wanted, found = history.candidates(torch.arange(6), 1), remembered(subject, method)
    assert torch.allclose(found.signal_P, wanted.signal_P, rtol=1e-5)
    assert torch.allclose(found.tokens_P, wanted.tokens_P) and bool(found.seen_P.all())


def test_earlier_rollouts_are_others_than_those_measured(subject):
    assert len(subject.earlier_tokens) == len(subject.completion_tokens) == 24
    assert subject.earlier_tokens != subject.completion_tokens
    assert subject.earlier_reward_PG.shape == subject.reward_PG.shape


# The grid.

BUILD = from_training(embedded_training())
QUICK = Setting(rates=(0.5,), draws=300)


def report_of(subject, names, build=BUILD, setting=QUICK):
    entries = entries_of(choose(names, {}, {}), build, {})
    return frozen_report(lines_of(entries, subject, build), build("dppo"), setting)


def test_the_grid_finds_the_biased_and_passes_the_unbiased(subject):
    names = ["trl", "dapo", "greso", "cppo", "pods", "infobatch", "dppo_deterministic", "dppo_threshold", "dppo"]
    report = report_of(subject, names)
    assert report.passed and report.rows_with_gradient == int(subject.completions(GRPO).live_N.sum())
    found = {(row.name, row.level): row for row in report.rows}
    for name in ("cppo", "pods", "dppo_deterministic"):
        assert found[name, Level.COMPLETIONS].verdict == "biased"
    for name in ("dppo", "dppo_threshold", "uniform", "oracle"):
        for level in (Level.COMPLETIONS, Level.PROMPTS, Level.BOTH):
            assert found[name, level].verdict == "unbiased"
    assert set(found) & {("cppo", Level.PROMPTS), ("cppo", Level.BOTH), ("infobatch", Level.COMPLETIONS)} == set()
    assert [row.level for row in report.rows if row.name in ("trl", "greso")] == [Level.BLOCK] * 2
    assert ("cppo", Level.PROMPTS) in report.dashes and ("infobatch", Level.COMPLETIONS) in report.dashes
    assert {line.name: len(line.takes) for line in report.lines} == {
        **{"trl": 0, "dapo": 0, "greso": 0, "cppo": 1, "pods": 1, "infobatch": 1},
        **{"dppo_deterministic": 2, "dppo_threshold": 2, "dppo": 2, "uniform": 2, "oracle": 2},
    }
    assert all(row.found for row in report.controls) and len(report.controls) == 4


def _doubled(keep_N, prob_N):
    return 2 * inverse_probability(keep_N, prob_N)


def _forgotten(keep_N, prob_N):
    return keep_N.double()


@pytest.mark.parametrize("weighting", [_doubled, _forgotten])
@pytest.mark.parametrize("level", ["completions", "prompts"])
def test_a_method_that_lies_about_its_bias_is_named(subject, weighting, level):
    """The wrong twin of ``dppo``: it declares nothing, and its weights are wrong at one level."""

    def lying(name):
        method = BUILD(name)
        if name != "dppo_threshold":
            return method
        return replace(method, **{level: replace(getattr(method, level), weighting=weighting, rule=uniform)})

    report = report_of(subject, ["dppo_threshold", "dppo"], lying)
    wrong = {row.level for row in report.rows if row.wrong}
    assert not report.passed
    assert wrong == {Level.COMPLETIONS if level == "completions" else Level.PROMPTS, Level.BOTH}
    assert {row.name for row in report.rows if row.wrong} == {"dppo_threshold"}


def test_false_alarms_are_shared_among_the_rows_with_chance(subject):
    report = report_of(subject, ["cppo", "dppo"], setting=Setting(rates=(0.3, 0.5), draws=100))
    random = [row for row in report.rows if not row.exact]
    assert report.tests == len(random) == 3 * (2 + 2 + 4)
    assert all(row.figures.draws == 100 for row in random)
    (row,) = [r for r in random if (r.name, r.prompt_rate, r.completion_rate) == ("dppo", 0.5, 0.3)]
    (line,) = [line for line in report.lines if line.name == "dppo"]
    method = at_rates(line.method, prompt=0.5, completion=0.3)
    bias = bias_of(sample(line.subject, method, 100, 0), root(subject.gram_NN))
    assert row.bound == bias.bound(1e-3 / 24) and row.chance == bias.chance


def test_the_oracle_beats_knowing_nothing_and_uniform_is_the_formula(subject):
    report = report_of(subject, ["dppo"])
    found = {(row.name, row.level): row.figures for row in report.rows}
    live = int(subject.completions(GRPO).live_N.sum())
    for level in (Level.COMPLETIONS, Level.PROMPTS):
        assert found["oracle", level].added_variance < found["uniform", level].added_variance
    row = found["uniform", Level.COMPLETIONS]
    assert row.largest_weight == pytest.approx(2.0)
    assert row.effective_rows == pytest.approx(live / 2, abs=1)
    assert found["uniform", Level.PROMPTS].prompts_kept == 0.5


def test_rates_leave_the_rule_a_choice():
    floors = [at_rates(DPPO, prompt=0.0, completion=rate).completions.floor for rate in (0.3, 0.7, 0.9)]
    assert floors == pytest.approx([0.1, 0.1, 0.05])
    assert at_rates(METHODS["infobatch"], prompt=0.5, completion=0.0).prompts.rate == 0.5, "its schedule has not ended"


def test_methods_have_the_objective_of_the_configuration_or_their_own():
    training = embedded_training()
    training.advantage_power = 0.5
    build = from_training(training)
    assert build("dppo").normaliser.name == build("cppo").normaliser.name == "dr_grpo"
    assert build("cppo_trl").normaliser.name == "bnpo" and build("dapo").normaliser.name == "dapo"
    assert "0.5" in build("pods").advantages.name
    assert all(build(name).prompts.rate == build(name).completions.rate == 0 for name in METHODS)
    assert training.method == "dppo" and training.completion_prune_rate == 0.5, "the arguments are left alone"


def test_a_contestant_keeps_its_own_fields_and_others_those_of_the_configuration():
    fields = {
        "dataset_name": "embedded",
        "loss_type": "grpo",
        "method": "dppo",
        "prune_floor": 0.4,
        "use_cpu": True,
        "bf16": False,
    }
    block = {"mean": {"method": "dppo", "completion_score": "confidence"}, "fewer": {"method": "grpo", "beta": 0.1}}
    names = ["trl", "mean", "fewer", "dppo", "dapo"]
    build = from_training(configured(fields).training)
    found = {entry.name: entry for entry in entries_of(choose(names, block, fields), build, fields)}
    assert [entry.stands_for for entry in found.values()] == ["grpo", "dppo", "grpo", "dppo", "dapo"]
    assert found["mean"].method.score_name == "advantage with confidence per token"
    assert found["dppo"].method.score_name == "absolute advantage"
    assert found["mean"].method.completions.floor == found["dppo"].method.completions.floor == 0.4
    assert (found["fewer"].method.beta, found["trl"].method.beta) == (0.1, 0.0)
    assert (found["trl"].method.normaliser.name, found["dapo"].method.normaliser.name) == ("grpo", "dapo")


@pytest.mark.parametrize(
    ("problem", "names", "setting"),
    [
        ("method 'dpo' is unknown. Did you mean dppo", ["dpo"], {}),
        ("--methods is empty", [], {}),
        (r"rate 1 is not in \(0, 1\)", ["dppo"], {"rates": (0.5, 1.0)}),
        (r"rate 0 is not in \(0, 1\)", ["dppo"], {"rates": (0.0,)}),
        ("no rates are given", ["dppo"], {"rates": ()}),
        ("draws=3 must be at least", ["dppo"], {"draws": 3}),
        ("seed=-1 must be", ["dppo"], {"seed": -1}),
    ],
)
def test_bad_input(subject, problem, names, setting):
    with pytest.raises(ConfigError, match=problem):
        report_of(subject, names, setting=Setting(**setting))
