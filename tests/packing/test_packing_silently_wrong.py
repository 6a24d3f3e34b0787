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


def ours(setting, *, change=lambda model: None, train=False):
    """Differences of our path, in value and gradient, for a model changed by ``change``."""
    batch = make_batch()
    model = setting.model(prepare_rows)
    change(model)
    model.train(train)
    return run_layout(model, rows(model, batch), batch).difference(reference(setting))


def assert_ours_exact(setting, **condition):
    logp, gradient = ours(setting, **condition)
    assert logp < RIGHT and gradient < 1e-5


class TestMasksOfTransformers:
    """Packed rows depend on transformers noticing that positions restart; these conditions turn that off."""

    SETTING = Setting("qwen3", torch.float32)

    def call(self, model, **inputs):
        batch = make_batch()
        row = plain_row(batch)
        return error(packed_call(model, row, **inputs), range(len(batch.prompts)), self.SETTING)

    def test_the_one_call_that_is_right(self):
        position_ids = plain_row(make_batch()).position_ids
        assert self.call(self.SETTING.model(), position_ids=position_ids, use_cache=False) < RIGHT

    @pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
    def test_use_cache_at_its_default(self, train):
        model = self.SETTING.model().train(train)
        assert model.config.use_cache
        assert self.call(model, position_ids=plain_row(make_batch()).position_ids) > WRONG
        assert_ours_exact(self.SETTING, change=lambda model: setattr(model.config, "use_cache", True), train=train)

    def test_use_cache_is_hidden_by_gradient_checkpointing(self):
        """Checkpointing turns the cache off itself, so the same call is right until checkpointing is turned off."""
        model = self.SETTING.model().train()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        assert self.call(model, position_ids=plain_row(make_batch()).position_ids) < RIGHT

    def test_a_mask_of_ones(self):
        row = plain_row(make_batch())
        inputs = dict(position_ids=row.position_ids, attention_mask=torch.ones_like(row.input_ids), use_cache=False)
        assert self.call(self.SETTING.model(), **inputs) > WRONG
        assert_ours_exact(self.SETTING)

    def test_positions_left_out(self):
        assert self.call(self.SETTING.model(), use_cache=False) > WRONG
        batch = make_batch()
        assert plain_row(batch).position_ids.eq(0).sum() == len(batch.prompts), "each sequence begins at 0"
        assert_ours_exact(self.SETTING)

    def test_shared_prompts_without_a_mask(self):
        """Restarting positions know no parents: a branch would not see its prompt."""
        row, index = shared_row(make_batch())
        logp = packed_call(self.SETTING.model(), row, position_ids=row.position_ids, use_cache=False)
        assert error(logp, index, self.SETTING) > WRONG
        assert_ours_exact(self.SETTING)

    def test_a_bool_mask_with_eager_attention(self):
        """Eager attention adds the mask, so True counts as 1: everything is seen, the allowed a little more."""
        (row, index), setting = shared_row(make_batch()), self.SETTING
        model = build(setting.name, attn_implementation="eager")
        allowed = visible(row)
        inputs = dict(position_ids=row.position_ids, use_cache=False)
        right = packed_call(model, row, attention_mask=float_mask(allowed), **inputs)
        assert error(right, index, setting) < RIGHT
        assert error(packed_call(model, row, attention_mask=allowed, **inputs), index, setting) > WRONG

        prepare_rows(model)
        batch = make_batch()
        logp, gradient = run_layout(model, rows(model, batch), batch).difference(reference(setting))
        assert logp < RIGHT and gradient < 1e-5


class TestSlidingWindows:
    """A 4-D mask is handed to every layer as it is, windowed or not."""

    @pytest.mark.parametrize("name", ["gemma3", "qwen3-window"])
    def test_one_mask_for_all_layers(self, name):
        setting, (row, index) = Setting(name, torch.float32), shared_row(make_batch())
        inputs = dict(position_ids=row.position_ids, use_cache=False)
        full, windowed = visible(row), visible(row, WINDOW)
        both = {"full_attention": full, "sliding_attention": windowed}
        assert error(packed_call(setting.model(), row, attention_mask=both, **inputs), index, setting) < RIGHT
        for one in (full, windowed):
            assert error(packed_call(setting.model(), row, attention_mask=one, **inputs), index, setting) > WRONG
        assert_ours_exact(setting)

    def test_a_window_counted_in_places_of_the_row(self):
        """Between a branch and its trunk lie other branches: distance in the row is not distance in the sequence."""
        setting, (row, index) = Setting("gemma3", torch.float32), shared_row(make_batch())
        of_places = {"full_attention": visible(row), "sliding_attention": visible(row, WINDOW, of_positions=False)}
        logp = packed_call(
            setting.model(), row, attention_mask=of_places, position_ids=row.position_ids, use_cache=False
        )
        assert error(logp, index, setting) > WRONG
        assert_ours_exact(setting)


class TestKernels:
    """Kernels that are wrong for branches, put in the place of ours."""

    SETTING = Setting("llama")

    def run(self, attend):
        batch, model = make_batch(), self.SETTING.model(prepare_rows)
        row, index = shared_row(batch)
        kernel = Kernel(name="on trial", reason="a test", attend=attend)
        pieces = iter([(index, row_log_probs(model, row, batch.width, kernel=kernel)[0])])
        return run_layout(model, pieces, batch).difference(reference(self.SETTING))

    def test_causal_aligned_at_the_top_left(self):
        logp, gradient = self.run(WRONG_IN_VALUE["masks aligned at the top left"])
        assert logp > WRONG and gradient > WRONG
        assert max(self.run(SEGMENT_SDPA.attend)) < 1e-12

    def test_merging_by_log_sum_exp_without_its_gradient(self):
        """Right in value, so only a comparison of gradients sees it."""
        assert max(self.run(partial(merged, lse_gradient=True))) < 1e-12
        logp, gradient = self.run(partial(merged, lse_gradient=False))
        assert logp < 1e-12 and gradient > WRONG
        assert max(self.run(SEGMENT_SDPA.attend)) < 1e-12


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
