"""Every draw in turn, with its chance, through trainer, rows and loss: the expected gradient is that of all rows."""

from dataclasses import replace

import dpo_runs as dpo
import pytest
import sft_runs as sft
from sft_runs import PACKED, Fixed

from dppo.methods import RowMethod
from dppo.pruning import UNWEIGHTED

STEP = dict(batches=((1, 4, 7), (2,), (0, 5)), row_prune_rate=0.6, gradient_accumulation_steps=3)
STEP |= dict(per_device_train_batch_size=2, max_tokens_per_row=12)
"""A step of several unequal micro-batches, of which each may have several rows."""
BY_LOSS = {"row_score": "loss", "row_prune_rate": 0.3}
TOGETHER = PACKED | {"max_steps": 8, "batches": ((1, 3), (2, 0))}
"""What TRL has packed together stays or goes together."""
PARTS = {"batches": ((1, 4, 7), (2,))}
"""A step of two micro-batches of TRL's, of three pairs and of one."""
CASES = {
    "sft": (sft, {}),
    "sft, infobatch": (sft, {"method": "infobatch"}),
    "sft, loss": (sft, BY_LOSS),
    "sft, unequal micro-batches": (sft, PARTS | {"row_prune_rate": 0.6}),
    "sft, accumulated": (sft, STEP),
    "sft, packed": (sft, TOGETHER),
    "sft, packed, loss": (sft, TOGETHER | {"row_score": "loss"}),
    "dpo": (dpo, {}),
    "dpo, margin weights": (dpo, {"own": {"margin_reward": dpo.by_length}}),
    "dpo, loss": (dpo, BY_LOSS),
    "dpo with sft": (dpo, dpo.RPO),
    "dpo with sft, in one row": (dpo, STEP | dpo.RPO | {"max_tokens_per_row": None}),
    "dpo, unequal micro-batches": (dpo, PARTS),
    "dpo, apo_zero, loss": (dpo, PARTS | {"row_score": "loss", "loss_type": "apo_zero"}),
    "dpo, ipo": (dpo, PARTS | {"loss_type": "ipo"}),
    # Losses that look at more than sums over the answers.
    **{
        f"dpo, {name}, padded": (dpo, PARTS | dpo.LOSSES[name] | {"layout": "padded"})
        for name in ("several", "wpo", "ld_alpha")
    },
}


@pytest.mark.parametrize(("kind", "options"), CASES.values(), ids=CASES)
def test_the_expected_gradient_of_a_step_is_that_of_all_its_rows(kind, options, tiny_path, tmp_path, monkeypatch):
    assert Fixed(kind.ours, tiny_path, tmp_path, monkeypatch, **options).error() < 1e-5


def unweighted(method):
    return replace(method, rows=replace(method.rows, weighting=UNWEIGHTED))


def over_kept(method):
    return replace(method, over_kept=True)


KEPT = dict(method="infobatch_kept", accept_bias=True)


@pytest.mark.parametrize(
    ("kind", "wrong", "options", "error"),
    [(sft, None, KEPT, 0.05), (dpo, over_kept, dpo.RPO, 0.01), (dpo, unweighted, {}, 0.05)],
    ids=["a mean over the rows kept", "a mean over the pairs kept", "draws that are not weighted"],
)
def test_wrong_methods_are_caught(kind, wrong, options, error, tiny_path, tmp_path, monkeypatch):
    twin = Fixed(kind.ours, tiny_path, tmp_path, monkeypatch, **options)
    if wrong:
        twin.trainer.source.method = wrong(twin.trainer.method)
    assert twin.error() > error


def test_a_denominator_of_each_micro_batch_is_caught(tiny_path, tmp_path, monkeypatch):
    """The wrong twin: means over what each forward pass was left with, averaged as if they were alike."""
    twin = Fixed(dpo.ours, tiny_path, tmp_path, monkeypatch, **STEP | {"max_tokens_per_row": 60})
    trainer, right = twin.trainer, twin.trainer._part

    def wrong(model, batch, *others):
        kept = int((batch.weight > 0).sum()) // trainer.batch_kind.together
        return right(model, batch, *others) * 6 / (3 * max(kept, 1))

    monkeypatch.setattr(trainer, "_part", wrong)
    assert twin.error() > 0.01


def test_a_mean_over_the_pairs_of_a_step_is_caught(tiny_path, tmp_path, monkeypatch):
    """What trainers on pairs did before: TRL weighs the pair that is alone in its micro-batch three times as much."""
    fixed = Fixed(dpo.ours, tiny_path, tmp_path, monkeypatch, row_prune_rate=0.0, **PARTS)
    wanted, right = fixed.gradient(None), RowMethod.shares
    monkeypatch.setattr(RowMethod, "shares", lambda self, draw, count_N, part_N: right(self, draw, count_N))
    assert (fixed.gradient(None) - wanted).norm() > 0.1 * wanted.norm()
