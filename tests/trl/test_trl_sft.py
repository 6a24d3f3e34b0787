"""Supervised fine-tuning on drawn rows: TRL's gradient where nothing is dropped, and on average where rows are."""

import json

import pytest
import torch
from conftest_trl import relative_difference
from datasets import Dataset
from refusals import refused, warned
from safetensors.torch import load_file
from sft_runs import Fixed, made, ours, solutions, stock, texts, trained
from trl import SFTConfig

from dppo.errors import CheckpointError, ConfigError, DataError
from dppo.trl import DPPOSFTConfig, DPPOSFTTrainer

CONTRACT = {
    "rows": {},
    "packed": {"layout": "packed"},
    "padded": {"layout": "padded"},
    "accumulated": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
    "small rows": {"max_tokens_per_row": 12},
    "dft": {"loss_type": "dft"},
    "in order": {"train_sampling_strategy": "sequential"},
    "prompts too": {"completion_only_loss": False},
    "truncated": {"max_length": 6},
    "checkpointing": {"gradient_checkpointing": True},
}


@pytest.mark.parametrize("options", CONTRACT.values(), ids=CONTRACT)
def test_with_nothing_pruned_loss_and_gradient_are_trls(options, tiny_path, tmp_path):
    """Three steps of 4, 4 and 2 of ten rows, on the rows that TRL takes in the order that TRL takes them."""
    own = {name: options[name] for name in ("layout", "max_tokens_per_row") if name in options}
    shared = {name: value for name, value in options.items() if name not in own}
    theirs, them = trained(stock, tiny_path, tmp_path, **shared)
    mine, us = trained(ours, tiny_path, tmp_path, row_prune_rate=0.0, **shared, **own)
    assert len(mine) == len(theirs) == 3
    assert max(relative_difference(a, b) for a, b in zip(mine, theirs, strict=True)) < 1e-5
    losses = [[row["loss"] for row in t.state.log_history if "loss" in row] for t in (us, them)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_plain_texts_and_shared_prompts_are_trained_as_trl_does(tiny_path, tmp_path):
    for number, data in enumerate((texts(), solutions(4, answers=3))):
        theirs, _ = trained(stock, tiny_path, tmp_path / f"{number}", data=data)
        mine, us = trained(ours, tiny_path, tmp_path / f"{number}", data=data, row_prune_rate=0.0)
        assert max(relative_difference(a, b) for a, b in zip(mine, theirs, strict=True)) < 1e-5
    logged = [row for row in us.state.log_history if "rows/tokens" in row]
    shared = us.source.scores.tokens.sum() - 12 - sum(row["rows/tokens"] for row in logged)  # last tokens are left out
    assert shared > 0, "prompts of several answers are forwarded once"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "infobatch"},
        {"row_score": "loss", "row_prune_rate": 0.3},
        {"batches": ((1, 4, 7), (2,)), "row_prune_rate": 0.6},
    ],
    ids=["norm", "infobatch", "loss", "unequal micro-batches"],
)
def test_the_expected_gradient_of_a_step_is_that_of_all_its_rows(options, tiny_path, tmp_path, monkeypatch):
    """Through trainer, draw, rows and loss: every draw in turn, with its chance."""
    assert Fixed(ours, tiny_path, tmp_path, monkeypatch, **options).error() < 1e-5


def test_a_mean_over_what_is_kept_is_caught(tiny_path, tmp_path, monkeypatch):
    options = dict(method="infobatch_kept", accept_bias=True)
    assert Fixed(ours, tiny_path, tmp_path, monkeypatch, **options).error() > 0.05


def test_the_first_epoch_is_whole_and_said_to_be(tiny_path, tmp_path, capsys):
    _, trainer = trained(ours, tiny_path, tmp_path, max_steps=6)
    out = capsys.readouterr().out
    assert out.count("none of the 10 rows has a recorded score: the first epoch is not pruned") == 1
    kept = [row["prune/kept_share"] for row in trainer.state.log_history if "prune/kept_share" in row]
    assert kept[:3] == [1, 1, 1] and max(kept[3:]) < 1
    trainer.source.save(tmp_path)
    again = ours(tiny_path, tmp_path, recorded_scores=str(tmp_path / "dppo_rows.npz"))
    assert "10 of the 10 rows have a recorded score" in capsys.readouterr().out
    again.train()
    assert next(row["prune/kept_share"] for row in again.state.log_history if "prune/kept_share" in row) == 0.5


def test_scores_are_those_of_the_last_visit(tiny_path, tmp_path):
    """With a learning rate of 0 nothing moves: every score is that of the model itself."""
    _, trainer = trained(ours, tiny_path, tmp_path, learning_rate=0.0, row_score="loss")
    rows, model = trainer.train_dataset, trainer.model.eval()
    for place, score in enumerate(trainer.source.scores.score.tolist()):
        ids, labels = torch.tensor([rows[place]["input_ids"]]), torch.tensor([rows[place]["labels"]])
        assert score == pytest.approx(model(input_ids=ids, labels=labels).loss.item(), rel=1e-4)


RESUMED = {
    "plain": {},
    "infobatch": {"method": "infobatch"},
    "accumulated": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
}


@pytest.mark.parametrize("options", RESUMED.values(), ids=RESUMED)
def test_resumed_is_bit_for_bit_the_run_that_was_not_stopped(options, tiny_path, tmp_path):
    """From the middle of the first epoch, its end, and the middle of a pruned one."""
    saving = dict(max_steps=8, save_strategy="steps", save_steps=1, **options)
    _, straight = trained(ours, tiny_path, tmp_path / "a", **saving)
    wanted = load_file(tmp_path / "a" / "checkpoint-8" / "model.safetensors")
    for stop in (2, 3, 5):
        trainer = ours(tiny_path, tmp_path / f"from {stop}", **saving)
        trainer.train(resume_from_checkpoint=str(tmp_path / "a" / f"checkpoint-{stop}"))
        found = load_file(tmp_path / f"from {stop}" / "checkpoint-8" / "model.safetensors")
        assert all(torch.equal(found[name], wanted[name]) for name in wanted), stop
        assert (trainer.source.scores.score == straight.source.scores.score).all()


def test_a_run_that_forgets_its_scores_is_another_and_says_so(tiny_path, tmp_path):
    saving = dict(max_steps=8, save_strategy="steps", save_steps=1)
    trained(ours, tiny_path, tmp_path / "a", **saving)
    checkpoint = tmp_path / "a" / "checkpoint-5"
    (checkpoint / "dppo_state.json").unlink()
    (checkpoint / "dppo_files.json").unlink()
    trainer = ours(tiny_path, tmp_path / "b", **saving)
    with pytest.warns(UserWarning, match="not written by"):
        trainer.train(resume_from_checkpoint=str(checkpoint))
    wanted, found = (load_file(tmp_path / folder / "checkpoint-8" / "model.safetensors") for folder in ("a", "b"))
    assert any(not torch.equal(found[name], wanted[name]) for name in wanted)


def test_checkpoints_that_do_not_belong_are_refused(tiny_path, tmp_path):
    saving = dict(max_steps=2, save_strategy="steps", save_steps=1)
    trained(ours, tiny_path, tmp_path / "a", **saving)
    checkpoint = str(tmp_path / "a" / "checkpoint-1")
    other = solutions(10).map(lambda row: {"completion": row["completion"] + " w1"})
    with warned("dataset"), refused(CheckpointError, "among the 10"):
        ours(tiny_path, tmp_path / "b", data=other, **saving).train(resume_from_checkpoint=checkpoint)
    with pytest.warns(UserWarning, match=r"row_prune_rate: None -> 0\.3"):
        ours(tiny_path, tmp_path / "c", row_prune_rate=0.3, **saving).train(resume_from_checkpoint=checkpoint)
    with pytest.warns(UserWarning, match=r"0\.01 -> 0\.5; ignored"):
        ours(tiny_path, tmp_path / "d", learning_rate=0.5, **saving).train(resume_from_checkpoint=checkpoint)
    with pytest.warns(UserWarning, match="10 of its 12"):
        ours(tiny_path, tmp_path / "e", data=solutions(12), **saving).train(resume_from_checkpoint=checkpoint)
    assert "dppo_rows.npz" in json.loads((tmp_path / "a/checkpoint-1/dppo_files.json").read_text())["files"]


def test_data_that_cannot_be_trained_on_is_refused(tiny_path, tmp_path):
    empty = Dataset.from_dict({"prompt": [], "completion": []})
    with refused(DataError, "0 rows"):
        ours(tiny_path, tmp_path, data=empty)
    masked = Dataset.from_dict({"input_ids": [[3, 4, 5], [3, 4], [6]], "labels": [[-100, 4, 5], [3, -100], [6]]})
    with refused(DataError, "2 of 3", "1, 2", "filter"):
        ours(tiny_path, tmp_path, data=masked, max_length=None)
    with refused(CheckpointError, "recorded scores"):
        ours(tiny_path, tmp_path, recorded_scores=str(tmp_path / "nowhere.npz"))
    with refused(ConfigError, "data_collator", "compute_loss_func"):
        DPPOSFTTrainer(tiny_path, DPPOSFTConfig(str(tmp_path), use_cpu=True), lambda rows: rows, solutions())
    assert isinstance(made(DPPOSFTTrainer, SFTConfig, tiny_path, tmp_path).args, DPPOSFTConfig), "made into ours"
