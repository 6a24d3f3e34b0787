"""Whole optimizer steps of trainers, measured alike: seconds, phases, passes, tokens, memory, gradient norms.

On a CPU trainers take turns in one process, one optimizer step each, so that a step of one lies seconds from the same
step of every other. On a GPU, where several models do not fit, they run one after another. A run has steps that are not
counted, timed steps, and on a GPU later steps measured by phase: in a timed step nothing waits for the GPU.
"""

import contextlib
import gc
import io
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging as transformers_logging
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.shared import Record, spread_with_ends
from dppo.rng import Purpose, generator
from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.trainer import DPPOTrainer
from dppo.trl.metrics import PhaseClock, wall

PHASES = ("rollout", "prune", "log_probs", "forward_backward", "optimizer")
"""Phases of both trainers. Rewards are part of the rollout here; the rest of a step is ``other``."""
SAME_NORM = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Largest relative difference of gradient norms that counts as the same gradient, by the precision computed in."""
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A trainer and its settings."""

    name: str
    batch_size: int
    """``per_device_train_batch_size``; the rest of a generation is gradient accumulation."""
    pruning: dict[str, Any] | None = None
    """Further fields of ``DPPOConfig``; None for TRL's trainer."""
    exact: bool = False
    """True if its gradient must be TRL's."""

    def trainer(self, completions: int, fields: dict[str, Any], **given: Any) -> GRPOTrainer:
        """The trainer of a step of so many completions, which moves no weight and logs nothing."""
        fields = {
            "per_device_train_batch_size": self.batch_size,
            "gradient_accumulation_steps": completions // self.batch_size,
            "learning_rate": 0.0,
            "shuffle_dataset": False,  # each trainer has an order of its own otherwise
            "report_to": [],
            "save_strategy": "no",
            "logging_strategy": "no",
            "logging_nan_inf_filter": False,  # it would wait for the GPU after each backward pass
            "disable_tqdm": True,
            **fields,
        }
        if self.pruning is None:
            trainer = GRPOTrainer(args=GRPOConfig(**fields), **given)
        else:
            trainer = DPPOTrainer(args=DPPOConfig(**fields | self.pruning), **given)
        trainer.remove_callback(PrinterCallback)
        return trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Optimizer steps of a run: not counted, timed, and by phase; with none by phase, timed ones are."""

    warm_up: int = 2
    timed: int = 3
    phased: int = 1

    @property
    def steps(self) -> int:
        """All steps."""
        return self.warm_up + self.timed + self.phased


@dataclass(slots=True)
class Work:
    """Forward passes of a step and their tokens, padding included: with a gradient, and without one."""

    passes: int = 0
    passes_no_grad: int = 0
    tokens: int = 0
    tokens_no_grad: int = 0


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


@dataclass
class StepWatch(TrainerCallback):
    """Watches a trainer from its construction to the end of ``train``, at the ends of steps."""

    trainer: Any
    stages: Stages
    device: torch.device
    seed: int = 0
    turn: tuple[Baton, int] | None = None
    """The baton and the number of this player, if trainers take turns."""
    seconds: list[float] = field(default_factory=list)
    """Of each timed step."""
    cpu_seconds: list[float] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    """Gradient norm before clipping of each timed step."""
    seen: list[dict[Tokens, list[Tokens]]] = field(default_factory=list)
    """Completions of each prompt of each generation, as token ids."""
    phases: list[dict[str, float]] = field(default_factory=list)
    memory: dict[str, float | None] = field(default_factory=lambda: {"peak_gib": None, "reserved_gib": None})
    """Most memory that tensors took in a timed step, weights and optimizer included, and that torch held."""

    def __post_init__(self) -> None:
        self._work, self._norm, self._before = Work(), torch.zeros(()), dict[str, float]()
        self._clock: PhaseClock = self.trainer.clock if hasattr(self.trainer, "clock") else clock_of_trl(self.trainer)
        self._clock.now = time.perf_counter  # the default waits for the GPU at the ends of each phase
        for model in (self.trainer.model, getattr(self.trainer, "ref_model", None)):
            if model is not None:
                model.register_forward_pre_hook(self._count, with_kwargs=True)
        self._keep_norms(self.trainer.accelerator)
        self._keep_rollouts()
        self.trainer.add_callback(self)

    def begin(self) -> None:
        """Wait for the next turn, if there are turns, and start its clocks."""
        if self.turn is not None:
            self.turn[0].wait(self.turn[1])
        self._work, self._before = Work(), dict(self._clock.total)
        self._start = self._now(), time.process_time()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` before the first step."""
        self.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` after every optimizer step: keep its measurements, and prepare for the next one."""
        seconds, cpu, stages = self._now() - self._start[0], time.process_time() - self._start[1], self.stages
        number = state.global_step - stages.warm_up
        if 0 < number <= stages.timed:
            self.seconds.append(seconds)
            self.cpu_seconds.append(cpu)
            self.work.append(self._work)
            self.norms.append(float(self._norm))
        if number > (0 if stages.phased == 0 else stages.timed):
            taken = {name: total - self._before.get(name, 0.0) for name, total in self._clock.total.items()}
            phases = {name: taken.get(name, 0.0) for name in PHASES}
            phases["rollout"] += taken.get("reward", 0.0)
            self.phases.append(phases | {"other": seconds - sum(phases.values())})
        if self.device.type == "cuda" and number == 0:
            torch.cuda.reset_peak_memory_stats()
        if self.device.type == "cuda" and number == stages.timed:
            peak, held = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            self.memory = {"peak_gib": peak / 2**30, "reserved_gib": held / 2**30}
        if number == stages.timed:
            self._clock.now = wall
        if state.global_step < stages.steps:  # after the last step the turn lasts until train() has returned
            if self.turn is not None:
                self.turn[0].pass_on()
            self.begin()

    def record(self) -> Record:
        """All measurements, flat: seconds with their spread, means of passes and tokens, medians of the phases."""
        means = {name: float(np.mean([getattr(each, name) for each in self.work])) for name in Work.__slots__}
        phases = {f"phase_{name}": float(np.median([each[name] for each in self.phases])) for name in self.phases[0]}
        cpu = {"cpu_median": float(np.median(self.cpu_seconds))}
        return {"unit": "s", **spread_with_ends(self.seconds), **cpu, **self.memory, **means, **phases}

    def _now(self) -> float:
        """Seconds, once the GPU has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _count(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Hook on the models: a pass, and the tokens it is given, but not of a generation. Reads shapes alone."""
        if kwargs.get("use_cache") or kwargs.get("past_key_values") is not None:
            return
        again = "" if torch.is_grad_enabled() else "_no_grad"
        for name, count in (("passes", 1), ("tokens", kwargs["input_ids"].numel())):
            setattr(self._work, name + again, getattr(self._work, name + again) + count)

    def _keep_norms(self, accelerator: Any) -> None:
        """Keep the norm that clipping computes as a tensor: a number would wait for the GPU."""
        clip = accelerator.clip_grad_norm_

        def clipped(*args: Any, **kwargs: Any) -> Any:
            norm = clip(*args, **kwargs)
            self._norm = norm.detach().clone()
            return norm

        accelerator.clip_grad_norm_ = clipped

    def _keep_rollouts(self) -> None:
        """Keep what was generated; generation itself starts from random numbers that follow from seed and step."""
        generate = self.trainer._generate

        def seeded(prompts: list[Any]) -> Any:
            draws = int(generator(self.seed, Purpose.ROLLOUT, self.trainer.state.global_step).integers(2**62))
            with torch.random.fork_rng(devices=[]):  # transformers samples from the global generator
                torch.manual_seed(draws)
                output = generate(prompts)
            seen: dict[Tokens, list[Tokens]] = {}
            for prompt, completion in zip(output[0], output[1], strict=True):
                seen.setdefault(tuple(prompt), []).append(tuple(completion))
            self.seen.append(seen)
            return output

        self.trainer._generate = seeded


class OptimizerPhase(TrainerCallback):
    """Gives TRL's trainer the optimizer phase that ours has."""

    def __init__(self, clock: PhaseClock) -> None:
        self.clock = clock

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` after gradient clipping."""
        self.began = self.clock.now()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` when the weights have moved."""
        self.clock.add("optimizer", self.clock.now() - self.began)


def clock_of_trl(trainer: Any) -> PhaseClock:
    """A clock on a trainer of TRL, with the phases put around its methods from outside."""
    clock = PhaseClock()
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


def take_turns(trainers: Sequence[Any], stages: Stages, *, seed: int) -> list[StepWatch]:
    """Train all on a CPU, one step of each after the other; who comes first changes from round to round."""
    count = len(trainers)
    baton = Baton([(first + turn) % count for first in range(stages.steps) for turn in range(count)])
    watches = [StepWatch(each, stages, torch.device("cpu"), seed, (baton, n)) for n, each in enumerate(trainers)]
    threads = torch.get_num_threads()

    def play(watch: StepWatch) -> None:
        torch.set_num_threads(threads)  # a thread starts with the machine's number
        with baton.stops_all_on_failure():
            baton.wait(watch.turn[1] if watch.turn else 0)
            watch.trainer.train()
            baton.pass_on()

    gc.collect()
    gc.freeze()  # so that collecting one trainer's garbage does not walk through all of transformers
    with ThreadPoolExecutor(count) as pool:
        played = [pool.submit(play, watch) for watch in watches]
    gc.unfreeze()
    failed = [player for player in played if isinstance(player.exception(), Exception)]
    for player in sorted(failed, key=lambda player: isinstance(player.exception(), TurnStopped)):
        player.result()
    return watches


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One contestant's record, and its watch; None if memory ran out."""

    contestant: Contestant
    row: Record
    watch: StepWatch | None


def compared(measured: Sequence[Measured], precision: torch.dtype) -> list[Record]:
    """Records of all contestants: TRL's best over each, the control over each, and checks.

    ``passed`` is False if an exact contestant saw other completions than TRL or has a gradient of another norm; None if
    memory ran out. TRL's best is the one with the lowest median.
    """
    rows: list[Record] = [
        {"contestant": each.contestant.name, "reason": "", "passed": None, **each.row} for each in measured
    ]
    finished = {n: each.watch for n, each in enumerate(measured) if each.watch is not None}
    for n, watch in finished.items():
        rows[n] |= watch.record()
    stock = [n for n in finished if measured[n].contestant.pruning is None]
    controls = [n for n in finished if measured[n].contestant.pruning and measured[n].contestant.exact]
    bases = {"trl": min(stock, key=lambda n: rows[n]["median"], default=None), "control": next(iter(controls), None)}
    for n, watch in finished.items():
        problems, exact = [], measured[n].contestant.exact
        for name, base in bases.items():
            if base is not None:
                ratio = np.divide(finished[base].seconds, watch.seconds)
                rows[n] |= {f"{name}_over_this_{what}": float(f(ratio)) for what, f in SPREAD.items()}
        if stock:
            same = rows[n]["same_completions"] = same_completions(finished[stock[0]], watch)
            ratio = np.divide(watch.norms, finished[stock[0]].norms)
            rows[n] |= {"norm_ratio_lowest": float(ratio.min()), "norm_ratio_highest": float(ratio.max())}
            if exact and not same:
                problems.append("its completions are not TRL's")
            elif exact and np.any(np.abs(ratio - 1) > SAME_NORM[precision]):
                problems.append(f"gradient norms are {ratio.min():.4f} to {ratio.max():.4f} times TRL's")
        if not np.all(np.isfinite(watch.norms)):
            problems.append("a gradient norm is not finite")
        rows[n] |= {"reason": "; ".join(problems), "passed": not problems}
    return rows


SPREAD = {"median": np.median, "lowest": np.min, "highest": np.max}


def same_completions(one: StepWatch, other: StepWatch) -> bool:
    """True if each prompt of the other's timed steps had the same completions in the same step of the first."""
    pairs = [*zip(one.seen, other.seen, strict=True)][one.stages.warm_up :]
    return all(left.get(prompt) == completions for left, right in pairs for prompt, completions in right.items())


COLUMNS = (
    ("step s", "median", 8, ".3f"),
    ("TRL/", "trl_over_this_median", 6, ".2f"),
    ("control/", "control_over_this_median", 9, ".2f"),
    ("GiB", "peak_gib", 6, ".1f"),
    ("passes", "passes", 8, ".1f"),
    ("again", "passes_no_grad", 7, ".1f"),
    ("tokens", "tokens", 9, ",.0f"),
    ("norm/", "norm_ratio_highest", 8, ".3f"),
    *((name, f"phase_{name}", 2 + len(name), ".3f") for name in (*PHASES, "other") if name != "prune"),
)
"""Heading, entry of a record, width and format."""
NOTES = (
    "TRL/, control/: seconds of TRL's best batch size, and of plain GRPO on rows, over these, step by step. passes: "
    "forward passes with a gradient in a step; again: without. norm/: gradient norm over TRL's. From rollout on: "
    "seconds by phase."
)


def print_table(title: str, rows: Sequence[Record]) -> None:
    """One line for each contestant, and below it what failed."""
    print(f"\n{title}\n{'':23}" + "".join(f"{heading:>{width}}" for heading, _, width, _ in COLUMNS))
    for row in (each for each in rows if "median" in each):
        values = ((row.get(key), width, form) for _, key, width, form in COLUMNS)
        cells = (f"{'' if value is None else format(value, form):>{width}}" for value, width, form in values)
        print(f"{row['contestant']:23}" + "".join(cells))
    for row in rows:
        if row["reason"]:
            print(f"{row['contestant']}: {row['reason']}")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Trainers neither print nor warn; messages of our own code stay."""
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
