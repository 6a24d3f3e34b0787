"""Tokens left out, through TRL's trainer: the mean over draws is the full gradient, and less is forwarded."""

import math
from types import SimpleNamespace

import pytest
import torch
from cases import parameters
from refusals import refused
from tiny_runs import logged, relative_difference, scripted
from trl_gradients import dppo_run, full_and_mean

from dppo.errors import ConfigError
from dppo.trl.grpo.rollouts import rolled_out
from dppo.types import Rewards

CUTS = dict(token_prune_rate=0.4)
CASES = {
    "cuts, rows": CUTS,
    "cuts, padded": CUTS | {"layout": "padded"},
    "head, padded": {"head_prune_rate": 0.5, "layout": "padded"},
    "cuts and head, kl and entropy": CUTS
    | {"head_prune_rate": 0.5, "beta": 0.1, "entropy_coef": 0.01, "layout": "packed", "method": "nat_urs"},
    "cuts, mean within completions": CUTS | {"loss_type": "grpo"},
}
SLOW = ("cuts, padded", "cuts and head, kl and entropy", "cuts, mean within completions")


def error(path, folder, **options):
    """Of the mean gradient over every draw of the tokens of two groups; relative."""
    settings = dict(prompts=2, completion_prune_rate=0.0, loss_type="dr_grpo", scale_rewards="none")
    _, trainer = dppo_run(path, folder, **settings | options)
    full, mean = full_and_mean(trainer)
    return relative_difference(mean, full)


@pytest.mark.parametrize("options", parameters(CASES, SLOW))
def test_the_mean_over_every_draw_is_the_full_gradient(options, tiny_path, tmp_path):
    assert error(tiny_path, tmp_path, **options) < 1e-6


def test_a_weight_forgotten_is_found(tiny_path, tmp_path, monkeypatch):
    """The wrong twin: the loss of drawn tokens at the weight of their completion alone."""
    monkeypatch.setattr("dppo.trl.batch.MicroBatch.loss_weight", property(lambda self: self.weight))
    assert error(tiny_path, tmp_path, **CUTS) > 1e-2


def test_a_mean_over_what_is_left_is_found(tiny_path, tmp_path, monkeypatch):
    """The wrong twin: a completion's sum divided by its tokens before the cut."""
    monkeypatch.setattr("dppo.trl.batch.MicroBatch.counted_B", None)
    assert error(tiny_path, tmp_path, **CASES["cuts, mean within completions"]) > 1e-2


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
        assert 0 < logged(trainer, share)[0] < 1
        assert not trainer.biases


def test_what_cannot_be_served_is_refused(tiny_path, tmp_path):
    cut = {"token_prune_rate": 0.5}
    sequence = {"importance_sampling_level": "sequence"}
    for wrong in (cut | {"rollout": None}, cut | {"method": "gspo"}, cut | sequence, {"head_prune_rate": 1.5}):
        with refused(ConfigError, "tokens" if sequence.items() <= wrong.items() else next(iter(wrong))):
            dppo_run(tiny_path, tmp_path, **wrong)


def test_a_token_that_the_sampler_gave_no_probability_for_counts_as_unsure():
    """As where tokens are cut; as a sure one it would give its completion a score of 0, and a weight of 50."""
    mask = torch.tensor([[1, 1, 0]])
    generated = SimpleNamespace(
        sampler_logp=torch.tensor([[math.nan, 0.0, math.nan]]), completion_mask=mask, loss_mask=mask, prompt_mask=mask
    )
    alone = SimpleNamespace(num_processes=1, gather=lambda value: value)
    found = rolled_out(generated, Rewards.of_groups(torch.zeros(1, 1)), alone)
    assert found.uncertainty_N.tolist() == [1.0]


def test_auto_leaves_cuts_off_where_they_gain_nothing_and_chooses_them_where_they_do(tiny_path, tmp_path):
    """Every token as doubtful as any: cuts drop small advantages, for under 1.05. Doubt at the start is worth more."""
    rates = []
    for doubt in ("even", "first"):

        def rollout(prompts, trainer, doubt=doubt):
            output = scripted(prompts, trainer)
            output["logprobs"] = [
                [-0.7 if doubt == "even" or place < 2 else -1e-4 for place in range(len(row))]
                for row in output["logprobs"]
            ]
            return output

        _, trainer = dppo_run(tiny_path, tmp_path, rollout=rollout, token_prune_rate="auto", prompts=16,
            loss_type="dr_grpo", scale_rewards="none",
        )  # fmt: skip
        rates.append(logged(trainer, "prune/token_rate")[0])
    assert rates[0] == 0 < 0.2 < rates[1]
