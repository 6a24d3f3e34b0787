"""What goes wrong without a word when sequences share a row, and that our path does not do it.

The call as one would write it is wrong by more than 0.1 nats (or by as much, relative, in its gradient), without an
error. Our path in the same situation is exact. Kernels that are wrong for branches are in ``packing_wrong``.

Left out, since they need CUDA: flash attention with several packed rows in a batch, and with a 4-D mask. A row is one
forward pass here, so there is no batch of rows. Models that rows cannot serve are in ``test_packing_served_models``;
what unequal micro-batches do to a loss belongs to the trainer, which divides by the step's own count.
"""

import packing_models as models
import pytest
import torch
from refusals import refused
from torch.utils.checkpoint import CheckpointError
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from trl.trainer.utils import add_fused_lm_head

from dppo.errors import ConfigError
from dppo.packing.attention import use_rows
from dppo.packing.forward import row_log_probs
from dppo.packing.kernels import SEGMENT_SDPA
from dppo.packing.rows import Segments

WRONG, RIGHT = 0.1, 2e-5


# Packed rows depend on transformers noticing that positions restart, and a 4-D mask goes to every layer as it is.


def bool_mask(row):
    return dict(attention_mask=models.visible(row))


def float_mask(row):
    return dict(attention_mask=torch.where(models.visible(row), 0.0, torch.finfo(torch.float32).min))


def masks(full, windowed):
    return dict(attention_mask={"full_attention": full, "sliding_attention": windowed})


def both_masks(row, of_positions=True):
    return masks(models.visible(row), models.visible(row, models.WINDOW, of_positions=of_positions))


WINDOWED = ("gemma3", "qwen3-window")
# Name, attention, how the row is laid out, and what the call has besides positions and ``use_cache=False``.
RIGHT_CALLS = {
    "positions that restart": ("qwen3", "sdpa", models.plain_row, lambda row: {}),
    "eager attention adds floats": ("qwen3", "eager", models.shared_row, float_mask),
    **{f"a mask for each kind of layer, {name}": (name, "sdpa", models.shared_row, both_masks) for name in WINDOWED},
}
WRONG_CALLS = {
    "use_cache at its default": ("qwen3", "sdpa", models.plain_row, lambda row: dict(use_cache=None)),
    "a mask of ones": (
        "qwen3",
        "sdpa",
        models.plain_row,
        lambda row: dict(attention_mask=torch.ones_like(row.input_ids)),
    ),
    "positions left out": ("qwen3", "sdpa", models.plain_row, lambda row: dict(position_ids=None)),
    "restarting positions know no parents": ("qwen3", "sdpa", models.shared_row, lambda row: {}),
    "eager attention adds True as 1": ("qwen3", "eager", models.shared_row, bool_mask),
    **{f"one mask without a window, {name}": (name, "sdpa", models.shared_row, bool_mask) for name in WINDOWED},
    **{
        f"one mask with a window, {name}": (
            name,
            "sdpa",
            models.shared_row,
            lambda row: masks(*[models.visible(row, models.WINDOW)] * 2),
        )
        for name in WINDOWED
    },
    "a window counted in places of the row": ("gemma3", "sdpa", models.shared_row, lambda row: both_masks(row, False)),
}


def error(call, *, train=False, checkpointing=False):
    """Largest difference of a call as one would write it from one sequence at a time, nats."""
    name, attention, layout, inputs = call
    model, (row, index) = models.build(name, attn_implementation=attention).train(train), layout(models.make_batch())
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    given = dict(position_ids=row.position_ids, use_cache=False) | inputs(row)
    logp = models.packed_call(model, row, **{key: value for key, value in given.items() if value is not None})
    return (logp - models.reference(models.Setting(name, torch.float32)).logp_NC[index]).abs().max().item()


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", [*RIGHT_CALLS, *WRONG_CALLS])
def test_calls_as_one_would_write_them(name, train):
    if name in RIGHT_CALLS:
        assert error(RIGHT_CALLS[name], train=train) < RIGHT
    else:
        assert error(WRONG_CALLS[name], train=train) > WRONG


def test_use_cache_is_hidden_by_gradient_checkpointing():
    """Checkpointing turns the cache off itself, so the same call is right until checkpointing is turned off."""
    assert error(WRONG_CALLS["use_cache at its default"], train=True, checkpointing=True) < RIGHT


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_rows_are_exact_whatever_the_model_was_set_to(attention, train):
    model = models.build("qwen3", attn_implementation=attention).train(train)
    models.prepare_rows(model)
    model.config.use_cache = True
    logp, gradient = models.off(models.Setting("qwen3", torch.float32), model=model)
    assert logp < RIGHT and gradient < 1e-5


def unless_refused(difference):
    """What ``difference`` gives, or infinity where the recompute is noticed to differ from the forward pass."""
    try:
        return difference()
    except CheckpointError:
        return torch.inf


class TestCheckpointing:
    """Under gradient checkpointing the backward pass runs the attention again."""

    SETTING = models.Setting("qwen3")

    def checkpointed(self, prepare):
        model = self.SETTING.model(prepare).train()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model

    def backward(self, model, between):
        """Gradient difference when ``between`` runs after the forward and before the backward pass."""
        pieces = list(models.of_row(model, *models.shared_row(models.make_batch())))
        between(model)
        return models.off(self.SETTING, iter(pieces), model)[1]

    def test_attention_that_reads_the_segments_from_outside(self):
        """The wrong twin keeps the row's segments in a variable; the next forward changes it before the recompute."""
        held = {}

        def attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
            output = SEGMENT_SDPA.attend(query, key, value, held["segments"], scaling, None)
            return output.transpose(1, 2).contiguous(), None

        AttentionInterface.register("held_segments", attention)
        AttentionMaskInterface.register("held_segments", sdpa_mask)
        row, index = models.shared_row(models.make_batch())
        other = Segments(length_S=(row.segments.total,), trunk_S=(-1,))

        def gradient(model, segments_of_backward):
            held["segments"] = row.segments
            dummy = row.input_ids.new_zeros(1, 1, 1, 1)
            logp = models.packed_call(model, row, position_ids=row.position_ids, attention_mask=dummy, use_cache=False)
            held["segments"] = segments_of_backward
            return models.off(self.SETTING, iter([(index, logp)]), model)[1]

        model = self.checkpointed(lambda model: model.set_attn_implementation("held_segments"))
        assert gradient(model, row.segments) < 1e-12
        assert unless_refused(lambda: gradient(model, other)) > WRONG

    def test_other_forwards_before_the_backward_pass(self):
        batch = models.make_batch()

        def between(model):
            with torch.no_grad():
                row_log_probs(model, models.plain_row(batch)[0], batch.width)
                list(models.padded(model, batch))
            row_log_probs(model, models.make_row(batch, [3, 1]), batch.width)

        assert self.backward(self.checkpointed(models.prepare_rows), between) < 1e-12

    def test_switching_the_attention_in_between(self):
        """The trap itself: with the model's setting changed, the recompute is another function. Never switch."""
        model = self.checkpointed(models.prepare_rows)
        switched = unless_refused(lambda: self.backward(model, lambda model: model.set_attn_implementation("eager")))
        assert switched > WRONG


def test_lora_on_the_head():
    """TRL's head reads the matrix of ``lm_head`` and never sees an adapter on it; ours refuses one."""
    batch, targets = models.make_batch(), ("q_proj", "lm_head")
    alone = models.with_lora(models.build("qwen3"), *targets)
    expected = models.run_layout(alone, models.padded(alone, batch), batch)

    base = models.build("qwen3")
    use_rows(base)
    add_fused_lm_head(base, temperature=1.0)
    row, index = models.shared_row(batch)
    given = dict(input_ids=row.input_ids, position_ids=row.position_ids, attention_mask=models.visible(row))
    naive = models.with_lora(base, *targets)(**given, shift_labels=row.labels, fused_lm_head=True).log_probs
    assert (row.unpack(naive, batch.width) - expected.logp_NC[index]).abs().max() > WRONG

    model = models.with_lora(models.Setting("qwen3", torch.float32).prepared(), *targets)
    with refused(ConfigError, "lm_head"):
        list(models.rows(model, batch))
