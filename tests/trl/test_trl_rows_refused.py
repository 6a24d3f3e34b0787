"""Trainers on rows: settings, datasets and reward models that cannot be served are refused with what to use."""

import re

import dpo_runs as dpo
import pytest
import sft_runs as sft
import torch
from datasets import Dataset, DatasetDict
from refusals import refused
from resumed_runs import trainer
from sft_runs import MINE, experts, solutions
from tiny_runs import CONFIG, logged
from trl import SFTTrainer
from trl_layout_cases import written

from dppo.errors import CheckpointError, ConfigError, DataError, OutOfMemoryError, RewardError
from dppo.methods import ROW_METHODS
from dppo.trl import DPPOSFTConfig, DPPOSFTTrainer, DPPOTrainer
from dppo.trl.layouts import RowLayout
from dppo.trl.rows.dpo import _is_whole

OWN = {"own": {"method": MINE}}
STREAM, PAIRS = ({"data": each.to_iterable_dataset()} for each in (solutions(), dpo.pairs()))
EQUAL = [*dpo.pairs(3), {"prompt": "w1", "chosen": " w2", "rejected": " w2"}]
NO_PROMPT = [{"chosen": "w1 w2 w3", "rejected": "w1 w2 w4"}, {"chosen": "w1 w2", "rejected": "w3 w4"}]
ALIKE = [{"prompt": "w1 w2 w3", "chosen": " w4", "rejected": " w4 w5"}]


def broken(prompts, completions, **_):
    raise ValueError("no such model")


def silent(prompts, completions, **_):
    return [None] * len(completions)


async def later(prompts, completions, **_):
    return [0.0] * len(completions)


def rows(*data):
    return {"data": Dataset.from_list([*data])}


def margin(reward):
    return {"own": {"margin_reward": reward}}


REFUSED = [
    (sft, {"data": Dataset.from_dict({"prompt": [], "completion": []})}, DataError, ["0 rows"]),
    (sft, rows({"text": "w1"}, {"text": ""}), DataError, ["1 of 2", "dataset.filter(lambda row: row['text'])"]),
    (sft, {"data": DatasetDict(test=solutions())}, ConfigError, ["DatasetDict", "dataset['test']"]),
    (sft, {"data": [{"text": "w1"}]}, ConfigError, ["list", "Dataset.from_list"]),
    (sft, {"max_length": 2}, DataError, ["10 rows", "max_length=2"]),
    (dpo, {"max_length": 2}, DataError, ["10 rows", "max_length=2"]),
    (sft, {"recorded_scores": "nowhere.npz"}, CheckpointError, ["recorded scores"]),
    (dpo, rows(*EQUAL), DataError, ["1 of 4", "from 0: 3", "filter"]),
    (dpo, rows(*NO_PROMPT), DataError, ["1 of 2", "row['chosen'].split()[:1] == row['rejected'].split()[:1]"]),
    (dpo, rows(*ALIKE) | {"max_length": 4}, DataError, ["equal answers", "max_length=4"]),
    (sft, STREAM | {"row_prune_rate": 0.5}, ConfigError, ["streamed", "row_prune_rate: 0", "streaming=False"]),
    (dpo, PAIRS | {"row_prune_rate": 0.5}, ConfigError, ["streamed", "row_prune_rate: 0"]),
    (dpo, PAIRS | OWN, ConfigError, ["streamed", "row_prune_rate=0.4"]),
    (dpo, PAIRS | margin(dpo.by_length), ConfigError, ["margin_reward", "stream"]),
    (dpo, margin(broken), RewardError, ["broken", "no such model"]),
    (dpo, margin(silent), RewardError, ["margin_reward", "10 of 10"]),
    (dpo, margin(later), ConfigError, ["margin_reward", "asyncio.run"]),
    (dpo, margin("a model"), ConfigError, ["margin_reward", "a model"]),
    (sft, OWN | {"row_prune_rate": 0.2}, ConfigError, ["row_prune_rate=0.2", "'mine'", "Leave it out"]),
    (sft, OWN | {"method": "infobatch"}, ConfigError, ["method='mine'", "args.method='infobatch'"]),
    (
        sft,
        {"own": {"method": ROW_METHODS["infobatch_kept"]}},
        ConfigError,
        ["infobatch_kept", "biased", "accept_bias=True"],
    ),
    *((kind, {"router_aux_loss_coef": 0.5}, ValueError, ["not a Mixture-of-Experts"]) for kind in (sft, dpo)),
    (dpo, {"loss_type": "aot"}, ConfigError, ["aot", "sigmoid"]),
    (dpo, {"loss_type": "typo"}, ConfigError, ["typo", "sigmoid"]),
    (dpo, {"loss_type": ["sigmoid", "sft"], "use_weighting": True}, ConfigError, ["use_weighting", "sft"]),
]


@pytest.mark.parametrize(("kind", "options", "error", "named"), REFUSED)
def test_what_cannot_be_trained_on_is_refused(kind, options, error, named, tiny_path, tmp_path):
    with refused(error, *named):
        kind.ours(tiny_path, tmp_path, **options)


def test_what_is_near_to_a_refusal_is_served(tiny_path, tmp_path, capsys):
    for losses in (["nca_pair"], ["sigmoid", "sft"]):  # equal answers have a gradient there
        dpo.ours(tiny_path, tmp_path, **rows(*EQUAL), loss_type=losses)
    for kind, data in ((sft, STREAM), (dpo, PAIRS)):
        made = kind.ours(tiny_path, tmp_path, **data)
        assert "a stream has no row to come back to" in capsys.readouterr().out and not made.method.rows.rate
    named = sft.ours(tiny_path, tmp_path, own={"method": "infobatch"}, row_prune_rate=0.2)
    assert named.method.name == "infobatch" and named.method.rows.rate == 0.2
    dotted = sft.ours(tiny_path, tmp_path, method="dppo.methods.rows:UNIFORM_ROWS")
    assert dotted.method == ROW_METHODS["uniform"]
    with refused(ConfigError, "trainer.method", "'mine'"):
        dotted.method = MINE


def test_rows_without_a_trained_token_are_named_and_the_advice_leaves_them_out(tiny_path, tmp_path):
    masked = Dataset.from_dict({"input_ids": [[3, 4, 5], [3, 4], [6]], "labels": [[-100, 4, 5], [3, -100], [6]]})
    with refused(DataError, "2 of 3", "1, 2", "filter") as found:
        sft.ours(tiny_path, tmp_path, data=masked, max_length=None)
    advice = re.search(r"dataset\.filter\((lambda row: .*)\)\.", str(found.value))[1]
    assert len(masked.filter(eval(advice))) == 1


def test_arguments_of_a_trainer_that_it_does_not_take(tiny_path, tmp_path):
    config = DPPOSFTConfig(**CONFIG)
    with refused(ConfigError, "data_collator", "compute_loss_func"):
        DPPOSFTTrainer(tiny_path, config, lambda rows: rows, solutions())
    with refused(ConfigError, "`train_dataset` is required", "Dataset.from_list"):
        DPPOSFTTrainer(tiny_path, config)
    with refused(ConfigError, "DPPOSFTConfig"):
        DPPOSFTTrainer(tiny_path, {"output_dir": "x"}, train_dataset=solutions())
    with refused(ConfigError, "pictures", "trl.DPOTrainer"):
        _is_whole({"images": [], "prompt": "?"})


@pytest.mark.parametrize("kind", [sft, dpo])
def test_pruned_rows_with_a_router_loss_are_biased_and_say_so(kind, tiny_path, tmp_path, capsys):
    path, plain = written(experts(), tiny_path, tmp_path / "model"), {"gradient_checkpointing": True}
    with refused(ConfigError, "router loss", "accept_bias", "router_aux_loss_coef: 0.0", "row_prune_rate: 0"):
        kind.ours(path, tmp_path, row_prune_rate=0.5, **plain)
    made = kind.ours(path, tmp_path, **plain)
    assert "router loss is biased" in capsys.readouterr().out and not made.method.rows.rate
    made = kind.ours(path, tmp_path, router_aux_loss_coef=0.0, **plain)
    assert made.method.biases == () and not made.aux_loss_enabled
    made = kind.ours(path, tmp_path, accept_bias=True, max_steps=8, **plain)
    made.train()
    assert min(logged(made, "prune/kept_share")) < 1 and min(logged(made, "aux_loss")) > 0


def test_processes_that_share_rows_are_refused(tiny_path, tmp_path, monkeypatch):
    for kind in (SFTTrainer, DPPOTrainer):
        monkeypatch.setattr(kind, "get_cp_size", lambda self: 2)
    for make in (sft.ours, lambda *given: trainer(*given, seen=[])):
        with refused(ConfigError, "sequence parallelism"):
            make(tiny_path, tmp_path)


@pytest.mark.parametrize(("kind", "what"), [(sft, "one completion"), (dpo, "one prompt with its answers")])
def test_what_does_not_fit_alone_names_a_setting_that_is_there(kind, what, tiny_path, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    made = kind.ours(tiny_path, tmp_path, per_device_train_batch_size=1)
    made.forwards.check_once()
    monkeypatch.setattr(RowLayout, "forward", full)
    with refused(OutOfMemoryError, "max_length", what):
        made.train()
