"""What trainers on rows say of themselves, and their part of a checkpoint."""

import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

from dppo import __version__
from dppo.methods import RowMethod
from dppo.step import RowSource
from dppo.trl.checkpoints.state import fingerprint, read_row_state, settings_of, write_row_state
from dppo.trl.forwards import TrainingLoop
from dppo.trl.safeguards import NonFiniteGuard


class SavedRows(TrainingLoop):
    """A trainer whose draws and recorded scores are printed, and saved with TRL's checkpoints."""

    args: Any
    accelerator: Any
    lacking: Any
    source: RowSource
    guard: NonFiniteGuard
    _streamed: bool
    _unpruned: str

    @property
    def method(self) -> RowMethod:
        """How rows are dropped."""
        return self.source.method

    def _announce(self) -> None:
        """Print once how rows are drawn, and whether the first epoch can be pruned."""
        scores, lines = self.source.scores, self.method.describe().splitlines()
        if self.method.rows.rate and not scores.seen:
            lines.append(f"none of the {len(scores)} rows has a recorded score: the first epoch is not pruned")
        elif self._unpruned:
            lines.append(self._unpruned)
        elif self.method.rows.rate:
            lines.append(f"{scores.seen} of the {len(scores)} rows have a recorded score; the others are all kept")
        for line in [*lines, str(self.forwards.layout)]:
            self.accelerator.print(f"dppo | {line}")

    def card(self) -> str:
        """Method, biases and paper, for the card of the model."""
        lines = [f"- {line}" for line in self.method.describe().splitlines()]
        head = f"With dppo {__version__}, `{self.method.name}` ({self.method.paper}), on the rows of a dataset:"
        return "\n".join(["## How it was trained: dppo", "", head, "", *lines, ""])

    @cached_property
    def content(self) -> str:
        """A fingerprint of all rows as they are trained on; of a stream none."""
        return "" if self._streamed else fingerprint(self.source.scores.identities)

    def save_extra(self, folder: Path) -> None:
        """Write the recorded scores, the draw of the epoch and the settings that the run depends on."""
        if not self.accelerator.is_main_process:
            return
        folder.mkdir(parents=True, exist_ok=True)
        rows = 0
        if not self._streamed:
            self.source.save(folder)
            rows = len(self.source.scores)
        write_row_state(folder, rows=rows, skipped=self.guard.skipped, settings=settings_of(self))

    def load_extra(self, folder: Path) -> None:
        """Read what ``save_extra`` wrote; a checkpoint of TRL's own trainer has no scores, and the run says so.

        Raises:
            CheckpointError: a file is missing or damaged, or of another dataset.
        """
        lost = any("optimizer" in part for part in self.lacking)
        skipped = read_row_state(folder, settings_of(self), trainer=type(self).__name__, new_optimizer=lost)
        if skipped is None:
            return
        self.guard.skipped = skipped
        if self._streamed:
            return
        known, rows = self.source.load(folder), len(self.source.scores)
        if known < rows:
            warnings.warn(
                f"resumed on another dataset: {known} of its {rows} rows were in the checkpoint's. The others have no "
                "recorded score, and the order of rows is a new one.",
                stacklevel=2,
            )
