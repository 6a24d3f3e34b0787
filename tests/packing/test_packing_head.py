"""The scored head goes on once and comes off again; the names of transformers that rows rely on are there."""

import ast
import copy
from itertools import chain
from pathlib import Path

import pytest
import torch
import transformers
from packing_models import build, with_lora
from refusals import refused
from trl.trainer.utils import add_fused_lm_head

import dppo
from dppo.errors import ConfigError
from dppo.packing.attention import RELIED_ON, leave_rows, private, unsupported, use_rows
from dppo.packing.forward import row_log_probs
from dppo.packing.head import add_scored_head, remove_scored_head
from dppo.packing.rows import build_row

IDS = torch.tensor([[5, 6, 7]])
ROW = build_row([IDS[0]], [IDS[0]], [0])


@pytest.fixture
def model():
    model = build("qwen3")
    use_rows(model)
    return model


@torch.no_grad()
def scored(model):
    return row_log_probs(model, ROW, 3).logp_BT


def forwards_passed(model):
    """How many functions of this project or TRL's a call passes before the model's own."""
    passed, forward = 0, vars(model).get("forward")
    while forward is not None:
        passed += 1
        forward = next((head.below for head in model.scored_heads if head.forward is forward.__func__), None)
    return passed


@torch.no_grad()
def test_it_goes_on_once_and_comes_off(model):
    add_scored_head(model)
    first, logits = scored(model), model(input_ids=IDS).logits
    for _ in range(5):
        add_scored_head(model, temperature=0.5)
    assert forwards_passed(model) == 1, "the head is replaced, not wrapped once more"
    assert not torch.equal(scored(model), first), "the last call's temperature holds"
    kept, last = copy.deepcopy(model), scored(model)
    remove_scored_head(model)
    remove_scored_head(model)
    assert "forward" not in vars(model) and not model.scored_heads
    add_scored_head(model)
    assert torch.equal(scored(model), first)
    for parameter in model.parameters():
        parameter.mul_(1.5)
    assert (model(input_ids=IDS).logits - logits).abs().max() > 0.1
    assert forwards_passed(kept) == 1 and torch.equal(scored(kept), last), "a copy keeps its own head and weights"
    assert torch.equal(kept(input_ids=IDS).logits, logits)


@torch.no_grad()
def test_the_forward_below_it_comes_back_and_one_that_was_wrapped_passes_calls_on(model):
    """TRL puts a head of its own over ours when a second trainer is made for the same model."""
    labels = dict(input_ids=IDS, shift_labels=IDS, fused_lm_head=True)
    add_fused_lm_head(model)
    below, theirs = model.forward, model(**labels).log_probs
    add_scored_head(model, temperature=0.5)
    assert not torch.allclose(model(**labels).log_probs, theirs)
    remove_scored_head(model)
    assert model.forward == below and torch.equal(model(**labels).log_probs, theirs)

    add_scored_head(model, temperature=0.5)
    add_fused_lm_head(model, temperature=2.0)
    remove_scored_head(model)
    plain = model(input_ids=IDS).logits
    torch.testing.assert_close(plain, build("qwen3")(input_ids=IDS).logits)
    add_scored_head(model)
    alone = build("qwen3")
    use_rows(alone)
    add_scored_head(alone)
    torch.testing.assert_close(scored(model), scored(alone))
    remove_scored_head(model)
    wanted = (plain / 2).log_softmax(-1).gather(2, IDS[..., None])[..., 0]
    torch.testing.assert_close(model(**labels).log_probs, wanted)


def test_an_adapter_on_the_head_is_refused(model):
    """TRL's head reads the matrix of ``lm_head`` and never sees an adapter on it."""
    add_scored_head(model)
    with refused(ConfigError, "lm_head"):
        scored(with_lora(model, targets=("q_proj", "lm_head")))


def test_a_transformers_without_it_is_named(model):
    class Other:
        pass

    with refused(ConfigError, transformers.__version__, "_is_stateful", "Other", "layout: padded"):
        private(Other(), "_is_stateful")
    assert unsupported(model) == ""


def test_the_private_names_of_transformers_are_there_and_no_other_file_knows_them():
    for kind, names in RELIED_ON.items():
        owner = getattr(transformers, kind)
        assert all(hasattr(owner() if kind == "PreTrainedConfig" else owner, name) for name in names)
    names, root, found = set(chain(*RELIED_ON.values())), Path(dppo.__file__).parent, set()
    for file in root.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        used |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        found |= {file.relative_to(root).as_posix()} if used & names else set()
    assert found == {"packing/attention.py"}


def test_a_model_gets_its_attention_back_however_often_rows_were_used():
    model = build("qwen3")
    model.set_attn_implementation("eager")
    for change in (use_rows, use_rows, leave_rows, leave_rows):
        change(model)
    assert model.config._attn_implementation == "eager"
