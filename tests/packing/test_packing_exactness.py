"""Padded, sorted, packed and shared-prefix layouts agree with one sequence at a time, in value and in gradient.

The weights of the tokens are arbitrary and of both signs, so that the gradient is generic: an error anywhere shows.
"""

from functools import cache, partial
from itertools import product

import packing_models as models
import pytest
import torch
from trl.trainer.utils import add_fused_lm_head

from dppo.packing import head
from dppo.packing.attention import use_rows
from dppo.packing.forward import row_log_probs
from dppo.packing.rows import plan_rows

LAYOUTS = {
    "padded": models.padded,
    "sorted": models.sorted_by_length,
    "packed-one-row": partial(models.rows, shared=False),
    "packed-small-rows": partial(models.rows, shared=False, max_tokens=40),
    "shared-one-row": models.rows,
    "shared-small-rows": partial(models.rows, max_tokens=40),
    "shared-split-groups": partial(models.rows, max_tokens=22),
}
SMALL_ROWS = ("packed-small-rows", "shared-split-groups")
"""Of layouts that are rows, one without shared prompts and one whose groups are split."""

# Nats, and relative to the global norm of the gradient.
BARS = {torch.float64: (1e-12, 1e-12), torch.float32: (2e-5, 1e-5)}


def assert_exact(setting, layout, model=None):
    model = setting.prepared() if model is None else model
    logp, gradient = models.off(
        setting, LAYOUTS[layout](model.train(), models.make_batch(), setting.temperature), model
    )
    logp_bar, gradient_bar = BARS[setting.dtype]
    assert logp < logp_bar and gradient < gradient_bar, (logp, gradient)


def checkpointed(setting):
    model = setting.prepared()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


EXACT = [
    *product([models.Setting(name, tied=True) for name in models.MODELS], LAYOUTS),
    *product([models.Setting("llama", temperature=1.7)], LAYOUTS),
    *product([models.Setting(name, dtype) for name in models.MODELS for dtype in BARS], SMALL_ROWS),
    *product(
        [models.Setting("qwen3", dtype, tied=tied, lora=True) for tied in (False, True) for dtype in BARS], SMALL_ROWS
    ),
]
"""Every layout with every model in float64, heads of the model and tied ones, adapters, and float32."""


@pytest.mark.parametrize(("setting", "layout"), EXACT, ids=str)
def test_layouts_agree_to_rounding(setting, layout):
    assert_exact(setting, layout)


@pytest.mark.parametrize("layout", SMALL_ROWS)
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_gradient_checkpointing(name, layout, lora):
    setting = models.Setting(name, lora=lora, tied=True)
    assert_exact(setting, layout, checkpointed(setting))


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_temperature_is_that_of_the_head(name):
    """The wrong twin: a head without the temperature is nats away, so the tests above would notice."""
    setting = models.Setting(name, temperature=1.7)
    logp, gradient = models.off(setting, model=setting.model(models.prepare_rows))
    assert logp > 0.1 and gradient > 0.1


def test_lora_wrapped_before_the_attention_is_set():
    """Which of PEFT and the attention comes first does not matter."""
    setting = models.Setting("qwen3", lora=True)
    model = setting.prepared()
    use_rows(model)
    assert max(models.off(setting, model=model)) < 1e-12


def with_trls_head(model, temperature):
    use_rows(model)
    add_fused_lm_head(model, temperature=temperature, outputs=("log_probs", "entropy"))


@pytest.mark.parametrize(
    ("name", "tied", "lora"), [("qwen3", False, True), ("llama", True, True), ("gemma3", True, False)]
)
def test_trl_fused_head_on_rows(name, tied, lora):
    """TRL's head computes in float32; the rows and the attention are ours."""
    setting = models.Setting(name, torch.float32, tied=tied, lora=lora, temperature=0.8)
    model = setting.model(partial(with_trls_head, temperature=0.8))
    for layout in ("shared-small-rows", "shared-one-row"):
        assert_exact(setting, layout, model)


@cache
def entropy_by_definition(name, temperature):
    """(N, C) entropy in nats of the distribution each completion token was drawn from, one sequence at a time."""
    model, batch = models.build(name, dtype=torch.float64), models.make_batch()
    entropy_NC = torch.zeros_like(batch.weight_NC)
    for i, (prompt, completion) in enumerate(zip(batch.prompts, batch.completions, strict=True)):
        with torch.no_grad():
            logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
        prob = (logits / temperature).softmax(-1)
        entropy_NC[i, : len(completion)] = -(prob * prob.log()).sum(-1)
    return entropy_NC


@pytest.mark.parametrize(
    ("prepare", "dtype", "bar"), [(models.prepare_rows, torch.float64, 1e-12), (with_trls_head, torch.float32, 1e-5)]
)
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_entropy_is_that_of_the_definition_where_it_is_asked_for(name, prepare, dtype, bar):
    batch, temperature, model = models.make_batch(), 1.3, models.build(name, dtype=dtype)
    prepare(model, temperature)
    entropy_NC = torch.zeros_like(batch.weight_NC)
    for index in plan_rows(batch.group, batch.prompt_tokens, batch.completion_tokens, 40):
        row = models.make_row(batch, index)
        entropy_NC[index] = row_log_probs(model, row, batch.width, entropy=True)[1].detach().double()
        assert row_log_probs(model, row, batch.width)[1] is None
    assert (entropy_NC - entropy_by_definition(name, temperature)).abs().max() < bar


@pytest.mark.parametrize("scoring", [head.chunked_log_probs, head.checkpointed_log_probs])
@pytest.mark.parametrize("rows_of_logits", [1, 7, 1000])
def test_the_head_in_blocks(monkeypatch, scoring, rows_of_logits):
    """Scored a few positions at a time, with torch's own loss and with the one for earlier versions of torch."""
    monkeypatch.setattr(head, "BLOCK_LOGITS", rows_of_logits * models.VOCABULARY)
    monkeypatch.setattr(head, "label_log_probs", scoring)
    for setting in (models.Setting("qwen3", tied=True), models.Setting("llama", lora=True)):
        assert_exact(setting, "shared-small-rows")
    setting = models.Setting("gemma3", tied=True)
    assert_exact(setting, "shared-one-row", checkpointed(setting))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("targets", "in_full"), [((), ["lm_head"]), (("q_proj", "embed_tokens"), None)], ids=["head-in-full", "embeddings"]
)
def test_adapters_next_to_the_head(targets, in_full, tied):
    """A head trained in full beside the adapters, which PEFT replaces by a copy, and adapters on the embeddings."""
    batch, plain, model = (
        models.make_batch(),
        *(models.build("qwen3", tied=tied, dtype=torch.float64) for _ in range(2)),
    )
    models.prepare_rows(model)
    plain, model = (models.with_lora(each, *targets, modules_to_save=in_full) for each in (plain, model))
    expected = models.run_layout(plain, models.one_at_a_time(plain, batch), batch)
    assert max(models.run_layout(model, models.rows(model, batch), batch).difference(expected)) < 1e-12


@pytest.mark.parametrize("name", models.MODELS)
def test_autocast_is_as_near_as_padding_is(name):
    """In bfloat16 no two layouts agree; rows are no further from float32 than padding."""
    batch, model, exact = (
        models.make_batch(),
        models.build(name),
        models.reference(models.Setting(name, torch.float32)).logp_NC,
    )
    models.prepare_rows(model)

    def mean_error(layout):
        return torch.cat([(logp - exact[index]).abs().flatten() for index, logp in layout(model, batch)]).mean()

    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert 0 < mean_error(models.rows) < 1.5 * mean_error(models.padded) < 0.1


def test_two_rows_then_one_backward():
    """Rows whose losses are summed before the backward pass: their graphs do not disturb each other."""
    setting = models.Setting("gemma3")
    model = setting.prepared()
    pieces = list(models.rows(model, models.make_batch(), max_tokens=40))
    assert len(pieces) > 2 and max(models.off(setting, iter(pieces), model)) < 1e-12


class TestTheTestsCanFail:
    """What the bars above stand on."""

    def test_transformers_float64_is_not_float64(self):
        """Without the patched norms and angles a layout cannot be told from a layout 1e-8 wrong."""
        batch, model = models.make_batch(), models.build("qwen3").double()
        plain = models.run_layout(model, models.one_at_a_time(model, batch), batch)
        logp, gradient = models.run_layout(model, models.padded(model, batch), batch).difference(plain)
        assert logp > 1e-9 and gradient > 1e-9
        patched = models.run_layout(models.float64_throughout(model), models.one_at_a_time(model, batch), batch)
        assert patched.difference(plain)[0] < 1e-4, "the patched model computes something else"

    def test_a_context_shorter_by_one_token_is_seen(self):
        """The wrong twin of every layout: prompts without their first token."""
        batch, setting = models.make_batch(), models.Setting("qwen3")
        model = setting.model()
        cut = [p[1:] if len(p) > 1 else p for p in batch.prompts]
        wrong = type(batch)(cut, batch.completions, batch.group, batch.weight_NC)
        logp, gradient = models.off(setting, models.padded(model, wrong), model)
        assert logp > 0.1 and gradient > 0.1

    @pytest.mark.parametrize("name", ["gemma3", "qwen3-window"])
    def test_the_window_matters(self, name):
        """A window of the longest sequence changes the reference, so a lost window cannot pass."""
        wide = models.build(name, dtype=torch.float64, sliding_window=64)
        logp, gradient = models.off(models.Setting(name), models.one_at_a_time(wide, models.make_batch()), wide)
        assert logp > 0.1 and gradient > 0.1

    def test_the_batch_has_the_cases_it_is_for(self):
        batch = models.make_batch()
        assert 1 in batch.prompt_tokens and 1 in batch.completion_tokens
        assert max(batch.prompt_tokens) > 2 * models.WINDOW and max(batch.completion_tokens) > models.WINDOW
        prompts = {tuple(p.tolist()) for p in batch.prompts}
        assert len(prompts) == len(models.GROUPS) - 1, "two groups have the same prompt"
        assert batch.group != sorted(batch.group), "completions of a group are not together"
        split = plan_rows(batch.group, batch.prompt_tokens, batch.completion_tokens, 22)
        rows_of = [
            sum(number in {batch.group[i] for i in row} for row in split) for number in range(len(models.GROUPS))
        ]
        assert max(rows_of) > 1, "a group is split"
