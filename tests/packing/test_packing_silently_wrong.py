"""What goes wrong without a word when sequences share a row, and that our path does not do it.

Every test first shows the trap: the call as one would write it is wrong by more than 0.1 nats (or by as much, relative,
in its gradient), without an error. Our path is exact in the same situation: here, or in ``test_packing_exactness``.

Left out, since they need CUDA: flash attention with several packed rows in a batch, and with a 4-D mask. A row is one
forward pass here, so there is no batch of rows. Models that rows cannot serve are in ``test_packing_served_models``,
kernels that are wrong for branches in ``test_packing_check``.
"""

from dataclasses import replace

import pytest
import torch
from packing_models import (
    WINDOW,
    Setting,
    build,
    make_batch,
    packed_call,
    padded,
    plain_row,
    prepare_rows,
    reference,
    rows,
    run_layout,
    shared_row,
    visible,
    with_lora,
)
from refusals import refused
from torch.utils.checkpoint import CheckpointError
from transformers import AttentionInterface
from trl.trainer.utils import add_fused_lm_head

from dppo.errors import ConfigError
from dppo.packing.attention import ROWS, rows_attention, use_rows
from dppo.packing.forward import row_log_probs
from dppo.packing.rows import Segments

WRONG, RIGHT = 0.1, 2e-5


def call_error(model, setting, row, index, inputs):
    """Largest difference of a call's log-probabilities from one sequence at a time, nats."""
    logp = packed_call(model, row, **inputs)
    return (logp - reference(setting).logp_NC[index][:, : logp.shape[1]]).abs().max().item()


def plain(**inputs):
    """A row of whole sequences, whose positions restart, and what else the call is given."""
    row = plain_row(make_batch())
    return row, list(range(row.completions)), {"position_ids": row.position_ids} | inputs


def of_shared_row(mask=lambda row: None):
    """A row of shared prompts, and the mask that the call is given."""
    row, index = shared_row(make_batch())
    return row, index, {"position_ids": row.position_ids, "attention_mask": mask(row), "use_cache": False}


def of_layers(full, sliding):
    return {"full_attention": full, "sliding_attention": sliding}


def masks_of_both_kinds(row):
    return of_layers(visible(row), visible(row, WINDOW))


def the_window_for_all(row):
    return visible(row, WINDOW)


def window_in_places(row):
    """Between a branch and its trunk lie other branches: distance in the row is not distance in the sequence."""
    return of_layers(visible(row), visible(row, WINDOW, of_positions=False))


def a_mask_of_ones():
    return plain(attention_mask=torch.ones_like(plain_row(make_batch()).input_ids), use_cache=False)


RIGHT_CALLS = {
    "restarting positions": ("qwen3", lambda: plain(use_cache=False)),
    "gemma3, a mask for each kind of layer": ("gemma3", lambda: of_shared_row(masks_of_both_kinds)),
    "qwen3, a mask for each kind of layer": ("qwen3-window", lambda: of_shared_row(masks_of_both_kinds)),
}
WRONG_CALLS = {
    "use_cache at its default": ("qwen3", plain),
    "a mask of ones": ("qwen3", a_mask_of_ones),
    "positions left out": ("qwen3", lambda: plain(position_ids=None, use_cache=False)),
    "shared prompts without a mask": ("qwen3", of_shared_row),
    "gemma3, the full mask for all layers": ("gemma3", lambda: of_shared_row(visible)),
    "gemma3, the window for all layers": ("gemma3", lambda: of_shared_row(the_window_for_all)),
    "qwen3, the full mask for all layers": ("qwen3-window", lambda: of_shared_row(visible)),
    "qwen3, the window for all layers": ("qwen3-window", lambda: of_shared_row(the_window_for_all)),
    "a window counted in places of the row": ("gemma3", lambda: of_shared_row(window_in_places)),
}
"""Packed rows depend on transformers noticing that positions restart, or on a 4-D mask, which every layer is handed as
it is. Models by name, and how they are called."""


@pytest.mark.parametrize("call", [*RIGHT_CALLS, *WRONG_CALLS])
def test_calls_of_transformers_that_are_wrong_without_a_word(call):
    name, inputs = (RIGHT_CALLS | WRONG_CALLS)[call]
    setting = Setting(name, torch.float32)
    model = setting.model().train()
    assert model.config.use_cache
    off = call_error(model, setting, *inputs())
    assert off < RIGHT if call in RIGHT_CALLS else off > WRONG


def test_a_bool_mask_with_eager_attention():
    """Eager attention adds the mask, so True counts as 1: everything is seen, the allowed a little more."""

    def lowest_where_hidden(row):
        return torch.zeros(visible(row).shape).masked_fill(~visible(row), torch.finfo(torch.float32).min)

    setting, model, batch = Setting("qwen3", torch.float32), build("qwen3", attn_implementation="eager"), make_batch()
    assert call_error(model, setting, *of_shared_row(lowest_where_hidden)) < RIGHT
    assert call_error(model, setting, *of_shared_row(visible)) > WRONG
    prepare_rows(model)
    logp, gradient = run_layout(model, rows(model, batch), batch).difference(reference(setting))
    assert logp < RIGHT and gradient < 1e-5


class TestCheckpointing:
    """Under gradient checkpointing the backward pass runs the attention again."""

    SETTING = Setting("qwen3")

    def difference(self, between, prepare=prepare_rows):
        """Gradient difference when ``between`` runs after the forward and before the backward pass.

        Infinity if the recompute is noticed to differ from the forward pass.
        """
        batch, model = make_batch(), self.SETTING.model(prepare).train()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        row, index = shared_row(batch)
        logp = row_log_probs(model, row, batch.width)[0]
        between(model, row)
        try:
            return run_layout(model, iter([(index, logp)]), batch).difference(reference(self.SETTING))[1]
        except CheckpointError:
            return torch.inf

    def test_other_forwards_before_the_backward_pass(self, monkeypatch):
        """The wrong twin keeps a row's segments in a variable, which the next forward changes before the recompute."""

        def other_forwards(model, row):
            with torch.no_grad():
                list(padded(model, make_batch()))
            one_sequence = Segments(length_S=(row.segments.total,), trunk_S=(-1,))
            row_log_probs(model, replace(row, segments=one_sequence), row.width)

        assert self.difference(other_forwards) < 1e-12
        held = {}

        def of_the_last_forward(*inputs, row_segments=None, **options):
            return rows_attention(*inputs, row_segments=held["segments"], **options)

        def holding(model):
            def hold(module, args, options):
                held["segments"] = options.get("row_segments")

            prepare_rows(model)
            model.base_model.register_forward_pre_hook(hold, with_kwargs=True)

        monkeypatch.setitem(AttentionInterface._global_mapping, ROWS, of_the_last_forward)
        assert self.difference(lambda model, row: None, holding) < 1e-12
        assert self.difference(other_forwards, holding) > WRONG

    def test_switching_the_attention_in_between(self):
        """With the model's setting changed, the recompute is another function. Never switch."""
        assert self.difference(lambda model, row: model.set_attn_implementation("eager")) > WRONG


def test_lora_on_the_head():
    """TRL's head reads the matrix of ``lm_head`` and never sees an adapter on it; ours refuses it."""
    batch, targets = make_batch(), ("q_proj", "lm_head")
    alone = with_lora(build("qwen3"), targets=targets)
    expected = run_layout(alone, padded(alone, batch), batch)

    base = build("qwen3")
    use_rows(base)
    add_fused_lm_head(base, temperature=1.0)
    row, index = shared_row(batch)
    inputs = dict(input_ids=row.input_ids, position_ids=row.position_ids, attention_mask=visible(row))
    naive = with_lora(base, targets=targets)(**inputs, shift_labels=row.labels, fused_lm_head=True).log_probs
    assert (row.unpack(naive, batch.width) - expected.logp_NC[index]).abs().max() > WRONG

    model = build("qwen3")
    prepare_rows(model)
    with refused(ConfigError, "lm_head"):
        row_log_probs(with_lora(model, targets=targets), row, batch.width)
