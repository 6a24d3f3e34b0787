"""Every draw in turn, with its chance, through trainer, rows and loss: the expected gradient is that of all rows."""

from dataclasses import replace

import dpo_runs as dpo
import pytest
import sft_runs as sft
from cases import parameters
from dpo_runs import LOSSES, PADDED, PARTS
from sft_runs import OPTIONS, Fixed
from tiny_runs import alike

from dppo.pruning import UNWEIGHTED

STEP = dict(batches=((1, 4, 7), (2,), (0, 5)), row_prune_rate=0.6, gradient_accumulation_steps=3)
STEP |= dict(per_device_train_batch_size=2, max_tokens_per_row=12)
"""A step of several unequal micro-batches, of which each may have several rows."""
BY_LOSS = {"row_score": "loss", "row_prune_rate": 0.3}
PACKED = OPTIONS["bfd"] | {"max_steps": 8, "batches": ((1, 3), (2, 0))}
"""What TRL has packed together stays or goes together."""
OF_PAIRS = ("several", "ipo", "wpo", "ld_alpha")
CASES = {
    "sft": (sft.ours, {}),
    "sft, infobatch": (sft.ours, {"method": "infobatch"}),
    "sft, loss": (sft.ours, BY_LOSS),
    "sft, unequal micro-batches": (sft.ours, {"batches": ((1, 4, 7), (2,)), "row_prune_rate": 0.6}),
    "sft, accumulated": (sft.ours, STEP),
    "sft, packed": (sft.ours, PACKED),
    "sft, packed, loss": (sft.ours, PACKED | {"row_score": "loss"}),
    "dpo": (dpo.ours, {}),
    "dpo, margin weights": (dpo.ours, {"own": {"margin_reward": dpo.by_length}}),
    "dpo, loss": (dpo.ours, BY_LOSS),
    "dpo with sft": (dpo.ours, dpo.RPO),
    "dpo with sft, in one row": (dpo.ours, STEP | dpo.RPO | {"max_tokens_per_row": None}),
    "dpo, unequal micro-batches": (dpo.ours, PARTS),
    "dpo, apo_zero, loss": (dpo.ours, PARTS | {"row_score": "loss", "loss_type": "apo_zero"}),
    **{
        f"dpo, {name}": (dpo.ours, PARTS | LOSSES[name] | {"layout": "padded" if name in PADDED else "rows"})
        for name in OF_PAIRS
    },
}


@pytest.mark.parametrize(("ours", "options"), CASES.values(), ids=CASES)
def test_the_expected_gradient_of_a_step_is_that_of_all_its_rows(ours, options, tiny_path, tmp_path, monkeypatch):
    assert Fixed(ours, tiny_path, tmp_path, monkeypatch, **options).error() < 1e-5


def test_a_mean_over_what_is_kept_is_caught(tiny_path, tmp_path, monkeypatch):
    options = dict(method="infobatch_kept", accept_bias=True)
    assert Fixed(sft.ours, tiny_path, tmp_path, monkeypatch, **options).error() > 0.05


def test_a_mean_over_the_pairs_kept_is_caught(tiny_path, tmp_path, monkeypatch):
    twin = Fixed(dpo.ours, tiny_path, tmp_path, monkeypatch, **dpo.RPO)
    twin.trainer.source.method = replace(twin.trainer.method, over_kept=True)
    assert twin.error() > 0.01


def test_draws_that_are_not_weighted_are_caught(tiny_path, tmp_path, monkeypatch):
    twin = Fixed(dpo.ours, tiny_path, tmp_path, monkeypatch)
    method = twin.trainer.method
    twin.trainer.source.method = replace(method, rows=replace(method.rows, weighting=UNWEIGHTED))
    assert twin.error() > 0.05


def test_a_denominator_of_each_micro_batch_is_caught(tiny_path, tmp_path, monkeypatch):
    """The wrong twin: means over what each forward pass was left with, averaged as if they were alike."""
    twin = Fixed(dpo.ours, tiny_path, tmp_path, monkeypatch, **STEP | {"max_tokens_per_row": 60})
    trainer, right = twin.trainer, twin.trainer._part

    def wrong(model, batch, *others):
        kept = int((batch.weight > 0).sum()) // trainer.batch_kind.together
        return right(model, batch, *others) * 6 / (3 * max(kept, 1))

    monkeypatch.setattr(trainer, "_part", wrong)
    assert twin.error() > 0.01


RESUMED = {
    "sft": (sft.ours, {}, 8),
    "sft, infobatch": (sft.ours, {"method": "infobatch"}, 8),
    "sft, accumulated": (sft.ours, {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}, 8),
    "dpo": (dpo.ours, {}, 7),
}


@pytest.mark.parametrize("case", parameters(RESUMED, ("sft", "sft, infobatch")))
def test_resumed_is_bit_for_bit_the_run_that_was_not_stopped(case, tiny_path, tmp_path):
    """From the middle of the first epoch, its end, and the middle of a pruned one."""
    ours, options, steps = case
    saving = dict(max_steps=steps, save_strategy="steps", save_steps=1, **options)
    straight = ours(tiny_path, tmp_path / "a", **saving)
    straight.train()
    for stop in (2, 3, 5):
        trainer = ours(tiny_path, tmp_path / f"from {stop}", **saving)
        trainer.train(resume_from_checkpoint=str(tmp_path / "a" / f"checkpoint-{stop}"))
        assert alike(tmp_path / "a", tmp_path / f"from {stop}"), stop
        assert (trainer.source.scores.score == straight.source.scores.score).all()
