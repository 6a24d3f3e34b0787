"""Which models rows serve, what they cannot serve, and that without rows a model is what it was."""

import pytest
import torch
from packing_models import (
    SIZE,
    build,
    make_batch,
    one_at_a_time,
    padded,
    prepare_rows,
    random_model,
    run_layout,
    shared_row,
)
from transformers import Gemma2Config, GenerationConfig, GptOssConfig, Lfm2Config, Qwen3MoeConfig
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from dppo.packing.attention import DROPOUTS, unsupported, use_rows
from dppo.packing.forward import row_log_probs
from dppo.packing.rows import build_row


class TestOrdinaryCalls:
    """Without segments a model is what it was."""

    @pytest.mark.parametrize("name", ["qwen3", "gemma3", "qwen3-window"])
    def test_evaluation_gradients_and_generation_are_bit_identical(self, name):
        batch, before, after = make_batch(), build(name).eval(), build(name).eval()
        prepare_rows(after, temperature=0.7)
        one, other = (run_layout(model, padded(model, batch), batch) for model in (before, after))
        assert torch.equal(one.logp_NC, other.logp_NC) and torch.equal(one.gradient, other.gradient)
        ids = batch.prompts[0][None]
        assert torch.equal(before(ids).logits, after(ids).logits)
        ids = torch.stack([p[:5] for p in batch.prompts if len(p) >= 5])
        mask = torch.ones_like(ids)
        mask[0, :3] = 0
        for config in (dict(do_sample=False), dict(do_sample=True, temperature=1.3)):
            written = []
            for model in (before, after):
                torch.manual_seed(0)
                generation = GenerationConfig(max_new_tokens=12, pad_token_id=0, **config)
                written.append(model.generate(ids, attention_mask=mask, generation_config=generation))
            assert torch.equal(*written) and written[0].shape[1] > 10

    @pytest.mark.parametrize("attention", ["sdpa", "eager"])
    def test_nothing_of_it_is_saved_or_in_another_model_of_the_configuration(self, tmp_path, attention):
        model = build("qwen3", attn_implementation=attention)
        other = type(model)(type(model.config).from_dict(model.config.to_dict()))
        use_rows(model)
        assert other.config._attn_implementation == "sdpa"
        prepare_rows(model)
        model.save_pretrained(tmp_path)
        model.config.save_pretrained(tmp_path / "config")
        for path in (tmp_path / "config.json", tmp_path / "config" / "config.json"):
            assert "dppo" not in path.read_text()
        assert type(model).from_pretrained(tmp_path).config._attn_implementation == "sdpa"


ROPE = dict(rope_parameters={"rope_type": "default", "rope_theta": 1e4})
UNSERVED = {
    "convolution": Lfm2Config(**SIZE, layer_types=["conv", "full_attention"]),
    "capped scores": Gemma2Config(**SIZE, head_dim=8, attn_logit_softcapping=1.0, final_logit_softcapping=None),
    "attention sinks": GptOssConfig(**SIZE, **ROPE, head_dim=8, num_local_experts=2, num_experts_per_tok=1),
}


@pytest.mark.parametrize("kind", UNSERVED)
def test_models_that_rows_cannot_serve(kind):
    """On rows they are silently wrong: ``unsupported`` must name them, and the self-check must see it."""
    batch, expected, model = make_batch(), random_model(UNSERVED[kind]), random_model(UNSERVED[kind])
    assert unsupported(model)
    expected.set_attn_implementation("eager")
    prepare_rows(model)
    row, index = shared_row(batch)
    with torch.no_grad():
        outcome = torch.cat([logp for _, logp in one_at_a_time(expected, batch)])
        assert (row_log_probs(model, row, batch.width)[0] - outcome[index]).abs().max() > 0.1


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_of_attention_weights_is_seen_under_every_name(name):
    model = build("llama")
    setattr(model.config, name, 0.1)
    assert "it drops attention weights at random" in unsupported(model)


def test_the_router_loss_of_a_row_is_that_of_its_completions_one_by_one():
    """A prompt that is held once counts once for each completion, and weights count as repeated completions would."""
    experts = dict(moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)
    model = random_model(Qwen3MoeConfig(**SIZE, **experts, head_dim=8))
    prompts = [torch.tensor(ids) for ids in ([3, 4, 5], [3, 4, 5], [6])]
    completions = [torch.tensor(ids) for ids in ([7, 8], [9], [3, 3, 4])]

    def of_row(weights, **options):
        row = build_row(prompts, completions, [0, 0, 1], **options)
        return row_log_probs(model, row, 3, weight_B=torch.tensor(weights)).router_loss

    whole = [torch.cat([prompts[k], completions[k]]) for k in (0, 0, 2, 2, 2)]
    each = [model.model(ids[None], output_router_logits=True).router_logits for ids in whole]
    layers = tuple(torch.cat(parts) for parts in zip(*each, strict=True))
    expected = load_balancing_loss_func(layers, 4, 2, None) * sum(map(len, whole))
    prepare_rows(model)
    loss, parameter = of_row([2.0, 0.0, 3.0], last_tokens=True), model.model.layers[0].mlp.gate.weight
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x, parameter)[0] for x in (loss, expected)))
    assert abs(of_row([2.0, 0.0, 3.0]) / expected - 1) > 0.01, "the wrong version: last tokens have no place"
    loss = of_row([0.0, 0.0, 0.0], last_tokens=True)
    assert float(loss) == 0.0 and torch.autograd.grad(loss, parameter)[0].abs().max() == 0.0
