"""Which layout a run uses, that it says so, and that rows which are wrong do not train."""

import json
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from refusals import refused, warned
from tiny_runs import DEVICE, ON_CPU, PADDED_TOO, logged, problems, relative_difference, scripted
from transformers import AutoModelForCausalLM, ModernBertDecoderConfig, ModernBertDecoderForCausalLM
from trl_gradients import TOLERANCE, compare, dppo_run, trl_run
from trl_layout_cases import BROKEN, POSITIONS, SERVED, UNSERVED, broken, mixture, same_length, saved

from dppo.errors import ConfigError
from dppo.packing.attention import ROWS
from dppo.trl.forwards import ForwardPasses
from dppo.trl.layouts import RowLayout
from dppo.trl.served import unserved_models

ROWS_LINE = f"dppo | layout: packed rows, attention by sdpa per segment ({DEVICE} and float32)"


def test_the_layout_that_is_asked_for_is_used_and_said(tiny_path, tmp_path, capsys, forwarded):
    tokens = {}
    for layout, line in {
        "rows": ROWS_LINE,
        "auto": ROWS_LINE,
        "packed": "dppo | layout: packed rows, each completion with its own prompt, attention by",
        "padded": "dppo | layout: length-sorted padding (as set)",
    }.items():
        forwarded.clear()
        differences, trainer = compare(tiny_path, tmp_path / layout, ours={"layout": layout})
        assert max(differences) < TOLERANCE and line in capsys.readouterr().out
        assert bool(forwarded) == (layout != "padded") == isinstance(trainer.forwards.layout, RowLayout)
        tokens[layout] = logged(trainer, "rows/tokens")[0]
    assert trainer.model.config._attn_implementation == "sdpa"
    assert tokens["packed"] > tokens["rows"] == tokens["auto"], "prompts are shared"


@pytest.mark.parametrize("kind", SERVED)
def test_models_that_rows_serve(kind, tiny_path, tmp_path, capsys):
    path = saved(SERVED[kind](), tiny_path, tmp_path / "model")
    rollout = same_length if "learned" in kind else scripted
    differences, trainer = compare(path, tmp_path, rollout=rollout)
    assert max(differences) < TOLERANCE
    assert ROWS_LINE in capsys.readouterr().out.splitlines()
    assert logged(trainer, "rows/forwards") == [1.0] and logged(trainer, "rows/tokens")[0] > 5 * POSITIONS


@pytest.mark.parametrize("reason", UNSERVED)
def test_models_that_rows_cannot_serve(reason, tiny_path, tmp_path, capsys, forwarded):
    path = saved(UNSERVED[reason](), tiny_path, tmp_path / "model")
    # A router loss balances each forward pass by itself, and here there are more of them than in TRL.
    options = {"router_aux_loss_coef": 0.0} if "sinks" in reason else {}
    differences, trainer = compare(path, tmp_path, ours={"max_tokens_per_row": 100}, **options)
    assert max(differences) < TOLERANCE and not forwarded
    assert f"dppo | layout: length-sorted padding ({reason}" in capsys.readouterr().out
    assert trainer.model.config._attn_implementation != ROWS and logged(trainer, "rows/forwards")[0] > 1


@pytest.mark.parametrize("layout", PADDED_TOO)
@pytest.mark.parametrize("options", [{}, {"num_iterations": 2, "max_steps": 2}], ids=["one pass", "two passes"])
def test_the_router_loss_of_experts_is_that_of_trl_unpruned(layout, options, tiny_path, tmp_path, forwarded):
    path = saved(mixture(), tiny_path, tmp_path / "model")
    options = options | {"router_aux_loss_coef": 0.5}
    with_it, trainer = compare(path, tmp_path, ours={"layout": layout}, **options)
    assert max(with_it) < TOLERANCE and bool(forwarded) == (layout == "rows")
    _, stock = trl_run(path, tmp_path, **options)
    assert logged(trainer, "aux_loss") == pytest.approx(logged(stock, "aux_loss"), rel=1e-5)
    assert trainer.method.router_coef == 0.5 and trainer.biases == ()
    without, _ = trl_run(path, tmp_path, **options | {"router_aux_loss_coef": 0.0})
    mine, _ = dppo_run(path, tmp_path, **options)
    assert relative_difference(mine[0], without[0]) > 0.01, "it is large enough to be seen"


def test_a_router_loss_beside_a_head_that_cannot_be_scored_is_refused(tiny_path, tmp_path):
    path = saved(mixture(), tiny_path, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"final_logit_softcapping": 5.0}))
    with refused(ConfigError, "router_aux_loss_coef=0.5", "router_aux_loss_coef: 0.0"):
        dppo_run(path, tmp_path, router_aux_loss_coef=0.5)


@pytest.mark.parametrize("name", BROKEN)
def test_a_self_check_stops_the_run_and_auto_warns_and_pads(name, tiny_path, tmp_path, monkeypatch, forwarded):
    broken(name, monkeypatch)
    with refused(ConfigError, BROKEN[name], "layout: padded"):
        dppo_run(tiny_path, tmp_path)
    eager = {"model_init_kwargs": {"attn_implementation": "eager"}, "num_iterations": 2, "max_steps": 2}
    with warned("padding", BROKEN[name]):
        differences, trainer = compare(tiny_path, tmp_path, ours={"layout": "auto"}, **eager)
    assert max(differences) < TOLERANCE and not forwarded, "nothing was computed with it"
    assert str(trainer.forwards.layout) == "layout: length-sorted padding (rows failed the self-check)"
    assert trainer.model.config._attn_implementation == "eager"


def test_what_is_checked_is_what_would_go_wrong(tiny_path, tmp_path, monkeypatch):
    """Without the check the same rows train, with another gradient, and nothing is said."""
    broken("segments ignored", monkeypatch)
    monkeypatch.setattr(ForwardPasses, "check_once", lambda self: None)
    differences, _ = compare(tiny_path, tmp_path)
    assert differences[0] > 0.1


@pytest.mark.parametrize("layout", ["rows", "auto", "padded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_that_no_layout_serves_is_refused_by_all(dtype, layout, tiny_path, tmp_path):
    """A layer between the last hidden states and the head: TRL's own forward leaves it out, too."""
    settings = dict(pad_token_id=0, eos_token_id=1, bos_token_id=2, cls_token_id=2, sep_token_id=1)
    size = dict(vocab_size=31, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    model = ModernBertDecoderForCausalLM(ModernBertDecoderConfig(**settings, **size))
    path = saved(model.to(dtype), tiny_path, tmp_path / "model")
    with refused(ConfigError, "ModernBertDecoderForCausalLM", "nats"):
        dppo_run(path, tmp_path, layout=layout)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_is_put_back_for_whoever_generates_and_afterwards(attention, tiny_path, tmp_path):
    def attentions(trainer):
        return [model.config._attn_implementation for model in (trainer.model, trainer.ref_model)]

    def look(prompts, trainer):
        seen.append(attentions(trainer))
        return scripted(prompts, trainer)

    seen, options = [], {"model_init_kwargs": {"attn_implementation": attention}, "max_steps": 2, "beta": 0.1}
    differences, trainer = compare(tiny_path, tmp_path, rollout=look, **options)
    seen.append(attentions(trainer))
    trainer.evaluate(eval_dataset=problems(8))
    seen.append(attentions(trainer))
    assert max(differences) < TOLERANCE and len(seen) >= 6
    assert all(each == [attention, attention] for each in seen[2:]), "ours: TRL's run came first"


def adapters(**settings):
    def peft():
        torch.manual_seed(5)  # the adapters start from random numbers: the same for both trainers
        return LoraConfig(**{"r": 4, "init_lora_weights": False, "task_type": "CAUSAL_LM"} | settings)

    return peft


@pytest.mark.parametrize("head", [{}, {"modules_to_save": ["lm_head"]}], ids=["adapters", "and the head in full"])
def test_adapters(head, tiny_path, tmp_path, forwarded):
    path = saved(SERVED["few rotary positions"](), tiny_path, tmp_path / "model")
    peft = adapters(target_modules=["q_proj", "v_proj", "down_proj"], **head)
    differences, _ = compare(path, tmp_path, peft=peft, beta=0.1, loss_type="grpo")
    assert max(differences) < TOLERANCE
    assert [gradient for _, gradient in forwarded] == [False, True], "reference, then policy"


def test_an_adapter_on_the_head_is_refused(tiny_path):
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_path), adapters(target_modules=["lm_head"])())
    trainer = SimpleNamespace(_is_vlm=False, model=model, rollout_func=None, train_dataset=None)
    trainer.accelerator = SimpleNamespace(unwrap_model=lambda model: model)
    trainer._tokenizer = SimpleNamespace(eos_token_id=0)
    (refusal,) = unserved_models(trainer)
    assert "adapter covers lm_head" in refusal and "modules_to_save=['lm_head']" in refusal


def test_bf16_autocast_is_as_near_to_float32_as_padding_is(tiny_path, tmp_path, capsys):
    exact, _ = trl_run(tiny_path, tmp_path)
    padded, _ = trl_run(tiny_path, tmp_path, bf16=True)
    rows, _ = dppo_run(tiny_path, tmp_path, bf16=True, completion_prune_rate=0.0)
    line = "layout: packed rows, attention by "
    assert line + "sdpa per segment (cpu and bfloat16)" * ON_CPU in capsys.readouterr().out
    noise = relative_difference(padded[0], exact[0])
    assert 1e-3 < relative_difference(rows[0], exact[0]) < 1.5 * noise < 0.1
