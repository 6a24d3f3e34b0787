"""Padded, sorted, packed and shared-prefix layouts agree with one sequence at a time, in value and in gradient."""

from functools import cache, partial
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
    sorted_by_length,
    with_lora,
)
from trl.trainer.utils import add_fused_lm_head

from dppo.packing import head
from dppo.packing.attention import use_rows
from dppo.packing.forward import row_log_probs
from dppo.packing.rows import plan_rows

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


def assert_exact(setting, layout, *, checkpointing=False):
    model, batch = setting.model(partial(prepare_rows, temperature=setting.temperature)), make_batch()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    found = run_layout(model.train(), LAYOUTS[layout](model, batch, setting.temperature), batch)
    assert_near(found, setting)


def assert_near(found, setting):
    logp, gradient = found.difference(reference(setting))
    logp_bar, gradient_bar = BARS[setting.dtype]
    assert logp < logp_bar and gradient < gradient_bar, (logp, gradient)


BOTH = (False, True)
SMALL_ROWS = ("packed-small-rows", "shared-split-groups")
"""Of layouts that are rows, one without shared prompts and one whose groups are split."""
PLAIN = [*(Setting(name, tied=True) for name in MODELS), Setting("llama", temperature=1.7)]
ON_ROWS = [
    *(Setting(name, dtype) for name, dtype in product(MODELS, BARS)),
    *(Setting("qwen3", dtype, tied=tied, lora=True) for dtype, tied in product(BARS, BOTH)),
]
CHECKPOINTED = [Setting(name, lora=lora, tied=True) for name, lora in product(("qwen3", "gemma3"), BOTH)]


@pytest.mark.parametrize(
    ("setting", "layout", "checkpointing"),
    [
        *((setting, layout, False) for setting, layout in product(PLAIN, LAYOUTS)),
        *((setting, layout, False) for setting, layout in product(ON_ROWS, SMALL_ROWS)),
        *((setting, layout, True) for setting, layout in product(CHECKPOINTED, SMALL_ROWS)),
    ],
    ids=str,
)
def test_layouts_agree_to_rounding(setting, layout, checkpointing):
    assert_exact(setting, layout, checkpointing=checkpointing)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_temperature_is_that_of_the_head(name):
    """The wrong twin: a head without the temperature is nats away, so the tests above would notice."""
    setting, batch = Setting(name, temperature=1.7), make_batch()
    model = setting.model(prepare_rows)
    logp, gradient = run_layout(model, rows(model, batch), batch).difference(reference(setting))
    assert logp > 0.1 and gradient > 0.1


def test_lora_wrapped_before_the_attention_is_set():
    setting, batch = Setting("qwen3", lora=True), make_batch()
    model = setting.model(partial(prepare_rows, temperature=1.0))
    use_rows(model)
    assert_near(run_layout(model, rows(model, batch), batch), setting)


def prepare_fused(model, temperature):
    """With TRL's head in the place of ours."""
    use_rows(model)
    add_fused_lm_head(model, temperature=temperature, outputs=("log_probs", "entropy"))


@pytest.mark.parametrize(
    ("name", "tied", "lora"), [("qwen3", False, True), ("llama", True, True), ("gemma3", True, False)]
)
def test_trl_fused_head_on_rows(name, tied, lora):
    setting, batch = Setting(name, torch.float32, tied=tied, lora=lora, temperature=0.8), make_batch()
    model = setting.model(partial(prepare_fused, temperature=0.8))
    for max_tokens in (40, 10_000):
        assert_near(run_layout(model, rows(model, batch, max_tokens=max_tokens), batch), setting)


@cache
def entropy_by_definition(name, temperature):
    """(N, C) entropy in nats of the distribution each completion token was drawn from, one sequence at a time."""
    model, batch = build(name, dtype=torch.float64), make_batch()
    entropy_NC = torch.zeros_like(batch.weight_NC)
    for i, (prompt, completion) in enumerate(zip(batch.prompts, batch.completions, strict=True)):
        with torch.no_grad():
            logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
        prob = (logits / temperature).softmax(-1)
        entropy_NC[i, : len(completion)] = -(prob * prob.log()).sum(-1)
    return entropy_NC


@pytest.mark.parametrize(
    ("prepare", "dtype", "bar"), [(prepare_rows, torch.float64, 1e-12), (prepare_fused, torch.float32, 1e-5)]
)
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_entropy_is_that_of_the_definition(name, prepare, dtype, bar):
    batch, temperature, model = make_batch(), 1.3, build(name, dtype=dtype)
    prepare(model, temperature)
    entropy_NC = torch.zeros_like(batch.weight_NC)
    for index in plan_rows(batch.group, batch.prompt_tokens, batch.completion_tokens, 40):
        entropy_NC[index] = row_log_probs(model, make_row(batch, index), batch.width, entropy=True)[1].detach().double()
    assert (entropy_NC - entropy_by_definition(name, temperature)).abs().max() < bar
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


def test_two_rows_then_one_backward():
    setting, batch = Setting("gemma3"), make_batch()
    model = setting.model(prepare_rows)
    pieces = list(rows(model, batch, max_tokens=40))
    assert len(pieces) > 2
    assert_near(run_layout(model, iter(pieces), batch), setting)


class TestTheTestsCanFail:
    """What the bars above stand on."""

    def test_transformers_float64_is_not_float64(self):
        """Without the patched norms and angles a layout cannot be told from a layout 1e-8 wrong."""
        batch, model = make_batch(), blank("qwen3")
        randomise(model.parameters(), 0)
        model.double()
        plain = run_layout(model, one_at_a_time(model, batch), batch)
        logp, gradient = run_layout(model, padded(model, batch), batch).difference(plain)
        assert logp > 1e-9 and gradient > 1e-9
        patched = run_layout(float64_throughout(model), one_at_a_time(model, batch), batch)
        assert patched.difference(plain)[0] < 1e-4, "the patched model computes something else"

    def test_a_context_shorter_by_one_token_is_seen(self):
        """The wrong twin of every layout: prompts without their first token."""
        batch, setting = make_batch(), Setting("qwen3")
        model = setting.model()
        cut = [p[1:] if len(p) > 1 else p for p in batch.prompts]
        wrong = type(batch)(cut, batch.completions, batch.group, batch.weight_NC)
        logp, gradient = run_layout(model, padded(model, wrong), batch).difference(reference(setting))
        assert logp > 0.1 and gradient > 0.1

    @pytest.mark.parametrize("name", ["gemma3", "qwen3-window"])
    def test_the_window_matters(self, name):
        batch, wide = make_batch(), build(name, dtype=torch.float64, sliding_window=64)
        logp, gradient = run_layout(wide, one_at_a_time(wide, batch), batch).difference(reference(Setting(name)))
        assert logp > 0.1 and gradient > 0.1
