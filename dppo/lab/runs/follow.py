"""Progress of a training run for a callback, in place of the bar or lines of transformers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformers import PrinterCallback, TrainerCallback
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.utils import logging
from trl.trainer.grpo_trainer import GRPOTrainer

Progress = Callable[[float, float, Mapping[str, float]], None]
"""Called with optimizer steps done, of how many, and the figures logged last."""


class Follow(TrainerCallback):
    """Calls ``progress`` after every step and at every log; after the last step once its figures are there."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._figures: dict[str, float] = {}

    @classmethod
    def instead(cls, trainer: GRPOTrainer, progress: Progress) -> None:
        """Replace the bar or the printed logs of transformers; all other callbacks stay, as those of ``report_to``."""
        for printer in (PrinterCallback, DEFAULT_PROGRESS_CALLBACK):
            trainer.remove_callback(printer)
        trainer.add_callback(cls(progress))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step < state.max_steps:
            self.on_train_end(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._progress(state.global_step, state.max_steps, dict(self._figures))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self._figures |= {name: value for name, value in (logs or {}).items() if isinstance(value, (int, float))}
        if state.global_step:
            self.on_step_end(args, state, control)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """A context in which transformers draws no bars for loading and saving models."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
