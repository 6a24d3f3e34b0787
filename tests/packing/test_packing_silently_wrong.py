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
PLAIN, (SHARED, SHARED_INDEX) = plain_row(make_batch()), shared_row(make_batch())
NO_CACHE, IDS, EAGER = {"use_cache": False}, {"position_ids": PLAIN.position_ids}, {"attn_implementation": "eager"}
FULL, SLIDING = visible(SHARED), visible(SHARED, WINDOW)
IN_PLACES = visible(SHARED, WINDOW, of_positions=False)
"""Between a branch and its trunk lie other branches: distance in the row is not distance in the sequence."""


def masked(full, sliding=None):
    """A row of shared prompts, and a mask for all layers or for each kind of layer."""
    mask = full if sliding is None else {"full_attention": full, "sliding_attention": sliding}
    return SHARED, {"position_ids": SHARED.position_ids, "attention_mask": mask, "use_cache": False}


RIGHT_CALLS = {
    "restarting positions": ("qwen3", PLAIN, IDS | NO_CACHE),
    "gemma3, a mask for each kind of layer": ("gemma3", *masked(FULL, SLIDING)),
    "qwen3, a mask for each kind of layer": ("qwen3-window", *masked(FULL, SLIDING)),
    "eager, the lowest where hidden": ("eager", *masked(torch.finfo(torch.float32).min * ~FULL)),
}
WRONG_CALLS = {
    "use_cache at its default": ("qwen3", PLAIN, IDS),
    "a mask of ones": ("qwen3", PLAIN, IDS | NO_CACHE | {"attention_mask": torch.ones_like(PLAIN.input_ids)}),
    "positions left out": ("qwen3", PLAIN, NO_CACHE),
    "shared prompts without a mask": ("qwen3", *masked(None)),
    "gemma3, the full mask for all layers": ("gemma3", *masked(FULL)),
    "gemma3, the window for all layers": ("gemma3", *masked(SLIDING)),
    "qwen3, the full mask for all layers": ("qwen3-window", *masked(FULL)),
    "qwen3, the window for all layers": ("qwen3-window", *masked(SLIDING)),
    "a window counted in places of the row": ("gemma3", *masked(FULL, IN_PLACES)),
    "eager, which adds a bool mask: all is seen": ("eager", *masked(FULL)),
}
"""Packed rows depend on transformers noticing that positions restart, or on a 4-D mask, which every layer is handed as
it is. Models by name, and how they are called."""


@pytest.mark.parametrize("call", [*RIGHT_CALLS, *WRONG_CALLS])
def test_calls_of_transformers_that_are_wrong_without_a_word(call):
    name, row, inputs = (RIGHT_CALLS | WRONG_CALLS)[call]
    model = (build("qwen3", **EAGER) if name == "eager" else build(name)).train()
    assert model.config.use_cache
    wanted = reference(Setting("qwen3" if name == "eager" else name, torch.float32)).logp_NC
    logp = packed_call(model, row, **inputs)
    off = (logp - (wanted if row is PLAIN else wanted[SHARED_INDEX])[:, : logp.shape[1]]).abs().max()
    assert off < RIGHT if call in RIGHT_CALLS else off > WRONG


def test_rows_of_a_model_with_eager_attention():
    model, batch = build("qwen3", **EAGER), make_batch()
    prepare_rows(model)
    found = run_layout(model, rows(model, batch), batch).difference(reference(Setting("qwen3", torch.float32)))
    assert max(found) < RIGHT


class TestCheckpointing:
    """Under gradient checkpointing the backward pass runs the attention again."""

    def difference(self, between, prepare=prepare_rows):
        """Gradient difference when ``between`` runs after the forward and before the backward pass.

        Infinity if the recompute is noticed to differ from the forward pass.
        """
        setting, batch = Setting("qwen3"), make_batch()
        model = setting.model(prepare).train()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        logp = row_log_probs(model, SHARED, batch.width)[0]
        between(model)
        try:
            return run_layout(model, iter([(SHARED_INDEX, logp)]), batch).difference(reference(setting))[1]
        except CheckpointError:
            return torch.inf

    def test_other_forwards_before_the_backward_pass(self, monkeypatch):
        """The wrong twin keeps a row's segments in a variable, which the next forward changes before the recompute."""

        def other_forwards(model):
            with torch.no_grad():
                list(padded(model, make_batch()))
            one_sequence = Segments(length_S=(SHARED.segments.total,), trunk_S=(-1,))
            row_log_probs(model, replace(SHARED, segments=one_sequence), SHARED.width)

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
        assert self.difference(lambda model: None, holding) < 1e-12
        assert self.difference(other_forwards, holding) > WRONG

    def test_switching_the_attention_in_between(self):
        """With the model's setting changed, the recompute is another function. Never switch."""
        assert self.difference(lambda model: model.set_attn_implementation("eager")) > WRONG


def test_lora_on_the_head():
    """TRL's head reads the matrix of ``lm_head`` and never sees an adapter on it; ours refuses it."""
    batch, targets = make_batch(), ("q_proj", "lm_head")
    alone, base, model = (build("qwen3") for _ in range(3))
    alone = with_lora(alone, targets=targets)
    expected = run_layout(alone, padded(alone, batch), batch)
    use_rows(base)
    add_fused_lm_head(base, temperature=1.0)
    inputs = dict(input_ids=SHARED.input_ids, position_ids=SHARED.position_ids, attention_mask=FULL)
    naive = with_lora(base, targets=targets)(**inputs, shift_labels=SHARED.labels, fused_lm_head=True).log_probs
    assert (SHARED.unpack(naive, batch.width) - expected.logp_NC[SHARED_INDEX]).abs().max() > WRONG
    prepare_rows(model)
    with refused(ConfigError, "lm_head"):
        row_log_probs(with_lora(model, targets=targets), SHARED, batch.width)
