"""Supervised fine-tuning on drawn rows: TRL's gradient where nothing is dropped, and on average where rows are."""

import json
import re

import pytest
from datasets import Dataset
from refusals import refused, warned
from sft_runs import as_trl, ours, solutions, stock, texts, trained
from tiny_runs import alike, logged

from dppo.errors import CheckpointError, ConfigError, DataError
from dppo.trl import DPPOSFTConfig, DPPOSFTTrainer


def test_plain_texts_and_shared_prompts_are_trained_as_trl_does(tiny_path, tmp_path):
    for number, data in enumerate((texts(), solutions(4, answers=3))):
        us, _ = as_trl(stock, ours, tiny_path, tmp_path / f"{number}", data=data)
    shared = us.source.scores.tokens.sum() - 12 - sum(logged(us, "rows/tokens"))  # last tokens are left out
    assert shared > 0, "prompts of several answers are forwarded once"


def test_the_first_epoch_is_whole_and_said_to_be(tiny_path, tmp_path, capsys):
    _, trainer = trained(ours, tiny_path, tmp_path, max_steps=6)
    out = capsys.readouterr().out
    assert out.count("the first epoch is not pruned") == 1
    kept = logged(trainer, "prune/kept_share")
    assert kept[:3] == [1, 1, 1] and max(kept[3:]) < 1
    trainer.source.save(tmp_path)
    again = ours(tiny_path, tmp_path, recorded_scores=str(tmp_path / "dppo_rows.npz"))
    assert "10 of the 10 rows have a recorded score" in capsys.readouterr().out
    again.train()
    assert logged(again, "prune/kept_share")[0] == 0.5


def test_a_run_that_forgets_its_scores_is_another_and_says_so(tiny_path, tmp_path):
    saving = dict(max_steps=8, save_strategy="steps", save_steps=1)
    trained(ours, tiny_path, tmp_path / "a", **saving)
    checkpoint = tmp_path / "a" / "checkpoint-5"
    (checkpoint / "dppo_state.json").unlink()
    (checkpoint / "dppo_files.json").unlink()
    trainer = ours(tiny_path, tmp_path / "b", **saving)
    with pytest.warns(UserWarning, match="not written by"):
        trainer.train(resume_from_checkpoint=str(checkpoint))
    assert not alike(tmp_path / "a", tmp_path / "b")


def test_checkpoints_that_do_not_belong_are_refused(tiny_path, tmp_path):
    saving = dict(max_steps=2, save_strategy="steps", save_steps=1)
    trained(ours, tiny_path, tmp_path / "a", **saving)
    checkpoint = str(tmp_path / "a" / "checkpoint-1")
    other = solutions(10).map(lambda row: {"completion": row["completion"] + " w1"})
    with warned("dataset"), refused(CheckpointError, "none of the 10"):
        ours(tiny_path, tmp_path / "b", data=other, **saving).train(resume_from_checkpoint=checkpoint)
    with warned("10 of its 12"):
        ours(tiny_path, tmp_path / "c", data=solutions(12), **saving).train(resume_from_checkpoint=checkpoint)
    assert "dppo_rows.npz" in json.loads((tmp_path / "a/checkpoint-1/dppo_files.json").read_text())["files"]


def test_data_that_cannot_be_trained_on_is_refused(tiny_path, tmp_path):
    empty = Dataset.from_dict({"prompt": [], "completion": []})
    with refused(DataError, "0 rows"):
        ours(tiny_path, tmp_path, data=empty)
    masked = Dataset.from_dict({"input_ids": [[3, 4, 5], [3, 4], [6]], "labels": [[-100, 4, 5], [3, -100], [6]]})
    with refused(DataError, "2 of 3", "1, 2", "filter") as found:
        ours(tiny_path, tmp_path, data=masked, max_length=None)
    advice = re.search(r"dataset\.filter\((lambda row: .*)\)\.", str(found.value))[1]
    assert len(masked.filter(eval(advice))) == 1
    some = Dataset.from_dict({"text": ["w1 w2", "", "w3 w4"]})
    with refused(DataError, "1 of 3", "dataset.filter(lambda row: row['text'])"):
        ours(tiny_path, tmp_path, data=some)
    with refused(CheckpointError, "recorded scores"):
        ours(tiny_path, tmp_path, recorded_scores=str(tmp_path / "nowhere.npz"))
    with refused(ConfigError, "data_collator", "compute_loss_func"):
        DPPOSFTTrainer(tiny_path, DPPOSFTConfig(str(tmp_path), use_cpu=True), lambda rows: rows, solutions())
