"""Short runs of the tiny model on rows, supervised where nothing else is said, by TRL's trainer and ours."""

from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from tiny_runs import LOG_ALL, SHORT, WORDS, GradientRecorder, logged, relative_difference
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer
from trl_layout_cases import enlarged, mixture

from dppo.methods import ROW_METHODS
from dppo.step import rows as step_rows
from dppo.trl import DPPOSFTConfig, DPPOSFTTrainer
from dppo.verification.enumerate import every_way


def words(start, count, step=1):
    return " ".join(WORDS[(start + step * j) % 28] for j in range(count))


def solutions(count=10, answers=1):
    """Prompts with completions of different lengths, each prompt as often as it has answers."""
    return Dataset.from_list(
        [
            {"prompt": words(i, 2 + i % 4), "completion": " " + words(3 * i, 1 + (i + 2 * k) % 6, step=5)}
            for i in range(count)
            for k in range(answers)
        ]
    )


def texts(count=10):
    """The same as plain texts, of which every token is trained on."""
    return solutions(count).map(lambda row: {"text": row["prompt"] + row["completion"]}).select_columns(["text"])


PACKED = {"packing": True, "max_length": 16, "per_device_train_batch_size": 2, "data": solutions(20)}
MINE = replace(ROW_METHODS["uniform"], name="mine", rows=replace(ROW_METHODS["uniform"].rows, rate=0.4))
"""A method of one's own."""


def experts():
    """A small mixture of experts with large weights, of which every process makes the same."""
    torch.manual_seed(0)
    return enlarged(mixture())


def made(kind, config, path, folder, *, data=None, callbacks=(), own=None, **options):
    of_rows = {name: value for name, value in SHORT.items() if name not in ("num_generations", "max_completion_length")}
    settings = of_rows | dict(output_dir=str(folder), per_device_train_batch_size=4, max_grad_norm=0.0) | options
    if "model" not in (own := own or {}):
        own = {"model": AutoModelForCausalLM.from_pretrained(path), **own}
    return kind(
        args=config(**settings),
        train_dataset=solutions() if data is None else data,
        processing_class=AutoTokenizer.from_pretrained(path),
        callbacks=list(callbacks),
        **own,
    )


def stock(path, folder, **options):
    return made(SFTTrainer, SFTConfig, path, folder, **options)


def ours(path, folder, **options):
    return made(DPPOSFTTrainer, DPPOSFTConfig, path, folder, **LOG_ALL | options)


def trained(make, path, folder, **options):
    """Gradients of every step, and the trainer."""
    recorder = GradientRecorder()
    trainer = make(path, folder, callbacks=[recorder], **options)
    trainer.train()
    return recorder.steps, trainer


TIMES = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "step_time", "total_flos")
TIMES += ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second")
CANCELS = {"rewards/margins": 1e-5}
"""Differences of log-probabilities of about 25 nats, of which float32 keeps 2e-6 each; one in the runs is 6e-5."""


def compared(us, them, *, but=()):
    """Metrics of TRL's run that ours lacks, and those whose values differ: both values by name."""
    names = {name for row in them.state.log_history for name in row} - {*TIMES, *but}
    return {
        name: (logged(us, name), logged(them, name))
        for name in names
        if logged(us, name) != pytest.approx(logged(them, name), rel=1e-4, abs=CANCELS.get(name, 1e-6), nan_ok=True)
    }


def as_trl(kind, path, folder, *, only=None, **options):
    """Our trainer and TRL's after the same run with nothing dropped: gradients of every step and metrics are equal.

    ``kind`` is the module with ``ours`` and ``stock``; ``only`` has options of ours, which come before those of both.
    """
    options = {"optim": "sgd", "learning_rate": 1e-3, **options}  # Adam makes a whole step of a gradient of rounding
    wanted, them = trained(kind.stock, path, folder / "theirs", **options)
    found, us = trained(kind.ours, path, folder / "ours", **{"row_prune_rate": 0.0, **options, **(only or {})})
    assert len(found) == len(wanted) > 0
    assert max(relative_difference(*pair) for pair in zip(found, wanted, strict=True)) < 1e-5
    assert not (apart := compared(us, them)), apart
    return us, them


def flat(gradient):
    return torch.cat([g.double().flatten() for _, g in sorted(gradient.items())])


class Fixed:
    """A trainer in front of its second epoch, and its gradient of one step for a draw of our choice."""

    def __init__(self, make, path, folder, monkeypatch, *, batches=((1, 4, 7, 2),), **options):
        self.batches = [torch.tensor(each) for each in batches]
        self.trainer = make(path, folder, **options)
        self.trainer.train()
        self.monkeypatch = monkeypatch
        self.trainer.forwards.enter()
        self.trainer.model.train()
        self.trainer.state.global_step = 0  # no schedule is at its end

    def gradient(self, rng):
        trainer = self.trainer
        self.monkeypatch.setattr(step_rows, "step_streams", lambda seed, step: lambda purpose: rng)
        trainer.model.zero_grad()
        trainer.source._epoch = None
        score = trainer.source.scores.score.copy()
        loaded = iter([{"row": each} for each in self.batches])
        calls, _ = trainer.get_batch_samples(loaded, len(self.batches), "cpu")
        for inputs in calls:
            trainer.compute_loss(trainer.model, inputs).backward()
        trainer.source.scores.score[:] = score
        return flat({name: p.grad for name, p in trainer.model.named_parameters()})

    def error(self):
        """Relative bias of the gradient. By the contract, that of all rows of the step is TRL's."""
        ways = list(every_way(self.gradient))
        assert len(ways) > 1 and sum(chance for _, chance in ways) == pytest.approx(1)
        found = sum(chance * gradient for gradient, chance in ways)
        method = self.trainer.method
        self.trainer.source.method = replace(method, rows=method.rows.at_rate(0.0), over_kept=False)
        whole = self.gradient(None)
        return float((found - whole).norm() / whole.norm())
