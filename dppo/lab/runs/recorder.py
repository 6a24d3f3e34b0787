"""``RunRecorder``: the files that a run leaves behind, for our trainer and for TRL's own; ``runs.folder`` has them.

Totals so far (``total/*``) go into every log. docs/metrics.md has their units.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import TrainerCallback
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.errors import ConfigError, FileError
from dppo.files import write_json
from dppo.lab.files import append_lines, keep_lines
from dppo.lab.runs.folder import METRICS_FILE, PROMPTS_FILE, RUN_FILE, TOTALS, RunFacts
from dppo.lab.runs.records import describe_run, prompt_line
from dppo.lab.runs.watch import StockPhases, is_training, trained_tokens, watch
from dppo.step import StepPlan, StepPrompts
from dppo.trl.grpo.rollouts import GeneratedBatch
from dppo.trl.grpo.trainer import DPPOTrainer
from dppo.trl.metrics import RECORD, wall

COUNTS = tuple(name for name in TOTALS if name != "seconds")
STATE = "dppo_totals"
"""Key of the totals among the callbacks in a checkpoint's trainer state."""


class RunRecorder(TrainerCallback):
    """Records one run. Nothing it does changes what is trained; a full disk ends the record and not the run.

    Texts of completions are recorded by ``log_completions`` of TRL, and prompts of our trainer alone.

    Args:
        folder: where the files go, usually the run's ``output_dir``.
        task: ``model``, ``dataset`` and ``prompts`` for ``run.json``; default: what the trainer knows of them.
        now: the clock that seconds are read from; ``time.process_time`` where other work runs on the machine.
    """

    def __init__(
        self, folder: str | Path, *, task: Mapping[str, Any] | None = None, now: Callable[[], float] = wall
    ) -> None:
        self.journal, self._task, self._now = Journal(folder), task, now
        self._watch = Stopwatch(now)
        self._counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self._trained = torch.zeros((), dtype=torch.int64)
        self._attached: GRPOTrainer | None = None
        self._stock: StockPhases | None = None
        self._run: RunFacts | None = None

    def attach(self, trainer: GRPOTrainer) -> "RunRecorder":
        """Record a run of our trainer or TRL's own, and give back the recorder. All metrics of ours are then logged.

        Call it before ``train`` and before other callbacks are added.
        """
        if self._attached is not None:
            raise ConfigError("a RunRecorder records one trainer. Write RunRecorder(folder).attach(trainer) for each")
        self._attached = trainer
        # First, so that totals are in every log before others read it, and stand before others evaluate.
        trainer.callback_handler.callbacks.insert(0, self)
        phases = {name: partial(self._within, name) for name in ("train", "evaluate", "save")}
        watch(trainer, **phases, generate=self._generate, loss=self._loss)
        if isinstance(trainer, DPPOTrainer):
            trainer.args.log_metrics = "all"  # a report draws more than the main ones
            trainer.clock.now = self._now
            watch(trainer, plan=self._plan)
        else:
            self._stock = StockPhases(trainer, self._now)
        return self

    def paused(self) -> Any:
        """A context in which the run's clock stands still, or a decorator: for work that is not training."""
        return self._watch.paused()

    def totals(self) -> dict[str, float]:
        """``total/seconds`` of training and ``total/*`` counts over all ranks, since the run began."""
        return {TOTALS[name]: value for name, value in {"seconds": self._watch.seconds, **self._counts}.items()}

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Around ``train``, and inside it around what is not training: ``evaluate``, ``save``, ``record``."""
        return {"train": self._on_record, "save": self._with_totals}.get(name, self.paused)()

    def _within(self, phase: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.phase(phase):
            return method(*args, **kwargs)

    def _generate(self, generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        generated = generate(*args, **kwargs)
        if is_training(self._trainer):
            completion_ids, tool_mask = generated[1], generated[2]
            tokens = sum(map(len, completion_ids) if tool_mask is None else map(sum, tool_mask))
            self._count(rollouts=len(completion_ids), rollout_tokens=tokens)
        return generated

    def _loss(self, compute_loss: Callable[..., Tensor], model: Any, inputs: dict[str, Any]) -> Tensor:
        if is_training(self._trainer):
            tokens = trained_tokens(inputs)
            self._trained = self._trained.to(tokens.device) + tokens
            if self._stock is not None:
                self._stock.forward(inputs)
        return compute_loss(model, inputs)

    def _plan(self, plan_of: Callable[..., StepPlan], prompts: StepPrompts, generated: GeneratedBatch) -> StepPlan:
        plan = plan_of(prompts, generated)
        trainer = cast(DPPOTrainer, self._trainer)
        with self.phase("record"), trainer.clock(RECORD):
            if trainer.accelerator.is_main_process:
                self.journal.append(PROMPTS_FILE, [asdict(prompt_line(trainer, plan))])
        return plan

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock at the checkpoint's seconds, and cut off records of later steps."""
        step = int(state.global_step)
        saved: Mapping[str, Any] = ((state.stateful_callbacks or {}).get(STATE) or {}) if step else {}
        if state.is_world_process_zero:
            for name in (METRICS_FILE, PROMPTS_FILE):
                self.journal.cut(name, step or -1)
            self._write_run(updates=int(state.max_steps))
        self._counts = {name: int(saved.get(TOTALS[name]) or 0) for name in COUNTS}
        self._watch.start(float(saved.get(TOTALS["seconds"]) or 0.0))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the tokens that the step trained on, over all processes."""
        self._count(tokens_trained=self._trained)
        self._trained = torch.zeros_like(self._trained)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Put the totals into the record that is being logged, ahead of everyone who reads it, and keep the record."""
        for record in (logs, state.log_history[-1] if state.log_history else None):
            if record is not None:
                record.update(self.totals())
        if state.is_world_process_zero:
            self.journal.append(METRICS_FILE, [{"step": state.global_step, **(logs or {})}])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the clock: what follows is not training."""
        self._watch.stop()

    @property
    def _trainer(self) -> GRPOTrainer:
        if self._attached is None:
            raise ConfigError("this RunRecorder records nothing yet. Call recorder.attach(trainer) before training.")
        return self._attached

    @contextmanager
    def _on_record(self) -> Iterator[None]:
        """Around ``train``: records how it ends."""
        self._run = describe_run(self._trainer, self._task)
        self._write_run()
        try:
            yield
        except BaseException as error:
            self._watch.stop()
            stopped = isinstance(error, KeyboardInterrupt)
            said = None if stopped else ": ".join(filter(None, (type(error).__name__, str(error))))
            self._write_run(status="stopped" if stopped else "failed", error=said, seconds=self._watch.seconds)
            raise
        done = int(self._trainer.state.global_step)  # a callback may have ended it early
        self._write_run(status="finished", error=None, seconds=self._watch.seconds, updates=done)

    def _write_run(self, **news: Any) -> None:
        if self._run is not None:  # a subclass may train past ``train``
            self._run = replace(self._run, **news)
            if self._trainer.accelerator.is_main_process:
                self.journal.write(RUN_FILE, asdict(self._run))

    @contextmanager
    def _with_totals(self) -> Iterator[None]:
        """Around ``_save_checkpoint``: the totals are in TRL's own state, and the clock is at rest."""
        with self.paused():
            cast(dict[str, Any], self._trainer.state.stateful_callbacks)[STATE] = self.totals()
            yield

    def _count(self, **here: Any) -> None:
        """Add counts, summed over all processes, which call this together."""
        accelerator = self._trainer.accelerator
        counts = torch.tensor([int(count) for count in here.values()], device=accelerator.device)
        if accelerator.num_processes > 1:
            counts = cast(Tensor, accelerator.reduce(counts, reduction="sum"))
        for name, count in zip(here, counts.tolist(), strict=True):
            self._counts[name] += count


class Journal:
    """Writes JSON to files in a folder, until a write fails: then it warns once and appends no more.

    Numbers that are not finite become null, and values that JSON does not have become text.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.stopped = False
        """True if a write has failed."""

    def append(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Add one line per record to the file ``name``."""
        if not self.stopped:
            self._try(name, lambda path: append_lines(path, records, default=str))

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        """Replace the file ``name`` in one step. It is tried every time, since it says how a run ended."""
        self._try(name, lambda path: write_json(path, value, default=str))

    def cut(self, name: str, step: int) -> None:
        """Remove every line of a later step than ``step``, and one that was cut off; below 0 all of them."""
        self._try(name, lambda path: keep_lines(path, lambda record: record["step"] <= step))

    def _try(self, name: str, write: Callable[[Path], None]) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write(self.folder / name)
        except (OSError, FileError) as error:
            if not self.stopped:
                self.stopped = True
                warnings.warn(
                    f"cannot write {self.folder / name}: {error}. The record of this run stops here; training goes on.",
                    stacklevel=3,
                )


class Stopwatch:
    """Counts training seconds on the clock ``now``: from ``start`` to ``stop``, without those in ``paused``."""

    def __init__(self, now: Callable[[], float] = wall) -> None:
        self._now, self._zero, self._still = now, 0.0, cast(float | None, 0.0)

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return (self._now() if self._still is None else self._still) - self._zero

    def start(self, seconds: float) -> None:
        """Go on from ``seconds``."""
        self._zero, self._still = self._now() - seconds, None

    def stop(self) -> None:
        """Count no more."""
        self._still = self._now() if self._still is None else self._still

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing within a ``with`` block; pauses may be nested."""
        running = self._still is None
        self.stop()
        try:
            yield
        finally:
            if running:
                self.start(self.seconds)
