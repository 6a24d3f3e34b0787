"""The router loss of mixtures of experts in trainers on rows, at TRL's defaults: its values, gradients and metrics."""

from functools import partial

import dpo_runs as dpo
import pytest
import torch
from cases import one_in
from datasets import Dataset
from refusals import refused
from sft_runs import as_trl, experts, solutions
from sft_runs import ours as sft_ours
from sft_runs import stock as sft_stock
from tiny_runs import PADDED_TOO, logged
from transformers import Lfm2Config, Lfm2ForCausalLM
from trl_layout_cases import HEADS, SIZE, UNSERVED, written

from dppo.errors import ConfigError

PLAIN = dict(per_device_train_batch_size=3, gradient_checkpointing=True)
KINDS = {"sft": (sft_stock, sft_ours), "dpo": (dpo.stock, dpo.ours)}


def turns(count=10):
    """Sequences whose trained tokens have others before, between and after them."""
    ids = [[3 + (i + 2 * j) % 28 for j in range(6 + i % 4)] for i in range(count)]
    labels = [[x if j in (2, 3 + i % 3) else -100 for j, x in enumerate(each)] for i, each in enumerate(ids)]
    return Dataset.from_dict({"input_ids": ids, "labels": labels})


OPTIONS = {
    "sft": ("sft", {}),
    "sft, its coefficient": ("sft", {"router_aux_loss_coef": 0.3}),
    "sft, accumulated": ("sft", {"router_aux_loss_coef": 0.3, "gradient_accumulation_steps": 2}),
    "sft, tokens after the trained ones": ("sft", {"router_aux_loss_coef": 0.3, "data": turns()}),
    "sft, packed": ("sft", {"router_aux_loss_coef": 0.3, "packing": True, "max_length": 16, "data": solutions(20)}),
    "sft, streamed": ("sft", {"router_aux_loss_coef": 0.3, "data": solutions().to_iterable_dataset()}),
    "dpo": ("dpo", {}),
    "dpo, accumulated": ("dpo", {"router_aux_loss_coef": 0.3, "gradient_accumulation_steps": 2}),
    "dpo, streamed": ("dpo", {"router_aux_loss_coef": 0.3, "data": dpo.pairs().to_iterable_dataset()}),
}


@pytest.fixture(scope="module")
def experts_path(tiny_path, tmp_path_factory):
    return written(experts(), tiny_path, tmp_path_factory.mktemp("experts"))


@pytest.mark.parametrize("layout", PADDED_TOO)
@pytest.mark.parametrize("case", one_in(3, OPTIONS))
def test_router_losses_are_trls(case, layout, experts_path, tmp_path):
    name, options = case
    us, them = as_trl(*KINDS[name], experts_path, tmp_path, only={"layout": layout}, **PLAIN | options)
    assert us.method.router_coef == them.router_aux_loss_coef > 0 and min(logged(us, "aux_loss")) > 0


@pytest.mark.parametrize("name", KINDS)
def test_pruned_rows_with_a_router_loss_are_biased_and_say_so(name, experts_path, tmp_path, capsys):
    mine = partial(KINDS[name][1], **PLAIN)
    with refused(ConfigError, "router loss", "accept_bias", "router_aux_loss_coef: 0.0", "row_prune_rate: 0"):
        mine(experts_path, tmp_path, row_prune_rate=0.5)
    trainer = mine(experts_path, tmp_path)
    assert "router loss is biased" in capsys.readouterr().out and not trainer.method.rows.rate
    trainer = mine(experts_path, tmp_path, router_aux_loss_coef=0.0)
    assert trainer.method.biases == () and not trainer.aux_loss_enabled
    trainer = mine(experts_path, tmp_path, accept_bias=True, max_steps=8)
    trainer.train()
    assert min(logged(trainer, "prune/kept_share")) < 1 and min(logged(trainer, "aux_loss")) > 0


def recurrent():
    """Convolutions that scan a sequence, and attention."""
    layers = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
    return Lfm2ForCausalLM(Lfm2Config(**SIZE, **HEADS, **layers))


PADDED = {**UNSERVED, "recurrent layers": recurrent}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("model", PADDED)
def test_models_that_rows_cannot_serve_are_padded(model, name, tiny_path, tmp_path):
    """Pairs and rows of a model with attention sinks, which is a mixture of experts too, and of a recurrent one."""
    torch.manual_seed(0)
    path = written(PADDED[model](), tiny_path, tmp_path / "model")
    us, _ = as_trl(*KINDS[name], path, tmp_path, per_device_train_batch_size=3)
    assert "padding" in str(us.forwards.layout)


def test_a_dense_model_has_no_router_loss(tiny_path, tmp_path):
    for make in (sft_ours, dpo.ours, sft_stock, dpo.stock):
        with pytest.raises(ValueError, match="not a Mixture-of-Experts"):
            make(tiny_path, tmp_path, router_aux_loss_coef=0.5)
