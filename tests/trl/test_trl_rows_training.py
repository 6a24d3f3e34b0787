"""Training on drawn rows and pairs: the first epoch, scores, methods as values, checkpoints, margin weights."""

import json
import math
from types import SimpleNamespace
from typing import Any

import dpo_runs as dpo
import pytest
import sft_runs as sft
import torch
from cases import parameters
from datasets import Dataset
from dpo_runs import by_length, pairs
from refusals import refused, warned
from sft_runs import MINE, PACKED, ours, solutions, texts, trained
from tiny_runs import alike, logged, relative_difference
from transformers import AutoModelForCausalLM, TrainingArguments

from dppo.errors import CheckpointError
from dppo.methods import ROW_METHODS
from dppo.objective import margin_weights
from dppo.trl import DPPOSFTConfig, DPPOSFTTrainer
from dppo.trl.checkpoints.files import OUR_STATE
from dppo.trl.rows.pairs import pair_losses

SAVED = dict(save_strategy="steps", save_steps=1)


def test_the_first_epoch_is_whole_and_said_to_be(tiny_path, tmp_path, capsys):
    _, trainer = trained(ours, tiny_path, tmp_path, max_steps=6)
    assert capsys.readouterr().out.count("the first epoch is not pruned") == 1
    kept = logged(trainer, "prune/kept_share")
    assert kept[:3] == [1, 1, 1] and max(kept[3:]) < 1
    trainer.source.save(tmp_path)
    again = ours(tiny_path, tmp_path, recorded_scores=str(tmp_path / "dppo_rows.npz"))
    assert "10 of the 10 rows have a recorded score" in capsys.readouterr().out
    again.train()
    assert logged(again, "prune/kept_share")[0] == 0.5


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


@pytest.mark.parametrize("kind", [sft, dpo])
@pytest.mark.parametrize("name", [*ROW_METHODS, "mine"])
def test_every_method_of_rows_trains_as_a_value_and_is_in_the_checkpoint(kind, name, tiny_path, tmp_path):
    method, saving = ROW_METHODS.get(name, MINE), dict(save_strategy="steps", save_steps=2)
    _, trainer = trained(kind.ours, tiny_path, tmp_path, own={"method": method}, accept_bias=method.over_kept, **saving)
    assert trainer.method == method == trainer.source.method and trainer.state.global_step == 3
    assert (trainer.args.row_prune_rate, trainer.args.row_score) == (method.rows.rate, method.score)
    settings = json.loads((tmp_path / "checkpoint-2" / OUR_STATE).read_text())["settings"]
    assert settings["method"] == f"{name} (own)" and settings["method.score"] == method.score
    if name == "mine":
        with pytest.warns(UserWarning, match=r"resumed with method: 'mine \(own\)' -> 'dppo'"):
            kind.ours(tiny_path, tmp_path / "other").train(str(tmp_path / "checkpoint-2"))


RESUMED = {
    "sft": (sft, {"max_steps": 8}),
    "sft, infobatch": (sft, {"max_steps": 8, "method": "infobatch"}),
    "sft, accumulated": (sft, {"max_steps": 8, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}),
    "sft, streamed": (sft, {"max_steps": 3, "data": solutions().to_iterable_dataset()}),
    "dpo": (dpo, {"max_steps": 7}),
}


@pytest.mark.parametrize("case", parameters(RESUMED, ("sft", "sft, infobatch")))
def test_resumed_is_bit_for_bit_the_run_that_was_not_stopped(case, tiny_path, tmp_path):
    """Runs resume from the middle and the end of the first epoch, and from the middle of a pruned one."""
    kind, options = case
    _, straight = trained(kind.ours, tiny_path, tmp_path / "a", **SAVED | options)
    for stop in [step for step in (2, 3, 5) if step < options["max_steps"]]:
        trainer = kind.ours(tiny_path, tmp_path / f"from {stop}", **SAVED | options)
        trainer.train(resume_from_checkpoint=str(tmp_path / "a" / f"checkpoint-{stop}"))
        assert alike(tmp_path / "a", tmp_path / f"from {stop}"), stop
        assert trainer.state.global_step == straight.state.global_step
        assert (trainer.source.scores.score == straight.source.scores.score).all()


def test_checkpoints_that_are_not_of_this_run(tiny_path, tmp_path):
    """Checkpoints of other rows are refused; those of a part of the rows and of TRL's own trainer give a warning."""
    saving = SAVED | {"max_steps": 8}
    trained(ours, tiny_path, tmp_path / "a", **saving)
    checkpoint = tmp_path / "a" / "checkpoint-5"
    other = solutions(10).map(lambda row: {"completion": row["completion"] + " w1"})
    with warned("dataset"), refused(CheckpointError, "none of the 10"):
        ours(tiny_path, tmp_path / "b", data=other, **saving).train(resume_from_checkpoint=str(checkpoint))
    with warned("10 of its 12"):
        ours(tiny_path, tmp_path / "c", data=solutions(12), **saving).train(resume_from_checkpoint=str(checkpoint))
    assert "dppo_rows.npz" in json.loads((checkpoint / "dppo_files.json").read_text())["files"]
    for name in (OUR_STATE, "dppo_files.json"):
        (checkpoint / name).unlink()
    with warned("not written by"):
        ours(tiny_path, tmp_path / "d", **saving).train(resume_from_checkpoint=str(checkpoint))
    assert not alike(tmp_path / "a", tmp_path / "d")


def test_pairs_of_a_stream_without_a_prompt_are_left_out(tiny_path, tmp_path):
    rows, options = pairs(12).to_list(), {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    clean, bad = (
        {"data": Dataset.from_list(data).to_iterable_dataset()}
        for data in (rows, [*rows[:3], rows[3] | {"prompt": ""}, *rows[3:]])
    )
    wanted, _ = trained(dpo.ours, tiny_path, tmp_path / "clean", **options | clean)
    with warned("no prompt", "dataset.filter"):
        found, _ = trained(dpo.ours, tiny_path, tmp_path / "bad", **options | bad)
    assert len(found) == 3 and max(relative_difference(*steps) for steps in zip(found, wanted, strict=True)) == 0


def test_margin_weights_multiply_the_preference_loss_and_come_from_one_call(tiny_path, tmp_path):
    calls = []

    def counted(prompts, completions, *, source, **others):
        """Lengths of the dataset's texts, without the end that TRL appends."""
        calls.append(len(completions))
        assert not others and source == list(range(10)) and not any("<eos>" in text for text in completions)
        return by_length(prompts, completions)

    data = pairs().add_column("source", list(range(10)))
    margin = torch.tensor(by_length(None, data["chosen"])).double() - torch.tensor(by_length(None, data["rejected"]))
    wanted = margin_weights(margin, centre=float(margin.mean()), scale=2.0)
    options = {"data": data, "own": {"margin_reward": counted}, "margin_scale": 2.0, "row_prune_rate": 0.0}
    weighted, trainer = trained(dpo.ours, tiny_path, tmp_path, **options)
    assert trainer._margin_weight.tolist() == pytest.approx(wanted.tolist()) and calls == [10, 10]
    plain, _ = trained(dpo.ours, tiny_path, tmp_path, row_prune_rate=0.0)
    assert relative_difference(weighted[0], plain[0]) > 0.01


def test_the_loss_of_known_margins():
    """-log sigmoid(0) = log 2, -log sigmoid(0.1 * 10) = log(1 + 1/e) = 0.313262. Slopes: -beta sigmoid(-beta m)."""
    of_trl = {"ld_alpha": None, "f_divergence_type": "reverse_kl", "use_weighting": False, "label_smoothing": 0.0}
    of_trl |= {"loss_types": ["sigmoid"], "loss_weights": [1.0], "beta": 0.1, "_total_train_tokens": 0, "_tp_size": 1}
    trainer: Any = SimpleNamespace(**of_trl, args=SimpleNamespace(gradient_checkpointing_kwargs=None))
    margin = torch.tensor([0.0, 10.0, -10.0])
    logp_BT = torch.stack([margin - 20, torch.full((3,), -20.0)], 1).view(6, 1).requires_grad_()
    mask_BT = torch.ones(6, 1, dtype=torch.long)
    loss, metrics = pair_losses(trainer, logp_BT, mask_BT, ref_P2=torch.full((3, 2), -20.0))
    assert loss.tolist() == pytest.approx([math.log(2), 0.3132617, 1.3132617], abs=1e-6)
    assert metrics["rewards/margins"].tolist() == pytest.approx([0.0, 1.0, -1.0], abs=1e-6)
    (slope,) = torch.autograd.grad(loss.sum(), logp_BT)
    assert slope[::2, 0].tolist() == pytest.approx([-0.05, -0.1 / (1 + math.e), -0.1 / (1 + 1 / math.e)], abs=1e-6)


@pytest.mark.parametrize("layout", ["rows", "padded"])
def test_a_checkpoint_in_float16_trains_under_trls_default_bfloat16(layout, tiny_path, tmp_path, monkeypatch):
    load = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda path: load(path, dtype=torch.float16))
    _, trainer = trained(dpo.ours, tiny_path, tmp_path, bf16=True, layout=layout)
    assert len(logged(trainer, "loss")) == 3 and {p.dtype for p in trainer.model.parameters()} == {torch.float16}


def test_training_arguments_are_made_into_ours(tiny_path, tmp_path):
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], max_steps=1, learning_rate=0.25, hub_token="t")
    trainer = DPPOSFTTrainer(tiny_path, args, train_dataset=solutions())
    assert isinstance(trainer.args, DPPOSFTConfig)
    assert (trainer.args.learning_rate, trainer.args.hub_token, trainer.args.max_steps) == (0.25, "t", 1)
    trainer.train()


def test_seconds_of_a_step_on_rows_have_its_draw_in_them(tiny_path, tmp_path, monkeypatch):
    """On a clock that moves in draws alone: they come before TRL's step, and must not make its rest negative."""
    trainer, seconds = ours(tiny_path, tmp_path, max_steps=2), iter(range(1, 10**6))
    draw, now = trainer.source.draw, [0.0]
    trainer.clock.now = lambda: now[0]

    def timed(*args, **options):
        now[0] += next(seconds)
        return draw(*args, **options)

    monkeypatch.setattr(trainer.source, "draw", timed)
    trainer.train()
    assert [logged(trainer, name) for name in ("time/prune", "time/other")] == [[1.0, 2.0], [0.0, 0.0]]
