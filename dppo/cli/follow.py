"""A training run on a board, in place of what transformers shows."""

from typing import Any

from transformers import PrinterCallback, TrainerCallback
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.cli.progress import Board


class Follow(TrainerCallback):
    """Shows a training run on a board, in place of the bar or the printed logs of transformers.

    Args:
        board: where to.
        name: what the run is called there.
    """

    def __init__(self, board: Board, name: str = "train") -> None:
        self._board, self._name = board, name
        self._figures: dict[str, float] = {}

    @classmethod
    def instead(cls, trainer: GRPOTrainer, board: Board, name: str = "train") -> None:
        """Put it in place of what transformers shows; every other callback stays, ``report_to`` included."""
        for printer in (PrinterCallback, DEFAULT_PROGRESS_CALLBACK):
            trainer.remove_callback(printer)
        trainer.add_callback(cls(board, name))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` after every optimizer step."""
        self._board.update(self._name, state.global_step, state.max_steps, self._figures)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Called by ``Trainer`` with each record of figures."""
        self._figures |= {name: value for name, value in (logs or {}).items() if isinstance(value, (int, float))}
        if state.global_step:
            self._board.update(self._name, state.global_step, state.max_steps, self._figures)
