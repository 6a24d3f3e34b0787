"""Rows in a training step: one layout, a budget that changes nothing else, odd batches, and metrics as TRL has them."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import one_in
from sft_runs import compared
from tiny_runs import PADDED_TOO, configured, logged, scripted
from trl_gradients import TOLERANCE, compare, constant, dppo_run, gradients, split, trl_run

from dppo.objective.losses import Tokens
from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.trl.batch import fill_tokens
from dppo.trl.forwards import ForwardPasses
from dppo.trl.layouts import PaddedLayout
from dppo.trl.metrics import LossMetrics
from dppo.trl.rows.data import RowMetrics


class Unchanged(DPPOTrainer):
    """Keeps the largest difference of each log-probability from the old and the reference policy's."""

    def _micro_batch_loss(self, model, batch, draw, metrics):
        with torch.no_grad():
            logp = self.forwards(model, batch).logp_BT
        others = {"old": batch.rank_batch.old_logp if draw else None, "ref": batch.rank_batch.ref_logp}
        for name, other in others.items():
            if other is not None:
                difference = (logp.float() - batch.completion(other)) * batch.completion(batch.rank_batch.loss_mask)
                self.differences = [*getattr(self, "differences", []), (name, float(difference.abs().max()))]
        return super()._micro_batch_loss(model, batch, draw, metrics)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16 autocast"])
def test_log_probabilities_of_a_model_that_does_not_change_are_equal(bf16, tiny_path, tmp_path, monkeypatch):
    """Old, new and reference policy: ratio 1, divergence 0. The wrong twin has two layouts in one step."""
    still = dict(num_iterations=2, max_steps=2, beta=0.1, learning_rate=0.0, completion_prune_rate=0.0, bf16=bf16)
    _, trainer = gradients(Unchanged, DPPOConfig, tiny_path, tmp_path, **still)
    assert trainer.differences == [("ref", 0.0), ("old", 0.0), ("ref", 0.0)] and logged(trainer, "kl") == [0.0, 0.0]

    def by_padding(self, whole, weight_B, model):
        layout = PaddedLayout(padded_forward=self._trainer.padded_forward, reason="")
        places = layout.places(whole, weight_B.nonzero().flatten().tolist(), 10_000)
        batches = layout.micro_batches(whole, weight_B, places)
        return fill_tokens(
            whole, batches, lambda each: layout.forward(model, each, entropy=False, router=False).logp_BT
        )

    monkeypatch.setattr(ForwardPasses, "log_probs", by_padding)
    if bf16:
        _, trainer = gradients(Unchanged, DPPOConfig, tiny_path, tmp_path, **still)
        assert min(figure for _, figure in trainer.differences) > 1e-3 and min(logged(trainer, "kl")) > 1e-7


@pytest.mark.parametrize("budget", [1, 12, 40, 10_000])
def test_no_row_is_over_the_budget_but_a_completion_alone(budget, tiny_path, tmp_path, forwarded):
    """``max_tokens_per_row`` decides how much one forward pass computes, and nothing else."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = {"ours": {"max_tokens_per_row": budget}, "beta": 0.1, "loss_type": "grpo", "max_steps": 2}
        differences, trainer = compare(tiny_path, tmp_path, **options)
    assert max(differences) < TOLERANCE
    trained = [row for row, gradient in forwarded if gradient]
    assert sum(logged(trainer, "rows/forwards")) == len(trained)
    assert sum(logged(trainer, "rows/tokens")) == sum(row.input_ids.numel() for row in trained)
    over = [row for row in trained if row.input_ids.numel() > budget]
    assert all(row.completions == 1 for row in over)
    said = [str(each.message) for each in caught if "a row of its own" in str(each.message)]
    assert len(said) == bool(over) == (budget < 17)
    assert all(
        f"one completion with its prompt is 16 tokens, over max_tokens_per_row={budget}" in text for text in said
    )


def places(prompts):
    """Place of each completion in its group: both trainers shuffle, so a place in the batch means nothing."""
    return [prompts[:at].count(prompt) for at, prompt in enumerate(prompts)]


def changed(every=1, prompt_tokens=99, completion_tokens=99, tool=False, truncated=False):
    """Rollouts of which every so many of a group are cut to a few tokens, are tool output, or have no end token."""

    def rollout(prompts, trainer):
        output = scripted(prompts, trainer)
        chosen = [place % every == 0 for place in places(prompts)]
        for name in ("completion_ids", "logprobs"):
            rows = zip(output[name], chosen, strict=True)
            output[name] = [values[: completion_tokens if mine else 99] for values, mine in rows]
        output["prompt_ids"] = [ids[:prompt_tokens] for ids in output["prompt_ids"]]
        pairs = [*zip(output["completion_ids"], chosen, strict=True)]
        if truncated:
            output["completion_ids"] = [[*ids[:-1], 5] if mine else ids for ids, mine in pairs]
        if tool:  # the other completions begin with it
            output["env_mask"] = [
                [int(not mine and t >= len(ids) // 2) for t in range(len(ids))] for ids, mine in pairs
            ]
        return output

    return rollout


def by_place(prompts, completions, answer, **_):
    """Rewards that differ in every group, whatever was written."""
    return [float((place + int(number)) % 3) for place, number in zip(places(prompts), answer, strict=True)]


ODD = {
    "prompts of one token": changed(prompt_tokens=1),
    "completions of one token": changed(completion_tokens=1),
    "some completions of one token": changed(every=3, completion_tokens=1),
    "some all tool output": changed(every=3, tool=True),
    "some truncated": changed(every=3, truncated=True),
}


@pytest.mark.parametrize("budget", [None, pytest.param(24, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ODD)
def test_the_gradient_of_an_odd_batch_is_trls(kind, budget, tiny_path, tmp_path, forwarded):
    """Old and reference log-probabilities of such rollouts count too."""
    options = dict(reward=by_place, num_iterations=2, max_steps=2, beta=0.1, loss_type="grpo", rollout=ODD[kind])
    options["mask_truncated_completions"] = "truncated" in kind
    differences, _ = compare(tiny_path, tmp_path, ours={"max_tokens_per_row": budget}, **options)
    assert max(differences) < TOLERANCE and forwarded


CALLS = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
NOTHING = {
    "equal rewards": dict(reward=constant),
    "all tool output": dict(rollout=changed(tool=True), beta=0.1, num_iterations=2),
    "accumulation": dict(rollout=changed(truncated=True), mask_truncated_completions=True, **CALLS),
}


@pytest.mark.parametrize("layout", PADDED_TOO)
@pytest.mark.parametrize("options", NOTHING.values(), ids=NOTHING)
def test_nothing_left_is_a_gradient_of_exactly_zero(options, layout, tiny_path, tmp_path, forwarded):
    steps, trainer = dppo_run(tiny_path, tmp_path, layout=layout, max_steps=2, **options)
    assert len(steps) == trainer.state.global_step == 2
    assert all(len(step) == len(list(trainer.model.parameters())) for step in steps), "no gradient is missing"
    assert {float(g.abs().max()) for step in steps for g in step.values()} == {0.0}
    assert logged(trainer, "loss") == [0.0, 0.0] and logged(trainer, "skipped_step_share") == [0.0, 0.0]
    assert logged(trainer, "rows/forwards") == logged(trainer, "rows/tokens") == [0.0, 0.0] and not forwarded


def test_a_draw_may_leave_nothing(tiny_path, tmp_path):
    """With independent draws of a few completions some steps keep none."""
    options = dict(prompts=1, sampling_design="poisson", completion_prune_rate=0.8, max_steps=8, reward=by_place)
    steps, trainer = dppo_run(tiny_path, tmp_path, **options)
    kept = logged(trainer, "prune/kept_share")
    assert len(steps) == 8 and 0 < kept.count(0.0) < 8
    for step, share in zip(steps, kept, strict=True):
        assert (max(float(g.abs().max()) for g in step.values()) == 0.0) == (share == 0.0)


LATER = dict(num_iterations=2, max_steps=2, learning_rate=0.3, loss_type="grpo")
"""A second step on each generation, whose ratios are not 1."""
SHORTER = LATER | {"beta": 0.1, "epsilon": 0.02, "shuffle_dataset": False, "learning_rate": 3e-2}
METRICS = {
    "plain": LATER,
    "kl, corrected": LATER | {"beta": 0.1, "use_bias_correction_kl": True},
    "delta below the upper bound": LATER | {"delta": 1.1, "epsilon_high": 0.28},
    "bonus": LATER | {"entropy_coef": 0.1},
    "dapo, bonus": LATER | {"entropy_coef": 0.1, "loss_type": "dapo", "beta": 0.1},
    "delta above it": LATER | {"delta": 1.5},
    "cispo": LATER | {"loss_type": "cispo", "epsilon_high": 5.0},
}
SEVERAL = {
    "dapo, bonus": SHORTER | {"loss_type": "dapo", "entropy_coef": 0.1},
    "grpo": SHORTER,
    "sequences": SHORTER | {"importance_sampling_level": "sequence"},
    "cispo": SHORTER | {"loss_type": "cispo", "epsilon_high": 1.05},
    "vespo": SHORTER | {"loss_type": "vespo"},
}


def ours(path, folder, options):
    return dppo_run(path, folder, completion_prune_rate=0.0, **options)[1]


@pytest.mark.parametrize("options", one_in(3, METRICS))
def test_metrics_are_trls(options, tiny_path, tmp_path):
    """Without a reference completions without an advantage are not forwarded, and entropies are of the others."""
    us, (_, them) = ours(tiny_path, tmp_path, options), trl_run(tiny_path, tmp_path, **options)
    assert compared(us, them, but=() if "beta" in options or "entropy_coef" in options else ("entropy",)) == {}


@pytest.mark.parametrize("options", one_in(3, SEVERAL))
def test_metrics_of_two_micro_batches_are_trls_of_one(options, tiny_path, tmp_path):
    """Completions are of many lengths."""
    us, (_, them) = ours(tiny_path, tmp_path, split(options, 2)), trl_run(tiny_path, tmp_path, **options)
    assert compared(us, them) == {}
    assert any(value for name in ("clip_ratio/high_max", "cispo_clip_ratio", "kl") for value in logged(them, name))


def test_means_over_micro_batches_are_other_metrics(tiny_path, tmp_path):
    """The wrong twin is TRL's own log of two micro-batches: a short completion counts more in one of short ones."""
    _, them = trl_run(tiny_path, tmp_path, **split(SHORTER, 2))
    assert {"kl", "entropy"} <= compared(ours(tiny_path, tmp_path, split(SHORTER, 2)), them).keys()


ALONE = SimpleNamespace(reduce=lambda tensor, reduction: tensor, gather=lambda tensor: tensor, device="cpu")
"""In place of accelerate on one process."""
UNITS = 128


def drawn_metrics(estimate, of=np.asarray, draws=200):
    """The true mean of a metric over pairs of units, and that of its estimates with one unit drawn of each pair.

    The larger a unit's value the more often it is drawn; the metric is a mean ``of`` values. ``estimate`` is given
    values and weights.
    """
    rng, first_N = np.random.default_rng(0), 2 * np.arange(UNITS // 2)
    value_N = rng.uniform(0.1, 2.0, UNITS)
    prob_N = (value_N.reshape(-1, 2) / value_N.reshape(-1, 2).sum(1, keepdims=True)).ravel()
    kept_DK = [first_N + (rng.random(UNITS // 2) < prob_N[1::2]) for _ in range(draws)]
    drawn = [[torch.from_numpy(each) for each in (value_N[kept], 1 / prob_N[kept])] for kept in kept_DK]
    return of(value_N).mean(), np.mean([np.mean(estimate(*parts)) for parts in drawn])


@pytest.mark.parametrize("each", ["step", "pair"])
def test_a_metric_of_one_kept_row_in_each_pair_estimates_that_of_all(each):
    """The wrong twin divides by the weights in each, which cancel: it is as if large rows were more."""

    def margins(value_K, weight_K):
        kept = len(value_K)
        weight_N = torch.cat([weight_K, torch.zeros(kept)])  # a dropped row beside each kept one
        metrics = RowMetrics(torch.arange(kept).repeat(2), weight_N, [*range(kept)])
        metrics.add("rewards/margins", value_K, torch.ones(2 * kept), weight_K, torch.arange(kept))
        return metrics.reduced()["rewards/margins"]

    def estimate(*drawn):
        parts = [drawn] if each == "step" else zip(*(column.split(1) for column in drawn), strict=True)
        return [margins(*part) for part in parts]

    true, found = drawn_metrics(estimate)
    assert found == pytest.approx(true, rel=0.03) if each == "step" else found > 1.1 * true


OF_VALUES = {"entropy": np.asarray, "clip_ratio/high_mean": lambda value: value > 1}


@pytest.mark.parametrize("name", OF_VALUES)
def test_a_metric_of_one_kept_completion_in_each_pair_estimates_that_of_all(name):
    """Metrics of tokens: completions have two each, which are clipped if their value is above 1."""
    method = configured().build_method()

    def estimate(value_K, weight_K):
        like = torch.zeros(len(value_K), 2)
        old = like - (value_K > 1).float()[:, None]
        tokens = Tokens(logp_BT=like, old_logp_BT=old, mask_BT=like + 1, advantage_B=like[:, 0] + 1, ref_logp_BT=None)
        metrics, batch = LossMetrics(method), SimpleNamespace(loss_weight=weight_K.float())
        metrics.add(tokens, batch, value_K[:, None].expand(-1, 2).float(), None)
        full_3 = torch.tensor([2.0 * UNITS, UNITS, 0.0])
        return metrics.reduced(ALONE, full_3, denominator=1.0)[0][name]

    true, found = drawn_metrics(estimate, OF_VALUES[name])
    assert found == pytest.approx(true, rel=0.03)


@pytest.mark.slow
def test_metrics_of_a_step_are_of_all_the_generations_it_takes_parts_of(tiny_path, tmp_path):
    """Four micro-batches a step, of one generation, two or four. The wrong twin says half or a quarter."""
    options = dict(loss_type="dapo", entropy_coef=1e-4, beta=0.1, learning_rate=0.0, shuffle_dataset=False, max_steps=2)
    found = {}
    for steps in (4, 2, 1):
        several = split(options, 4) | {"steps_per_generation": steps}
        us, (_, them) = ours(tiny_path, tmp_path, several), trl_run(tiny_path, tmp_path, **several)
        parts = [4 * mean for mean in logged(them, "policy_loss")]  # TRL logs the mean of the parts of micro-batches
        assert logged(us, "policy_loss") == pytest.approx(parts, rel=1e-4)
        found[steps] = [logged(us, name)[0] for name in ("rows/tokens", "prune/tokens_trained")]
    assert found[4] == pytest.approx(found[2], rel=0.02) and found[4] == pytest.approx(found[1], rel=0.05)


def test_the_table_of_completions_has_the_advantages_that_are_trained_with(tiny_path, tmp_path):
    """The wrong twin leaves TRL's there, which are not divided by what history says."""
    _, made = dppo_run(tiny_path, tmp_path, method="dppo_history", log_completions=True)
    assert made.in_use is not None and len({*made._logs["advantages"]}) > 1
    assert [*made._logs["advantages"]] == pytest.approx(made.in_use.batch.advantage_B.tolist())
