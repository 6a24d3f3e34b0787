"""The policy of the embedded task, warmed up and saved: a start for runs without a download."""

import shutil
from collections.abc import Callable
from pathlib import Path

from dppo.environment import one_thread
from dppo.errors import ConfigError
from dppo.lab.demo.task import FULL, ArithmeticTask
from dppo.lab.demo.warmup import warm_up
from dppo.verification.tiny_model import build_model
from dppo.verification.tiny_tokenizer import build_tokenizer

SCRATCH = "scratch:"
"""Prefix of a ``model_name_or_path`` for one of these policies, such as ``scratch:embedded``."""

OnStep = Callable[[float, float], None]
"""Called after each step with the share of the warm-up done, in [0, 1], and the loss in nats per completion token."""


def prepare_embedded(
    folder: Path, *, seed: int, task: ArithmeticTask = FULL, steps: int | None = None, on_step: OnStep | None = None
) -> None:
    """Make ``folder`` with the policy of the embedded task, warmed up on its imperfect teacher, and its tokenizer.

    The folder appears when it is complete. By default the warm-up takes the task's own number of steps.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists already. Remove it to make the model anew: rm -r {folder}")
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        model, tokenizer = build_model(seed), build_tokenizer()
        count = task.warm_up_steps if steps is None else steps
        told = None if on_step is None else lambda step, loss: on_step(step / count, loss)
        with one_thread(model):
            warm_up(model, tokenizer, task, seed=seed, steps=count, on_step=told)
        model.model.norm.weight.data.mul_(task.sureness)  # logits are linear in it
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
