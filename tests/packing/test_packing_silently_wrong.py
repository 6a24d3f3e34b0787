"""What goes wrong without a word when sequences share a row, and that our path does not do it.

Every test first shows the trap: the call as one would write it is wrong by more than 0.1 nats (or by as much, relative,
in its gradient), without an error. Then our path is run in the same situation and is exact.

Left out, since they need CUDA: flash attention with several packed rows in a batch, and with a 4-D mask. A row is one
forward pass here, so there is no batch of rows. Models that rows cannot serve are in ``test_packing_served_models``;
what unequal micro-batches do to a loss belongs to the trainer, which divides by the step's own count.
"""

from functools import partial

import pytest
import torch
from packing_models import (
    WINDOW,
    Setting,
    build,
    float_mask,
    make_batch,
    make_row,
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
from packing_wrong import WRONG_IN_VALUE, merged
from torch.utils.checkpoint import CheckpointError
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from trl.trainer.utils import add_fused_lm_head

from dppo.errors import DPPOError
from dppo.packing.attention import use_rows
from dppo.packing.forward import row_log_probs
from dppo.packing.kernels import SEGMENT_SDPA, Kernel
from dppo.packing.rows import Segments, build_row

WRONG, RIGHT = 0.1, 2e-5


def error(logp_KC, index, setting):
    """Largest difference from one sequence at a time, nats."""
    expected = reference(setting).logp_NC[index][:, : logp_KC.shape[1]]
    return (logp_KC - expected).abs().max().item()


def assert_ours_exact(setting, change, train):
    """Our path in value and gradient, for a model changed by ``change``."""
    batch = make_batch()
    model = setting.model(prepare_rows)
    change(model)
    logp, gradient = run_layout(model.train(train), rows(model, batch), batch).difference(reference(setting))
    assert logp < RIGHT and gradient < 1e-5


def plain(**inputs):
    """A row of whole sequences, whose positions restart, and what else the call is given."""
    row = plain_row(make_batch())
    return row, list(range(row.completions)), {"position_ids": row.position_ids} | inputs


def of_shared_row(mask=lambda row: None, **inputs):
    """A row of shared prompts, and the mask that the call is given."""
    row, index = shared_row(make_batch())
    return row, index, {"position_ids": row.position_ids, "attention_mask": mask(row), "use_cache": False} | inputs


def of_layers(full, sliding):
    return {"full_attention": full, "sliding_attention": sliding}


def masks_of_both_kinds(row):
    return of_layers(visible(row), visible(row, WINDOW))


def window_in_places(row):
    """Between a branch and its trunk lie other branches: distance in the row is not distance in the sequence."""
    return of_layers(visible(row), visible(row, WINDOW, of_positions=False))


def of_ones(row):
    return torch.ones_like(row.input_ids)


RIGHT_CALLS = {
    "restarting positions": ("qwen3", lambda: plain(use_cache=False)),
    "gemma3, a mask for each kind of layer": ("gemma3", lambda: of_shared_row(masks_of_both_kinds)),
    "qwen3, a mask for each kind of layer": ("qwen3-window", lambda: of_shared_row(masks_of_both_kinds)),
}
WRONG_CALLS = {
    "use_cache at its default": ("qwen3", plain),
    "a mask of ones": ("qwen3", lambda: plain(attention_mask=of_ones(plain_row(make_batch())), use_cache=False)),
    "positions left out": ("qwen3", lambda: plain(position_ids=None, use_cache=False)),
    "shared prompts without a mask": ("qwen3", of_shared_row),
    "gemma3, the full mask for all layers": ("gemma3", lambda: of_shared_row(visible)),
    "gemma3, the window for all layers": ("gemma3", lambda: of_shared_row(lambda row: visible(row, WINDOW))),
    "qwen3, the full mask for all layers": ("qwen3-window", lambda: of_shared_row(visible)),
    "qwen3, the window for all layers": ("qwen3-window", lambda: of_shared_row(lambda row: visible(row, WINDOW))),
    "a window counted in places of the row": ("gemma3", lambda: of_shared_row(window_in_places)),
}
"""Packed rows depend on transformers noticing that positions restart, or on a 4-D mask, which every layer is handed as
it is. Models by name, and how they are called."""


class TestCallsOfTransformers:
    def call(self, model, setting, row, index, inputs):
        return error(packed_call(model, row, **inputs), index, setting)

    @pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
    @pytest.mark.parametrize("call", [*RIGHT_CALLS, *WRONG_CALLS])
    def test_calls_that_are_wrong_without_a_word(self, call, train):
        name, inputs = (RIGHT_CALLS | WRONG_CALLS)[call]
        setting = Setting(name, torch.float32)
        model = setting.model().train(train)
        assert model.config.use_cache
        off = self.call(model, setting, *inputs())
        assert off < RIGHT if call in RIGHT_CALLS else off > WRONG

    @pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
    @pytest.mark.parametrize("name", ["qwen3", "gemma3", "qwen3-window"])
    def test_ours_are_right(self, name, train):
        assert_ours_exact(Setting(name, torch.float32), lambda model: setattr(model.config, "use_cache", True), train)

    def test_use_cache_is_hidden_by_gradient_checkpointing(self):
        """Checkpointing turns the cache off itself, so the same call is right until checkpointing is turned off."""
        setting = Setting("qwen3", torch.float32)
        model = setting.model().train()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        assert self.call(model, setting, *plain()) < RIGHT

    def test_a_bool_mask_with_eager_attention(self):
        """Eager attention adds the mask, so True counts as 1: everything is seen, the allowed a little more."""
        setting, model = Setting("qwen3", torch.float32), build("qwen3", attn_implementation="eager")
        assert self.call(model, setting, *of_shared_row(lambda row: float_mask(visible(row)))) < RIGHT
        assert self.call(model, setting, *of_shared_row(visible)) > WRONG
        prepare_rows(model)
        batch = make_batch()
        logp, gradient = run_layout(model, rows(model, batch), batch).difference(reference(setting))
        assert logp < RIGHT and gradient < 1e-5


@pytest.mark.parametrize(
    ("attend", "logp_is_wrong", "gradient_is_wrong"),
    [
        (SEGMENT_SDPA.attend, False, False),
        (WRONG_IN_VALUE["masks aligned at the top left"], True, True),
        (partial(merged, lse_gradient=True), False, False),
        (partial(merged, lse_gradient=False), False, True),
    ],
    ids=["ours", "top left", "merged by log-sum-exp", "merged without its gradient"],
)
def test_kernels_that_are_wrong_for_branches(attend, logp_is_wrong, gradient_is_wrong):
    """Put in the place of ours; one is right in value, so only a comparison of gradients sees it."""
    setting, batch = Setting("llama"), make_batch()
    model, (row, index) = setting.model(prepare_rows), shared_row(batch)
    logp = row_log_probs(model, row, batch.width, kernel=Kernel(name="on trial", attend=attend))[0]
    off = run_layout(model, iter([(index, logp)]), batch).difference(reference(setting))
    for difference, wrong in zip(off, (logp_is_wrong, gradient_is_wrong), strict=True):
        assert difference > WRONG if wrong else difference < 1e-12


def unless_refused(difference):
    """What ``difference`` gives, or infinity where the recompute is noticed to differ from the forward pass."""
    try:
        return difference()
    except CheckpointError:
        return torch.inf


class TestCheckpointing:
    """Under gradient checkpointing the backward pass runs the attention again."""

    SETTING = Setting("qwen3")

    def checkpointed(self, prepare):
        model = self.SETTING.model(prepare).train()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model

    def backward(self, model, between):
        """Gradient difference when ``between`` runs after the forward and before the backward pass."""
        batch = make_batch()
        row, index = shared_row(batch)
        logp = row_log_probs(model, row, batch.width)[0]
        between(model)
        return run_layout(model, iter([(index, logp)]), batch).difference(reference(self.SETTING))[1]

    def test_attention_that_reads_the_segments_from_outside(self):
        """The wrong twin keeps the row's segments in a variable; the next forward changes it before the recompute."""
        held = {}

        def attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
            output = SEGMENT_SDPA.attend(query, key, value, held["segments"], scaling, None)
            return output.transpose(1, 2).contiguous(), None

        AttentionInterface.register("held_segments", attention)
        AttentionMaskInterface.register("held_segments", sdpa_mask)
        batch = make_batch()
        row, index = shared_row(batch)
        other = Segments(length_S=(row.segments.total,), trunk_S=(-1,))

        def gradient(model, segments_of_backward):
            held["segments"] = row.segments
            dummy = row.input_ids.new_zeros(1, 1, 1, 1)
            logp = packed_call(model, row, position_ids=row.position_ids, attention_mask=dummy, use_cache=False)
            held["segments"] = segments_of_backward
            return run_layout(model, iter([(index, logp)]), batch).difference(reference(self.SETTING))[1]

        model = self.checkpointed(lambda model: model.set_attn_implementation("held_segments"))
        assert gradient(model, row.segments) < 1e-12
        assert unless_refused(lambda: gradient(model, other)) > WRONG

    def test_other_forwards_before_the_backward_pass(self):
        batch = make_batch()

        def between(model):
            with torch.no_grad():
                row_log_probs(model, plain_row(batch), batch.width)
                list(padded(model, batch))
            row_log_probs(model, make_row(batch, [3, 1]), batch.width)

        assert self.backward(self.checkpointed(prepare_rows), between) < 1e-12

    def test_switching_the_attention_in_between(self):
        """The trap itself: with the model's setting changed, the recompute is another function. Never switch."""
        model = self.checkpointed(prepare_rows)
        switched = unless_refused(lambda: self.backward(model, lambda model: model.set_attn_implementation("eager")))
        assert switched > WRONG
        assert self.backward(self.checkpointed(prepare_rows), lambda model: None) < 1e-12


class TestHead:
    """Labels that meet the wrong hidden state, and heads that are not only a matrix."""

    def test_lora_on_the_head(self):
        """TRL's head reads the matrix of ``lm_head`` and never sees an adapter on it."""
        setting, batch = Setting("qwen3", torch.float32), make_batch()
        targets = ("q_proj", "lm_head")
        alone = with_lora(build("qwen3"), targets=targets)
        expected = run_layout(alone, padded(alone, batch), batch)

        base = build("qwen3")
        use_rows(base)
        add_fused_lm_head(base, temperature=1.0)
        fused = with_lora(base, targets=targets)
        row, index = shared_row(batch)
        naive = fused(**row_inputs(row), fused_lm_head=True).log_probs
        assert (row.unpack(naive, batch.width) - expected.logp_NC[index]).abs().max() > WRONG

        model = with_lora(setting.model(prepare_rows), targets=targets)
        try:
            logp, gradient = run_layout(model, rows(model, batch), batch).difference(expected)
        except DPPOError as refusal:
            assert "lm_head" in str(refusal)
        else:
            assert logp < RIGHT and gradient < 1e-5

    def test_the_first_token_is_not_scored_from_its_neighbour(self):
        """With labels shifted inside, the last state of one sequence predicts the first token of the next."""
        model = build("llama")
        add_fused_lm_head(model, temperature=1.0)
        use_rows(model)
        rng = torch.Generator().manual_seed(3)
        first, other, second = (torch.randint(1, 61, (n,), generator=rng) for n in (6, 6, 9))

        def shifted_inside(neighbour):
            ids = torch.cat([neighbour, second])[None]
            positions = torch.cat([torch.arange(len(neighbour)), torch.arange(len(second))])[None]
            return model(input_ids=ids, position_ids=positions, labels=ids, fused_lm_head=True).log_probs[0]

        scores = [shifted_inside(neighbour)[len(first) - 1 :] for neighbour in (first, other)]
        assert (scores[0][0] - scores[1][0]).abs() > WRONG, "the first token's score depends on the neighbour"
        assert (scores[0][1:] - scores[1][1:]).abs().max() < RIGHT

        prompt, completion = second[:1], second[1:]
        found = []
        for neighbour in (first, other):
            row = build_row([neighbour[:3], prompt], [neighbour[3:], completion], [0, 1])
            found.append(row_log_probs(model, row, len(completion))[0][1])
        assert (found[0] - found[1]).abs().max() < RIGHT
        assert (found[0] - scores[0][1:]).abs().max() < RIGHT


def row_inputs(row):
    """What a row gives a model besides its attention: enough for one plain sequence after another."""
    return dict(
        input_ids=row.input_ids, position_ids=row.position_ids, shift_labels=row.labels, attention_mask=visible(row)
    )
