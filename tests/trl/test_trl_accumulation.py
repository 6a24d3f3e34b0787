"""Steps of several unequal micro-batches: over all draws, the expected gradient is that of all rows of the step."""

import pytest
import test_trl_dpo
import test_trl_sft
from sft_runs import Fixed

STEP = dict(batches=((1, 4, 7), (2,), (0, 5)), row_prune_rate=0.6, gradient_accumulation_steps=3)
STEP |= dict(per_device_train_batch_size=2, max_tokens_per_row=12)
KINDS = {
    "sft": (test_trl_sft.ours, STEP),
    "dpo with sft, in one row": (test_trl_dpo.ours, STEP | test_trl_dpo.RPO | {"max_tokens_per_row": None}),
}


@pytest.mark.parametrize(("ours", "options"), KINDS.values(), ids=KINDS)
def test_the_expected_gradient_over_all_draws_is_that_of_all_rows(ours, options, tiny_path, tmp_path, monkeypatch):
    """Through the draw, the rows, three calls of the training step and their sum."""
    assert Fixed(ours, tiny_path, tmp_path, monkeypatch, **options).error() < 1e-5


def test_a_denominator_of_each_micro_batch_is_caught(tiny_path, tmp_path, monkeypatch):
    """The wrong twin: means over what each forward pass was left with, averaged as if they were alike."""
    twin = Fixed(test_trl_dpo.ours, tiny_path, tmp_path, monkeypatch, **STEP | {"max_tokens_per_row": 60})
    trainer, right = twin.trainer, twin.trainer._part

    def wrong(model, batch, *others):
        kept = int((batch.weight > 0).sum()) // trainer.together
        return right(model, batch, *others) * 6 / (3 * max(kept, 1))

    monkeypatch.setattr(trainer, "_part", wrong)
    assert twin.error() > 0.01
