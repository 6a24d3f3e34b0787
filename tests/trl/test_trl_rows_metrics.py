"""Metrics that bear TRL's names are TRL's, of all three trainers on the same batch with nothing dropped."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import one_in
from sft_runs import compared
from tiny_runs import configured, logged
from trl_gradients import dppo_run, split, trl_run

from dppo.objective.losses import Tokens
from dppo.trl.grpo import rollouts
from dppo.trl.metrics import LossMetrics
from dppo.trl.rows.data import RowMetrics

LATER = dict(num_iterations=2, max_steps=2, learning_rate=0.3, loss_type="grpo")
"""A second step on each generation, whose ratios are not 1."""
GROUPS = {
    "plain": {},
    "kl, corrected": {"beta": 0.1, "use_bias_correction_kl": True},
    "delta below the upper bound": {"delta": 1.1, "epsilon_high": 0.28},
    "delta above it": {"delta": 1.5},
    "bonus": {"entropy_coef": 0.1},
    "dapo": {"entropy_coef": 0.1, "loss_type": "dapo", "beta": 0.1},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
}
SEVERAL = {
    "grpo": {},
    "dapo": {"loss_type": "dapo"},
    "sequences": {"importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.05},
    "vespo": {"loss_type": "vespo"},
}


def both(path, folder, **options):
    _, them = trl_run(path, folder, **options)
    _, us = dppo_run(path, folder, completion_prune_rate=0.0, **options)
    return us, them


def several(path, folder, options):
    """Both trainers after steps of two micro-batches of completions of many lengths."""
    own = {"beta": 0.1, "epsilon": 0.02, "shuffle_dataset": False, "learning_rate": 3e-2}
    return both(path, folder, **split(LATER | own | options, 2))


@pytest.mark.parametrize("options", one_in(3, GROUPS))
def test_metrics_of_groups_are_trls(options, tiny_path, tmp_path):
    """Without a reference completions without an advantage are not forwarded, and entropies are of the others."""
    us, them = both(tiny_path, tmp_path, **LATER | options)
    assert compared(us, them, but=() if "beta" in options or "entropy_coef" in options else ("entropy",)) == {}


@pytest.mark.parametrize("options", one_in(3, SEVERAL))
def test_metrics_of_steps_of_several_micro_batches_are_trls(options, tiny_path, tmp_path):
    """Means over TRL's micro-batches: each completion counts in the one that TRL deals it to."""
    us, them = several(tiny_path, tmp_path, options)
    assert compared(us, them) == {}
    assert any(value for name in ("clip_ratio/high_max", "cispo_clip_ratio", "kl") for value in logged(them, name))


def test_completions_in_other_micro_batches_give_other_metrics(tiny_path, tmp_path, monkeypatch):
    """The wrong twin: equal parts in the order of the rollout, and not in that of TRL's shuffle."""
    right = rollouts.calls_of
    monkeypatch.setattr(rollouts, "calls_of", lambda place_N, *others: right(torch.arange(len(place_N)), *others))
    assert {"kl", "entropy"} <= compared(*several(tiny_path, tmp_path, SEVERAL["grpo"])).keys()


ALONE = SimpleNamespace(reduce=lambda tensor, reduction: tensor, gather=lambda tensor: tensor, device="cpu")
"""In place of accelerate on one process."""
UNITS = 128


def drawn_metrics(estimate, draws=200):
    """The true mean of a metric over micro-batches of two units, and that of its estimates with one unit drawn of each.

    The larger a unit's value the more often it is drawn; ``estimate`` is given values, weights and micro-batches.
    """
    rng, first_N = np.random.default_rng(0), 2 * np.arange(UNITS // 2)
    value_N = rng.uniform(0.1, 2.0, UNITS)
    prob_N = (value_N.reshape(-1, 2) / value_N.reshape(-1, 2).sum(1, keepdims=True)).ravel()
    kept_DK = [first_N + (rng.random(UNITS // 2) < prob_N[1::2]) for _ in range(draws)]
    drawn = [[torch.from_numpy(each) for each in (value_N[kept], 1 / prob_N[kept], kept // 2)] for kept in kept_DK]
    return value_N.mean(), np.mean([np.mean(estimate(*parts)) for parts in drawn])


@pytest.mark.parametrize("each", ["step", "micro-batch"])
def test_a_metric_of_one_kept_row_in_each_micro_batch_estimates_that_of_all(each):
    """The wrong twin divides by the weights in each, which cancel: it is as if large rows were more."""

    def margins(value_K, weight_K, call_K):
        kept = len(value_K)
        weight_N = torch.cat([weight_K, torch.zeros(kept)])  # a dropped row beside each kept one
        metrics = RowMetrics(call_K.repeat(2), weight_N, [*range(kept)])
        metrics.add("rewards/margins", value_K, torch.ones(2 * kept), weight_K, torch.arange(kept))
        return metrics.reduced()["rewards/margins"]

    def estimate(*drawn):
        parts = [drawn] if each == "step" else zip(*(column.split(1) for column in drawn), strict=True)
        return [margins(*part) for part in parts]

    true, found = drawn_metrics(estimate)
    assert found == pytest.approx(true, rel=0.03) if each == "step" else found > 1.1 * true


def test_a_metric_of_one_kept_completion_in_each_micro_batch_estimates_that_of_all():
    """Of tokens: the completions have two each. The wrong twin divides by what is kept of each micro-batch."""
    method, call_N, ones_N = configured().build_method(), torch.arange(UNITS) // 2, torch.ones(UNITS)
    completions = SimpleNamespace(tokens_N=2 * ones_N.long(), live_N=ones_N.bool())
    plan = SimpleNamespace(counted_UN=ones_N[None].double(), advantage_N=ones_N, completions=completions)

    def estimate(value_K, weight_K, part_K):
        count, like = len(value_K), torch.zeros(len(value_K), 2)
        tokens = Tokens(logp_BT=like, old_logp_BT=like, mask_BT=like + 1, advantage_B=like[:, 0] + 1, ref_logp_BT=None)
        metrics = LossMetrics(method, count)
        share_UN4, unclipped_UC = rollouts.metric_shares(plan, call_N, count)
        whole = SimpleNamespace(share_UB4=share_UN4.float(), call_B=call_N)
        first = 2 * part_K  # of two completions that are alike
        batch = SimpleNamespace(rank_batch=whole, loss_weight=weight_K.float(), rows=first)
        metrics.add(tokens, batch, 0, value_K[:, None].expand(-1, 2).float(), None)
        return metrics.reduced(ALONE, unclipped_UC[0], denominator=1.0)[0]["entropy"]

    true, found = drawn_metrics(estimate)
    assert found == pytest.approx(true, rel=0.03)


@pytest.mark.slow
def test_metrics_of_a_step_are_of_all_the_generations_it_takes_parts_of(tiny_path, tmp_path):
    """Four micro-batches a step, of one generation, two or four. The wrong twin says half or a quarter."""
    options = dict(loss_type="dapo", entropy_coef=1e-4, beta=0.1, learning_rate=0.0, shuffle_dataset=False, max_steps=2)
    found = {}
    for steps in (4, 2, 1):
        us, them = both(tiny_path, tmp_path, **split(options, 4) | {"steps_per_generation": steps})
        assert logged(us, "policy_loss") == pytest.approx(logged(them, "policy_loss"), rel=1e-4)
        found[steps] = [logged(us, name)[0] for name in ("rows/tokens", "prune/tokens_trained")]
    assert found[4] == pytest.approx(found[2], rel=0.02) and found[4] == pytest.approx(found[1], rel=0.05)


@pytest.mark.parametrize("loss_type", ["dapo", "cispo"])
def test_the_loss_without_a_bonus_is_trls_under_accumulation(loss_type, tiny_path, tmp_path):
    """Of the first step: the bonus is a mean over the step's tokens here, and over each micro-batch's in TRL."""
    options = split({"entropy_coef": 0.1, "loss_type": loss_type, "num_iterations": 2, "max_steps": 2}, 2)
    us, them = both(tiny_path, tmp_path, **options)
    theirs, mine = logged(them, "policy_loss")[0], logged(us, "policy_loss")[0]
    assert abs(theirs) > 1e-4 and mine == pytest.approx(theirs, rel=1e-4)


def test_the_table_of_completions_has_the_advantages_that_are_trained_with(tiny_path, tmp_path):
    """The wrong twin leaves TRL's there, which are not divided by what history says."""
    _, made = dppo_run(tiny_path, tmp_path, method="dppo_history", log_completions=True)
    assert made.in_use is not None and len({*made._logs["advantages"]}) > 1
    assert [*made._logs["advantages"]] == pytest.approx(made.in_use.batch.advantage_B.tolist())
