"""TRL's losses of pairs: values, gradients and metrics of its trainer, and the expectation under every draw."""

import math
from types import SimpleNamespace
from typing import Any

import dpo_runs as dpo
import pytest
import torch
from cases import one_in
from dpo_runs import LOSSES, PADDED, PARTS
from refusals import refused
from sft_runs import Fixed, as_trl, trained
from tiny_runs import logged
from transformers import AutoModelForCausalLM

from dppo.errors import ConfigError
from dppo.methods import RowMethod
from dppo.trl import DPPODPOConfig
from dppo.trl.rows.pairs import pair_losses

UNEVEN = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "max_steps": 2, "beta": 0.2}
"""A step of micro-batches of 3 and 3 of ten pairs, and one of 3 and 1."""


def near(path):
    """A reference near the policy: some losses take exponentials of log-ratios, and of their rounding."""
    reference = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(0.98)
    return {"ref_model": reference}


@pytest.mark.parametrize("name", one_in(3, {name: name for name in LOSSES}))
def test_with_nothing_pruned_losses_gradients_and_metrics_are_trls(name, tiny_path, tmp_path):
    for layout in ("rows", "padded") if name in PADDED else ("rows",):
        options, only = UNEVEN | LOSSES[name] | {"own": near(tiny_path)}, {"layout": layout, "own": near(tiny_path)}
        as_trl(dpo.stock, dpo.ours, tiny_path, tmp_path / layout, only=only, **options)


def test_a_mean_over_the_pairs_of_a_step_is_caught(tiny_path, tmp_path, monkeypatch):
    """What trainers on pairs did before: TRL weighs the pair that is alone in its micro-batch three times as much."""
    wanted = Fixed(dpo.ours, tiny_path, tmp_path / "a", monkeypatch, row_prune_rate=0.0, **PARTS).gradient(None)

    right = RowMethod.shares
    monkeypatch.setattr(RowMethod, "shares", lambda self, draw, count_N, part_N: right(self, draw, count_N))
    found = Fixed(dpo.ours, tiny_path, tmp_path / "b", monkeypatch, row_prune_rate=0.0, **PARTS).gradient(None)
    assert (found - wanted).norm() > 0.1 * wanted.norm()


def test_the_loss_of_known_margins():
    """-log sigmoid(0) = log 2, -log sigmoid(0.1 * 10) = log(1 + 1/e) = 0.313262. Slopes: -beta sigmoid(-beta m)."""
    of_trl = {"ld_alpha": None, "f_divergence_type": "reverse_kl", "use_weighting": False, "label_smoothing": 0.0}
    trainer: Any = SimpleNamespace(
        loss_types=["sigmoid"], loss_weights=[1.0], beta=0.1, _total_train_tokens=0, _tp_size=1, **of_trl
    )
    trainer.args = SimpleNamespace(gradient_checkpointing_kwargs=None)
    margin = torch.tensor([0.0, 10.0, -10.0])
    logp_BT = torch.stack([margin - 20, torch.full((3,), -20.0)], 1).view(6, 1).requires_grad_()
    mask_BT = torch.ones(6, 1, dtype=torch.long)
    loss, metrics = pair_losses(trainer, logp_BT, mask_BT, ref_P2=torch.full((3, 2), -20.0))
    assert loss.tolist() == pytest.approx([math.log(2), 0.3132617, 1.3132617], abs=1e-6)
    assert metrics["rewards/margins"].tolist() == pytest.approx([0.0, 1.0, -1.0], abs=1e-6)
    (slope,) = torch.autograd.grad(loss.sum(), logp_BT)
    assert slope[::2, 0].tolist() == pytest.approx([-0.05, -0.1 / (1 + math.e), -0.1 / (1 + 1 / math.e)], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"loss_type": "aot"}, ("aot", "sigmoid")),
        ({"loss_type": "typo"}, ("typo", "sigmoid")),
        ({"loss_type": ["sigmoid", "sft"], "use_weighting": True}, ("use_weighting", "sft")),
    ],
)
def test_losses_without_a_term_for_each_pair_are_refused(options, names, tmp_path):
    with refused(ConfigError, *names):
        DPPODPOConfig(str(tmp_path), use_cpu=True, **options)


def test_a_checkpoint_in_float16_trains_under_trls_default_bfloat16(tiny_path, tmp_path, monkeypatch):
    load = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda path: load(path, dtype=torch.float16))
    for layout in ("rows", "padded"):
        _, trainer = trained(dpo.ours, tiny_path, tmp_path / layout, bf16=True, layout=layout)
        assert len(logged(trainer, "loss")) == 3
        assert {p.dtype for p in trainer.model.parameters()} == {torch.float16}
