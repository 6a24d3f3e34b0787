"""Rows that TRL has packed, and streams of rows: its steps where nothing is dropped, and what of them can be drawn."""

import dpo_runs as dpo
import pytest
import torch
from cases import one_in
from datasets import Dataset
from refusals import refused, warned
from sft_runs import OPTIONS, PACKED, as_trl, ours, solutions, stock, texts, trained
from tiny_runs import PADDED_TOO, logged, relative_difference
from transformers import TrainingArguments

from dppo.errors import ConfigError
from dppo.trl import DPPOSFTConfig, DPPOSFTTrainer
from dppo.trl.rows.dpo import _is_whole


@pytest.mark.parametrize("layout", PADDED_TOO)
@pytest.mark.parametrize("options", one_in(2, OPTIONS))
def test_with_nothing_dropped_steps_and_metrics_are_trls(options, layout, tiny_path, tmp_path):
    us, _ = as_trl(stock, ours, tiny_path, tmp_path, only={"layout": layout}, **options)
    if layout == "rows":
        assert sum(logged(us, "rows/tokens")) <= sum(logged(us, "rows/padded_tokens"))


@pytest.mark.parametrize("options", [{}, {**PACKED, "data": texts(12), "max_steps": 20}], ids=["rows", "packed rows"])
def test_the_score_of_a_row_is_the_mean_loss_of_its_texts(options, tiny_path, tmp_path):
    """With a learning rate of 0 nothing moves: each score is that of the model itself."""
    still = {"learning_rate": 0.0, "row_prune_rate": 0.0, "row_score": "loss"}
    _, trainer = trained(ours, tiny_path, tmp_path, **options, **still)
    model = trainer.model.eval()
    for row, score in zip(trainer.train_dataset, trainer.source.scores.score.tolist(), strict=True):
        ids, labels = (torch.tensor(row.get(name, row["input_ids"])) for name in ("input_ids", "labels"))
        lengths, total, count = row.get("seq_lengths", [len(ids)]), 0.0, 0
        for part in zip(ids.to(model.device).split(lengths), labels.to(model.device).split(lengths), strict=True):
            scored = int((part[1][1:] != -100).sum())
            total += model(input_ids=part[0][None], labels=part[1][None]).loss.item() * scored
            count += scored
        assert score == pytest.approx(total / count, rel=1e-4)


def test_streamed_pairs_are_trained_as_trl_does(tiny_path, tmp_path):
    options = {"data": dpo.pairs().to_iterable_dataset(), "gradient_accumulation_steps": 2, "max_length": 6}
    for layout in ("rows", "padded"):
        as_trl(dpo.stock, dpo.ours, tiny_path, tmp_path / layout, only={"layout": layout}, **options)


def test_pairs_of_a_stream_without_a_prompt_are_left_out(tiny_path, tmp_path):
    rows, options = dpo.pairs(12).to_list(), {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    clean = Dataset.from_list(rows).to_iterable_dataset()
    bad = Dataset.from_list([*rows[:3], rows[3] | {"prompt": ""}, *rows[3:]]).to_iterable_dataset()
    wanted, _ = trained(dpo.ours, tiny_path, tmp_path / "clean", data=clean, **options)
    with warned("no prompt", "dataset.filter"):
        found, _ = trained(dpo.ours, tiny_path, tmp_path / "bad", data=bad, **options)
    assert len(found) == len(wanted) == 3
    assert max(relative_difference(*pair) for pair in zip(found, wanted, strict=True)) == 0
    with refused(ConfigError, "pictures", "trl.DPOTrainer"):
        _is_whole({"images": [], "prompt": "?"})


def test_a_stream_is_saved_and_resumed(tiny_path, tmp_path):
    saving = dict(data=solutions().to_iterable_dataset(), save_strategy="steps", save_steps=1, row_prune_rate=0.0)
    straight, _ = trained(ours, tiny_path, tmp_path / "a", **saving)
    resumed = ours(tiny_path, tmp_path / "b", **saving)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert resumed.state.global_step == len(straight) == 3
    assert logged(resumed, "loss")[-1] == logged(resumed, "loss")[2]


def test_rows_of_a_stream_cannot_be_dropped(tiny_path, tmp_path, capsys):
    with refused(ConfigError, "streamed", "row_prune_rate: 0", "streaming=False"):
        ours(tiny_path, tmp_path, data=solutions().to_iterable_dataset(), row_prune_rate=0.5)
    with refused(ConfigError, "streamed", "row_prune_rate: 0"):
        dpo.ours(tiny_path, tmp_path, data=dpo.pairs().to_iterable_dataset(), row_prune_rate=0.5)
    for make, data in ((ours, solutions()), (dpo.ours, dpo.pairs())):
        trainer = make(tiny_path, tmp_path, data=data.to_iterable_dataset())
        assert "a stream has no row to come back to" in capsys.readouterr().out and not trainer.method.rows.rate
    reward = {"margin_reward": dpo.by_length}
    with refused(ConfigError, "margin_reward", "stream"):
        dpo.ours(tiny_path, tmp_path, data=dpo.pairs().to_iterable_dataset(), own=reward)


def test_training_arguments_are_made_into_ours(tiny_path, tmp_path):
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], max_steps=1, learning_rate=0.25, hub_token="t")
    trainer = DPPOSFTTrainer(tiny_path, args, train_dataset=solutions())
    assert isinstance(trainer.args, DPPOSFTConfig)
    assert (trainer.args.learning_rate, trainer.args.hub_token, trainer.args.max_steps) == (0.25, "t", 1)
    trainer.train()
    with refused(ConfigError, "DPPOSFTConfig"):
        DPPOSFTTrainer(tiny_path, {"output_dir": "x"}, train_dataset=solutions())  # pyright: ignore
