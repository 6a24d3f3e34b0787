"""Padded, sorted, packed and shared-prefix layouts agree with one sequence at a time, in value and in gradient."""

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from packing_models import (
    MODELS,
    SCORINGS,
    VOCABULARY,
    Setting,
    blank,
    build,
    float64_throughout,
    make_batch,
    make_row,
    one_at_a_time,
    padded,
    prepare_rows,
    randomise,
    reference,
    rows,
    run_layout,
    shared_row,
    sorted_by_length,
    with_lora,
)
from torch.utils.checkpoint import CheckpointError
from transformers import AttentionInterface
from trl.trainer.utils import add_fused_lm_head

from dppo.packing import head
from dppo.packing.attention import ROWS, rows_attention, use_rows
from dppo.packing.forward import row_log_probs
from dppo.packing.rows import Segments, plan_rows

LAYOUTS = {
    "padded": padded,
    "sorted": sorted_by_length,
    "packed-one-row": partial(rows, shared=False),
    "packed-small-rows": partial(rows, shared=False, max_tokens=40),
    "each-alone": partial(rows, max_tokens=1),
    "shared-one-row": rows,
    "shared-small-rows": partial(rows, max_tokens=40),
    "shared-split-groups": partial(rows, max_tokens=22),
}

# Nats, and relative to the global norm of the gradient.
BARS = {torch.float64: (1e-12, 1e-12), torch.float32: (2e-5, 1e-5)}


def assert_near(found, setting):
    bars = BARS[setting.dtype]
    differences = found.difference(reference(setting))
    assert all(off < bar for off, bar in zip(differences, bars, strict=True)), differences


def prepare_fused(model, temperature):
    """Rows with TRL's fused head in place of ours."""
    use_rows(model)
    add_fused_lm_head(model, temperature=temperature, outputs=("log_probs", "entropy"))


BOTH = (False, True)
SMALL_ROWS = ("packed-small-rows", "shared-split-groups")
"""Two layouts of rows: one without shared prompts, and one that splits groups."""
PLAIN = [*(Setting(name, tied=True) for name in MODELS), Setting("llama", temperature=1.7)]
ON_ROWS = [
    *(Setting(name, dtype) for name, dtype in product(MODELS, BARS)),
    *(Setting("qwen3", dtype, tied=tied, lora=True) for dtype, tied in product(BARS, BOTH)),
]
CHECKPOINTED = [Setting(name, lora=lora, tied=True) for name, lora in product(("qwen3", "gemma3"), BOTH)]
FUSED = [
    Setting(name, torch.float32, tied=tied, lora=lora, temperature=0.8)
    for name, tied, lora in (("qwen3", False, True), ("llama", True, True), ("gemma3", True, False))
]


def assert_exact(setting, layout, *, prepare=prepare_rows, checkpointing=False):
    model, batch = setting.model(partial(prepare, temperature=setting.temperature)), make_batch()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert_near(run_layout(model.train(), LAYOUTS[layout](model, batch, setting.temperature), batch), setting)


@pytest.mark.parametrize(("setting", "layout"), [*product(PLAIN, LAYOUTS), *product(ON_ROWS, SMALL_ROWS)], ids=str)
def test_layouts_agree_to_rounding(setting, layout):
    assert_exact(setting, layout)


@pytest.mark.parametrize(("setting", "layout"), product(CHECKPOINTED, SMALL_ROWS), ids=str)
def test_rows_agree_under_checkpointing(setting, layout):
    assert_exact(setting, layout, checkpointing=True)


@pytest.mark.parametrize(("setting", "layout"), product(FUSED, ("shared-small-rows", "shared-one-row")), ids=str)
def test_rows_agree_with_the_head_of_trl(setting, layout):
    assert_exact(setting, layout, prepare=prepare_fused)


def test_lora_wrapped_before_the_attention_is_set_and_two_rows_before_one_backward():
    setting, batch = Setting("gemma3", lora=True), make_batch()
    model = setting.model(prepare_rows)
    model.set_attn_implementation("eager")
    use_rows(model)
    pieces = list(rows(model, batch, max_tokens=40))
    assert len(pieces) > 2
    assert_near(run_layout(model, iter(pieces), batch), setting)


@pytest.mark.parametrize(
    ("prepare", "dtype", "bar"), [(prepare_rows, torch.float64, 1e-12), (prepare_fused, torch.float32, 1e-5)]
)
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
@torch.no_grad()
def test_entropy_is_that_of_the_definition(name, prepare, dtype, bar):
    """The definition uses the distribution of each completion token, one sequence at a time."""
    batch, temperature, plain, model = make_batch(), 1.3, build(name, dtype=torch.float64), build(name, dtype=dtype)
    prepare(model, temperature)
    for index in plan_rows(batch.group, batch.prompt_tokens, batch.completion_tokens, 40):
        found = row_log_probs(model, make_row(batch, index), batch.width, entropy=True)[1]
        for i, entropy_C in zip(index, found, strict=True):
            prompt, completion = batch.prompts[i], batch.completions[i]
            logits = plain(input_ids=torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
            wanted = torch.distributions.Categorical(logits=logits / temperature).entropy()
            assert (entropy_C[: len(completion)] - wanted).abs().max() < bar and not entropy_C[len(completion) :].any()
    assert row_log_probs(model, make_row(batch, [0, 1]), batch.width)[1] is None, "computed only if asked for"


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("rows_of_logits", [1, 7, 1000])
def test_the_head_in_blocks(monkeypatch, scoring, rows_of_logits):
    """Scored a few positions at a time, with torch's own loss and with the one for earlier versions of torch."""
    monkeypatch.setattr(head, "BLOCK_LOGITS", rows_of_logits * VOCABULARY)
    monkeypatch.setattr(head, "label_log_probs", scoring)
    for setting in (Setting("qwen3", tied=True), Setting("llama", lora=True)):
        assert_exact(setting, "shared-small-rows")
    assert_exact(Setting("gemma3", tied=True), "shared-one-row", checkpointing=True)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    "adapters",
    [dict(modules_to_save=["lm_head"]), dict(targets=("q_proj", "embed_tokens"))],
    ids=["head-in-full", "embeddings"],
)
def test_adapters_next_to_the_head(adapters, tied):
    batch, plain, model = make_batch(), *(build("qwen3", tied=tied, dtype=torch.float64) for _ in range(2))
    prepare_rows(model)
    plain, model = with_lora(plain, **adapters), with_lora(model, **adapters)
    expected = run_layout(plain, one_at_a_time(plain, batch), batch)
    assert max(run_layout(model, rows(model, batch), batch).difference(expected)) < 1e-12


@pytest.mark.parametrize("name", MODELS)
def test_autocast_is_as_near_as_padding_is(name):
    """In bfloat16 no two layouts agree; rows are no further from float32 than padding."""
    batch, model, exact = make_batch(), build(name), reference(Setting(name, torch.float32)).logp_NC
    prepare_rows(model)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        of_rows, of_padding = (
            float(torch.cat([(logp - exact[index]).abs().flatten() for index, logp in run(model, batch)]).mean())
            for run in (rows, padded)
        )
    assert 0 < of_rows < 1.5 * of_padding < 0.1


def test_other_forwards_between_a_forward_and_its_recompute_under_checkpointing(monkeypatch):
    """The wrong twin keeps a row's segments in a variable, which the next forward changes before the recompute."""
    setting, batch, held = Setting("qwen3"), make_batch(), {}
    row, index = shared_row(batch)

    def difference(others, prepare=prepare_rows):
        model = setting.model(prepare).train()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        logp = row_log_probs(model, row, batch.width)[0]
        if others:
            with torch.no_grad():
                list(padded(model, batch))
            one_sequence = Segments(length_S=(row.segments.total,), trunk_S=(-1,))
            row_log_probs(model, replace(row, segments=one_sequence), row.width)
        return run_layout(model, iter([(index, logp)]), batch).difference(reference(setting))[1]

    def of_the_last_forward(*inputs, row_segments=None, **options):
        return rows_attention(*inputs, row_segments=held["segments"], **options)

    def holding(model):
        def hold(module, args, options):
            held["segments"] = options.get("row_segments")

        prepare_rows(model)
        model.base_model.register_forward_pre_hook(hold, with_kwargs=True)

    assert difference(others=True) < 1e-12
    monkeypatch.setitem(AttentionInterface._global_mapping, ROWS, of_the_last_forward)
    assert difference(others=False, prepare=holding) < 1e-12
    with pytest.raises(CheckpointError):
        difference(others=True, prepare=holding)


def without_temperature(setting, batch):
    model = setting.model(prepare_rows)
    return model, rows(model, batch)


def prompts_without_their_first_token(setting, batch):
    model, prompts = setting.model(), [prompt[1:] if len(prompt) > 1 else prompt for prompt in batch.prompts]
    return model, padded(model, replace(batch, prompts=prompts))


def a_wider_window(setting, batch):
    model = build(setting.name, dtype=setting.dtype, sliding_window=64)
    return model, one_at_a_time(model, batch)


@pytest.mark.parametrize(
    ("wrong", "setting"),
    [
        (without_temperature, Setting("llama", temperature=1.7)),
        (without_temperature, Setting("gemma3", temperature=1.7)),
        (prompts_without_their_first_token, Setting("qwen3")),
        (a_wider_window, Setting("gemma3")),
        (a_wider_window, Setting("qwen3-window")),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_wrong_layouts_are_far_above_the_bars(wrong, setting):
    batch = make_batch()
    model, pieces = wrong(setting, batch)
    assert min(run_layout(model, pieces, batch).difference(reference(setting))) > 0.1


def test_transformers_float64_is_not_float64():
    """Without the patched norms and angles a layout cannot be told from a layout 1e-8 wrong."""
    batch, model = make_batch(), blank("qwen3")
    randomise(model.parameters(), 0)
    model.double()
    plain = run_layout(model, one_at_a_time(model, batch), batch)
    assert min(run_layout(model, padded(model, batch), batch).difference(plain)) > 1e-9
    patched = run_layout(float64_throughout(model), one_at_a_time(model, batch), batch)
    assert patched.difference(plain)[0] < 1e-4, "the patched model computes something else"
