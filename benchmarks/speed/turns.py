"""Trainers that take turns, one optimizer step each, in one process, with a clock on every one of them.

Noise of the machine then hits all alike: a step of one trainer lies seconds from the same step of every other.
"""

import contextlib
import gc
import io
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.utils import logging as transformers_logging
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.rng import Purpose, generator
from dppo.trl.metrics import PhaseClock, wall

PHASES = (
    "rollout",
    "reward",
    "prune",
    "log_probs",
    "bookkeeping",
    "forward_backward",
    "optimizer",
    "other",
)
"""``forward_backward`` is the model alone. ``bookkeeping`` is the rest of ``training_step``: laying out slices, micro-
batches or rows, the loss once the log-probabilities are there, metrics. ``other`` is what lies around it: loading data,
clipping, logging."""

Tokens = tuple[int, ...]
Seen = dict[Tokens, tuple[Tokens, ...]]
"""Completions of each prompt of a step, as token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step of one trainer."""

    seconds: float
    """Wall-clock time, from one end of step to the next."""
    cpu_seconds: float
    """Processor time of the process, in which only one trainer is awake."""
    phases: dict[str, float]
    """Seconds by phase, ``PHASES``."""
    tokens: int
    """Token positions that went through the model with a gradient, padding included."""
    scored: int
    """Tokens among them that carry loss."""
    seen: Seen

    @property
    def outside(self) -> float:
        """Seconds that were not the model's forward and backward."""
        return self.seconds - self.phases["forward_backward"]


class StepClock(PhaseClock):
    """The clock of a ``DPPOTrainer``, or of TRL's trainer, with what one step took kept for whoever reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[str, float] = {}
        self.tokens = self.scored = 0
        self.generated: tuple[list[list[int]], list[list[int]]] = [], []

    def flush(self) -> dict[str, float]:
        """As ``PhaseClock.flush``; ``taken`` holds the seconds of all phases, also of those only known here."""
        self.taken = dict(self._seconds)
        return super().flush()

    def phases(self, seconds: float) -> dict[str, float]:
        """``PHASES`` of the step that was flushed last, which sum to ``seconds``.

        A trainer's own ``forward_backward`` is all of ``training_step`` that no other phase claims. Here the model's
        share of it is timed apart, and what is left is bookkeeping, as is any phase not listed.
        """
        taken = self.taken.copy()
        split = {phase: taken.pop(phase, 0.0) for phase in PHASES if phase not in ("bookkeeping", "forward_backward")}
        split["forward_backward"] = taken.pop("model", 0.0)
        split["bookkeeping"] = sum(taken.values())
        split["other"] = seconds - sum(split.values())
        return split


class TurnStopped(RuntimeError):
    """Another trainer failed, so this one's turn will not come."""


class Baton:
    """Lets one of several threads run at a time."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order, self._at, self._stopped = [*order, -1], 0, False
        self._changed = threading.Condition()

    def wait(self, player: int) -> None:
        """Return when it is this player's turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._order[self._at] == player)
            if self._stopped:
                raise TurnStopped

    def pass_on(self) -> None:
        """End the current turn."""
        with self._changed:
            self._at += 1
            self._changed.notify_all()

    @contextlib.contextmanager
    def stops_all_on_failure(self) -> Iterator[None]:
        """Wake all players with ``TurnStopped`` if the block fails."""
        try:
            yield
        except BaseException:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            raise


class Watch(TrainerCallback):
    """Ends a turn with every optimizer step and keeps what the step took."""

    def __init__(self, clock: StepClock, baton: Baton, player: int) -> None:
        self.clock, self.baton, self.player = clock, baton, player
        self.steps: list[Step] = []

    def begin(self) -> None:
        """Wait for the next turn and start its clock."""
        self.baton.wait(self.player)
        self._start = wall(), time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` after every optimizer step."""
        seconds, cpu = wall() - self._start[0], time.process_time() - self._start[1]
        clock = self.clock
        phases = clock.phases(seconds)
        seen = _completions(*clock.generated)
        if not clock.tokens:
            raise RuntimeError(
                f"step {state.global_step}: no forward with labels went through the model, so its time is unknown. "
                "Adapt _watch_model to how the trainer calls it"
            )
        counts = {"tokens": clock.tokens, "scored": clock.scored}
        self.steps.append(Step(seconds=seconds, cpu_seconds=cpu, phases=phases, seen=seen, **counts))
        clock.tokens = clock.scored = 0
        if state.global_step < state.max_steps:  # after the last step the turn lasts until train() has returned
            self.baton.pass_on()
            self.begin()


class OptimizerPhase(TrainerCallback):
    """Gives TRL's trainer the optimizer phase, and the end of a step's books, that ours has."""

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` after gradient clipping."""
        self.clock.start("optimizer")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` when the weights have moved."""
        self.clock.stop("optimizer")
        self.clock.flush()


def clock_of_trl(trainer: GRPOTrainer) -> StepClock:
    """A clock on a trainer of TRL, with the phases put around its methods from outside."""
    clock = StepClock()
    phases = {
        "_generate_and_score_completions": "rollout",
        "_calculate_rewards": "reward",
        "training_step": "forward_backward",
    }
    for name, phase in phases.items():
        setattr(trainer, name, clock(phase)(getattr(trainer, name)))
    log_probs = trainer._get_per_token_logps_and_entropies

    def timed(*args: Any, **kwargs: Any) -> Any:
        """Of the old or the reference policy; the one that is trained on is part of the loss."""
        with contextlib.nullcontext() if torch.is_grad_enabled() else clock("log_probs"):
            return log_probs(*args, **kwargs)

    trainer._get_per_token_logps_and_entropies = timed
    trainer.add_callback(OptimizerPhase(clock))
    return clock


def clock_of_ours(trainer: Any) -> StepClock:
    """The clock of a ``DPPOTrainer``, which times its own phases."""
    trainer.clock = StepClock()
    return trainer.clock


def _watch_model(trainer: GRPOTrainer, clock: StepClock) -> None:
    """Time the model alone, and count the tokens it is given, wherever a gradient is wanted."""
    model: Any = trainer.model
    timed: list[Any] = []

    def is_trained(kwargs: dict[str, Any]) -> bool:
        """Not a generation, nor a check."""
        return torch.is_grad_enabled() and kwargs.get("shift_labels", kwargs.get("labels")) is not None

    def before(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if is_trained(kwargs):
            clock.tokens += kwargs["input_ids"].numel()
            clock.scored += int((kwargs.get("shift_labels", kwargs.get("labels")) != -100).sum())
            timed.append(clock("model"))
            timed[-1].__enter__()

    def after(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if is_trained(kwargs):
            timed.pop().__exit__(None, None, None)

    # Hooks, since trainers put a head of theirs in the place of ``forward`` when they begin.
    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, with_kwargs=True)
    setattr(trainer.accelerator, "backward", clock("model")(trainer.accelerator.backward))  # noqa: B010


def _watch_rollouts(trainer: GRPOTrainer, clock: StepClock, seed: int) -> None:
    """Keep what was generated; generation itself starts from random numbers that follow from the seed and the step."""
    generate = trainer._generate

    def seeded(prompts: list[Any]) -> Any:
        draws = int(generator(seed, Purpose.ROLLOUT, trainer.state.global_step).integers(2**62))
        with torch.random.fork_rng(devices=[]):  # transformers samples from the global generator: leave no trace there
            torch.manual_seed(draws)
            output = generate(prompts)
        clock.generated = output[0], output[1]
        return output

    trainer._generate = seeded


def _completions(prompts: list[list[int]], completions: list[list[int]]) -> Seen:
    """Completions by prompt."""
    seen: Seen = {}
    for prompt, completion in zip(prompts, completions, strict=True):
        seen[tuple(prompt)] = (*seen.get(tuple(prompt), ()), tuple(completion))
    return seen


def take_turns(trainers: Sequence[GRPOTrainer], clocks: Sequence[StepClock], *, seed: int) -> list[list[Step]]:
    """Train all trainers to their end, one step of each after the other, and give back the steps of each.

    Which trainer comes first changes from round to round.
    """
    count, steps = len(trainers), trainers[0].args.max_steps
    baton = Baton([(first + turn) % count for first in range(steps) for turn in range(count)])
    watches = []
    for player, (trainer, clock) in enumerate(zip(trainers, clocks, strict=True)):
        _watch_model(trainer, clock)
        _watch_rollouts(trainer, clock, seed)
        watches.append(Watch(clock, baton, player))
        trainer.add_callback(watches[-1])
    threads = torch.get_num_threads()

    def play(watch: Watch, trainer: GRPOTrainer) -> None:
        torch.set_num_threads(threads)  # a thread starts with the machine's number
        with baton.stops_all_on_failure():
            watch.begin()
            trainer.train()
            baton.pass_on()

    gc.collect()
    gc.freeze()  # so that collecting one trainer's garbage does not walk through all of transformers
    with ThreadPoolExecutor(count) as pool:
        played = [pool.submit(play, *pair) for pair in zip(watches, trainers, strict=True)]
    gc.unfreeze()
    failed = [player for player in played if isinstance(player.exception(), Exception)]
    for player in sorted(failed, key=lambda player: isinstance(player.exception(), TurnStopped)):
        player.result()
    return [watch.steps for watch in watches]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Trainers neither print nor warn, except of what our own code has to say."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            warnings.filterwarnings("default", module=r"dppo\.")  # such as a fallback to padding
            yield
    finally:
        transformers_logging.enable_progress_bar()
        transformers_logging.set_verbosity(level)
