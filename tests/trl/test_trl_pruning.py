"""Pruning inside the trainer, of prompts, completions and tokens: unbiased in expectation, and exact bookkeeping."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from cases import parameters
from refusals import refused
from tiny_runs import GENERATIONS, SHARES, logged, relative_difference, scripted
from trl_gradients import dppo_run, full_and_mean, trl_run, unweighted

from dppo.errors import ConfigError
from dppo.trl.forwards import ForwardPasses
from dppo.trl.grpo.rollouts import rolled_out
from dppo.types import Rewards

HALF = dict(completion_prune_rate=0.5, prune_floor=0.1)
CUTS, HEAD = {"token_prune_rate": 0.4, "scale_rewards": "none"}, {"head_prune_rate": 0.5, "scale_rewards": "none"}
CASES = {
    "completions": HALF,
    "completions, kl": HALF | {"beta": 0.1},
    "completions, high entropies": HALF | {"top_entropy_quantile": 0.2},
    "cuts, rows": CUTS,
    "cuts, padded": CUTS | {"layout": "padded"},
    "head, padded": HEAD | {"layout": "padded"},
    "cuts and head, kl and entropy": CUTS
    | HEAD
    | {"beta": 0.1, "entropy_coef": 0.01, "layout": "packed", "method": "nat_urs"},
    "cuts, mean within completions": CUTS | {"loss_type": "grpo"},
}
SLOW = ("cuts, padded", "cuts and head, kl and entropy", "cuts, mean within completions")


def error(path, folder, *, changed=lambda plan: plan, **options):
    """Relative bias of the gradient over every draw of the completions and tokens of two groups."""
    settings = dict(prompts=2, loss_type="dr_grpo", completion_prune_rate=0.0)
    _, trainer = dppo_run(path, folder, **settings | options)
    full, mean = full_and_mean(trainer, changed=changed)
    return relative_difference(mean, full)


@pytest.mark.parametrize("options", parameters(CASES, SLOW))
def test_the_mean_over_every_draw_is_the_full_gradient(options, tiny_path, tmp_path):
    assert error(tiny_path, tmp_path, **options) < 1e-6


def of_kept(self, batch, place_B, calls, right=ForwardPasses.with_policy_mask):
    """A threshold over kept tokens alone."""
    kept = batch.loss_mask * (batch.weight_UB[0] > 0)[:, None]
    return replace(batch, policy_mask=right(self, replace(batch, loss_mask=kept), place_B, calls).policy_mask)


WRONG = {
    "completions, high entropies": ("dppo.trl.forwards.ForwardPasses.with_policy_mask", of_kept),
    # Drawn tokens at the weight of their completion alone.
    "cuts, rows": ("dppo.trl.batch.MicroBatch.loss_weight", property(lambda self: self.weight)),
    # A completion's sum divided by its tokens before the cut.
    "cuts, mean within completions": ("dppo.trl.batch.MicroBatch.counted_B", None),
}


def test_forgotten_weights_are_caught(tiny_path, tmp_path):
    assert error(tiny_path, tmp_path, changed=unweighted, **HALF) > 1e-2


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_version_is_found(case, tiny_path, tmp_path, monkeypatch):
    monkeypatch.setattr(*WRONG[case])
    assert error(tiny_path, tmp_path, **CASES[case]) > 1e-2


def test_metrics_of_a_run_whose_pruning_stops_for_its_last_part(tiny_path, tmp_path):
    options = dict(max_steps=4, prompt_prune_rate=0.5, completion_prune_rate=0.5)
    _, trainer = dppo_run(tiny_path, tmp_path, prune_schedule="stop", prune_until=0.5, **options)
    assert logged(trainer, "prune/prompts_kept_share") == [1.0, 0.5, 1.0, 1.0], "no history in the first epoch"
    assert logged(trainer, "prune/prompts_with_history") == [0.0, 1.0, 1.0, 1.0]
    kept, live = logged(trainer, "prune/kept_share"), logged(trainer, "prune/live_share")
    assert all(0 < kept[step] <= live[step] / 2 + 1 / 8 for step in (0, 1)) and kept[2:] == live[2:]
    assert all(w <= 5 + 1e-9 for w in logged(trainer, "prune/largest_prompt_weight"))


def test_fill_mode_keeps_rollouts_full(tiny_path, tmp_path):
    options = dict(prompts=16, per_device_train_batch_size=4 * GENERATIONS, max_steps=12, prompt_mode="fill")
    _, trainer = dppo_run(tiny_path, tmp_path, prompt_prune_rate=0.5, **options)
    shares = logged(trainer, "prune/prompts_kept_share")
    assert set(shares[:4]) == {1.0} and shares[-1] == 0.5, "4 of 8 candidates"
    assert trainer.session.source.stream.epoch >= 4  # 12 generations of 4 prompts would be 3 epochs


def test_prompts_are_drawn_anew_for_each_step_of_a_generation(tiny_path, tmp_path, capsys):
    """So both steps are unbiased; passes over the same completions, and prompts that cannot be shared out, are not."""
    options = SHARES | {"per_device_train_batch_size": 4 * GENERATIONS}
    _, trainer = dppo_run(tiny_path, tmp_path, **options)
    plan = trainer.in_use.plan
    assert len(plan.prompts.row_Q) == 4 and torch.bincount(plan.prompts.part_Q).tolist() == [2, 2]
    assert torch.equal(plan.share_UN[1], plan.prompts.part_Q[plan.completions.group_N] == 1)
    assert trainer.biases == () and "gradient unbiased" in capsys.readouterr().out
    assert "unbiased: the full batch's" in trainer.card() and "Gradient: unbiased" in trainer.card()
    for biased in ({"num_iterations": 2}, {"per_device_train_batch_size": 2, "steps_per_generation": 4}):
        _, trainer = dppo_run(tiny_path, tmp_path, **options | biased)
        assert ["drawn once for several" in reason for reason in trainer.biases] == [True]


CYCLES = {
    "two generations": (3, dict(steps_per_generation=1, gradient_accumulation_steps=2)),
    "one and a half": (2, dict(steps_per_generation=2, gradient_accumulation_steps=3)),
    "two thirds": (3, dict(steps_per_generation=3, gradient_accumulation_steps=2)),
    "three quarters, twice": (2, dict(steps_per_generation=4, gradient_accumulation_steps=3, num_iterations=2)),
    "both passes": (3, dict(steps_per_generation=2, gradient_accumulation_steps=4, num_iterations=2)),
}
"""What an optimizer step takes of a generation, and prompts of a generation."""


@pytest.mark.parametrize(("groups", "cycle"), CYCLES.values(), ids=CYCLES)
def test_steps_of_parts_of_generations_equal_trl(groups, cycle, tiny_path, tmp_path):
    """Summed over an epoch of whole steps: TRL deals prompts and completions in another order."""
    prompts, calls, accumulated = 6, cycle["steps_per_generation"], cycle["gradient_accumulation_steps"]
    per_call, steps = groups * GENERATIONS // calls, prompts // groups * calls * cycle.get("num_iterations", 1)
    options = cycle | dict(prompts=prompts, per_device_train_batch_size=per_call, max_steps=steps // accumulated)
    options |= dict(loss_type="grpo", learning_rate=0.0)
    stock, _ = trl_run(tiny_path, tmp_path, **options)
    mine, trainer = dppo_run(tiny_path, tmp_path, completion_prune_rate=0.0, **options)
    assert len(mine) == len(stock) == steps / accumulated
    whole = [{name: sum(step[name] for step in steps) for name in steps[0]} for steps in (mine, stock)]
    assert relative_difference(*whole) < 1e-5
    # A step's part of a generation is as large as TRL's, and each completion is as likely to be in it.
    together = math.gcd(calls, accumulated)
    assert trainer.in_use.plan.share_UN.sum(1).unique().tolist() == [per_call * together]


def test_every_pass_forwards_what_is_drawn_and_no_more(tiny_path, tmp_path, forwarded):
    """Two passes with KL: the old and the reference pass reach as far as some draw, an update as far as its own."""
    options = dict(token_prune_rate=0.5, beta=0.1, num_iterations=2, max_steps=2, loss_type="dr_grpo")
    _, trainer = dppo_run(tiny_path, tmp_path, layout="packed", **options)
    batch = trainer.in_use.batch
    prompt_B, longest_B = torch.tensor(batch.prompt_tokens) - 1, batch.length_UB.amax(0)

    def needed(length_B):
        return int((prompt_B + length_B)[length_B > 0].sum())

    trained, without = (
        sum(row.input_ids.shape[1] for row, graded in forwarded if graded == kind) for kind in (True, False)
    )
    assert trained == sum(map(needed, batch.length_UB)) and min(map(needed, batch.length_UB)) > 0
    old = needed(longest_B * (batch.length_UB[1] > 0))
    assert without == needed(longest_B) + old, "the reference pass, and the old one of what the second draw trains on"


def test_methods_of_nat_train_without_log_probs_and_what_was_left_out_is_logged(tiny_path, tmp_path):
    for method, share in (("nat_rpc", "prune/token_kept_share"), ("nat_urs", "prune/head_share")):
        _, trainer = dppo_run(tiny_path, tmp_path, rollout=None, method=method, max_completion_length=8)
        assert 0 < logged(trainer, share)[0] < 1 and not trainer.biases


def test_what_cannot_be_served_is_refused(tiny_path, tmp_path):
    cut, sequence = {"token_prune_rate": 0.5}, {"importance_sampling_level": "sequence"}
    for wrong, named in (
        (cut | {"rollout": None}, "token_prune_rate"),
        (cut | {"method": "gspo"}, "token_prune_rate"),
        (cut | sequence, "tokens"),
        ({"head_prune_rate": 1.5}, "head_prune_rate"),
    ):
        with refused(ConfigError, named):
            dppo_run(tiny_path, tmp_path, **wrong)


def test_a_token_that_the_sampler_gave_no_probability_for_counts_as_unsure():
    """Cuts of tokens do the same. If it counted as sure, its completion would have a score of 0 and a weight of 50."""
    mask = torch.tensor([[1, 1, 0]])
    sampled = torch.tensor([[math.nan, 0.0, math.nan]])
    generated = SimpleNamespace(sampler_logp=sampled, completion_mask=mask, loss_mask=mask, prompt_mask=mask)
    alone = SimpleNamespace(num_processes=1, gather=lambda value: value)
    found = rolled_out(generated, Rewards.of_groups(torch.zeros(1, 1)), alone)
    assert found.uncertainty_N.tolist() == [1.0]


def test_auto_leaves_cuts_off_where_they_gain_nothing_and_chooses_them_where_they_do(tiny_path, tmp_path):
    """Every token as doubtful as any: cuts drop small advantages, for under 1.05. Doubt at the start is worth more."""
    options, rates = CUTS | dict(token_prune_rate="auto", loss_type="dr_grpo", prompts=16), []
    for surest in (-0.7, -1e-4):

        def rollout(prompts, trainer, surest=surest):
            output = scripted(prompts, trainer)
            return output | {"logprobs": [[-0.7, -0.7, *[surest] * (len(row) - 2)] for row in output["logprobs"]]}

        _, trainer = dppo_run(tiny_path, tmp_path, rollout=rollout, **options)
        rates.append(logged(trainer, "prune/token_rate")[0])
    assert rates[0] == 0 < 0.2 < rates[1]
