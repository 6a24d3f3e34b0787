"""Figures that bear TRL's names are TRL's, of all three trainers on the same batch with nothing dropped."""

import pytest
import test_trl_dpo as dpo
import torch
from conftest_trl import logged, one_in
from sft_runs import ours, stock, texts, trained
from test_trl_contract import gradients, split
from trl import GRPOConfig, GRPOTrainer

from dppo.trl import DPPOConfig, DPPOTrainer
from dppo.trl.grpo import rollouts

TIMES = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "step_time", "total_flos")
OF_RUN = {"sft": (stock, ours), "dpo": (dpo.stock, dpo.ours)}
ROWS = {
    "one micro-batch": {},
    "accumulated": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 3},
    "logged every second step": {"logging_steps": 2, "max_steps": 4, "layout": "padded"},
}


CANCELS = {"rewards/margins": 1e-5}
"""Differences of log-probabilities of about 25 nats, of which float32 keeps 2e-6 each; one in the runs is 6e-5."""


def compared(us, them, *, but=()):
    """Names of TRL's that ours lacks, and those whose values differ."""
    names = {name for row in them.state.log_history for name in row} - {*TIMES, *but}
    return {
        name: (logged(us, name), logged(them, name))
        for name in names
        if logged(us, name) != pytest.approx(logged(them, name), rel=1e-4, abs=CANCELS.get(name, 1e-6), nan_ok=True)
    }


@pytest.mark.parametrize("options", one_in(2, ROWS))
@pytest.mark.parametrize("kind", OF_RUN)
def test_figures_of_trainers_on_rows_are_trls(kind, options, tiny_path, tmp_path):
    make_theirs, make_ours = OF_RUN[kind]
    shared = {name: value for name, value in options.items() if name != "layout"}
    shared |= {"optim": "sgd", "learning_rate": 1e-3}  # Adam makes a whole step of a gradient of rounding
    if kind == "sft":
        shared["data"] = texts()
    _, them = trained(make_theirs, tiny_path, tmp_path / "a", **shared)
    _, us = trained(make_ours, tiny_path, tmp_path / "b", row_prune_rate=0.0, **shared | options)
    assert compared(us, them) == {}
    assert {"num_tokens", "entropy", "mean_token_accuracy"} <= {name for row in us.state.log_history for name in row}


LATER = dict(num_iterations=2, max_steps=2, learning_rate=0.3, loss_type="grpo")
"""A second step on each generation, whose ratios are not 1."""
GROUPS = {
    "plain": LATER,
    "kl": LATER | {"beta": 0.1},
    "kl, corrected": LATER | {"beta": 0.1, "use_bias_correction_kl": True},
    "delta below the upper bound": LATER | {"delta": 1.1, "epsilon_high": 0.28},
    "delta above it": LATER | {"delta": 1.5},
    "sequences": LATER | {"importance_sampling_level": "sequence", "beta": 0.1},
    "bonus": LATER | {"entropy_coef": 0.1},
    "dapo": LATER | {"entropy_coef": 0.1, "loss_type": "dapo", "beta": 0.1},
    "cispo": LATER | {"loss_type": "cispo", "epsilon_high": 5.0},
}


NOT_FORWARDED = ("entropy",)
"""Without a reference completions without an advantage are not forwarded: it is a mean over the others."""


@pytest.mark.parametrize("options", one_in(3, GROUPS))
def test_figures_of_groups_are_trls(options, tiny_path, tmp_path):
    _, them = gradients(GRPOTrainer, GRPOConfig, tiny_path, tmp_path, **options)
    _, us = gradients(DPPOTrainer, DPPOConfig, tiny_path, tmp_path, completion_prune_rate=0.0, **options)
    assert compared(us, them, but=() if "beta" in options or "entropy_coef" in options else NOT_FORWARDED) == {}


SEVERAL = {
    "grpo": {"loss_type": "grpo"},
    "dapo": {"loss_type": "dapo"},
    "sequences": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.05},
    "vespo": {"loss_type": "vespo"},
}


def several(options, tiny_path, tmp_path):
    """Both trainers on steps of two micro-batches of completions of many lengths."""
    options = split(LATER | {"beta": 0.1, "epsilon": 0.02, "shuffle_dataset": False} | options, 2) | {
        "learning_rate": 3e-2
    }
    _, them = gradients(GRPOTrainer, GRPOConfig, tiny_path, tmp_path, **options)
    _, us = gradients(DPPOTrainer, DPPOConfig, tiny_path, tmp_path, completion_prune_rate=0.0, **options)
    return us, them


@pytest.mark.parametrize("options", one_in(3, SEVERAL))
def test_figures_of_steps_of_several_micro_batches_are_trls(options, tiny_path, tmp_path):
    """Means over TRL's micro-batches: each completion counts in the one that TRL deals it to."""
    us, them = several(options, tiny_path, tmp_path)
    assert compared(us, them) == {}
    assert any(value for name in ("clip_ratio/high_max", "cispo_clip_ratio", "kl") for value in logged(them, name))


def test_completions_in_other_micro_batches_give_other_figures(tiny_path, tmp_path, monkeypatch):
    """The wrong twin: equal parts in the order of the rollout, and not in that of TRL's shuffle."""
    right = rollouts.calls_of
    monkeypatch.setattr(rollouts, "calls_of", lambda place_N, *others: right(torch.arange(len(place_N)), *others))
    assert {"kl", "entropy"} <= compared(*several(SEVERAL["grpo"], tiny_path, tmp_path)).keys()


@pytest.mark.parametrize("loss_type", ["dapo", "cispo"])
def test_the_loss_without_a_bonus_is_trls_under_accumulation(loss_type, tiny_path, tmp_path):
    """Of the first step: the bonus is a mean over the step's tokens here, and over each micro-batch's in TRL."""
    options = split({"entropy_coef": 0.1, "loss_type": loss_type, "num_iterations": 2, "max_steps": 2}, 2)
    _, them = gradients(GRPOTrainer, GRPOConfig, tiny_path, tmp_path, **options)
    _, us = gradients(DPPOTrainer, DPPOConfig, tiny_path, tmp_path, completion_prune_rate=0.0, **options)
    theirs, mine = logged(them, "policy_loss")[0], logged(us, "policy_loss")[0]
    assert abs(theirs) > 1e-4 and mine == pytest.approx(theirs, rel=1e-4)
