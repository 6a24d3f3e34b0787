"""Methods trained side by side from one warm start, with the same seconds each."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from answer_judge.statistics import normal_interval
from dppo.methods import METHODS, Method
from dppo.pruning import COMPLETION_AUTO, Pruning, advantage_with_confidence
from dppo.rng import Purpose, torch_generator
from dppo_lab.demo.evaluate import accuracy
from dppo_lab.demo.loop import Loop, StepRecord, everything
from dppo_lab.demo.task import Split

RISE_STEPS, LAST_RATE = 5, 0.1
"""Steps of linear warm-up of the learning rate, and the share of it at the end of the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceSetting:
    """The setting of a race."""

    steps: int = 60
    """Optimizer steps of the first method; their seconds are the budget of the others."""
    evaluations: int = 6
    """Evaluations after the one at the start, at equal shares of the budget."""
    samples: int = 4
    """Completions per held-out problem in each evaluation."""
    learning_rate: float = 2e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class RacePoint:
    """A policy after some training."""

    seconds: float
    """Training seconds so far; evaluation does not count."""
    step: int
    accuracy: float
    low: float
    high: float


@dataclass(slots=True)
class Runner:
    """One method in a race: its loop, what it has used, and what it has reached."""

    name: str
    loop: Loop
    seconds: float = 0.0
    """Of all steps."""
    steps: list[StepRecord] = field(default_factory=list)
    curve: list[RacePoint] = field(default_factory=list)
    equal_updates: RacePoint | None = None
    """The policy after as many optimizer steps as the first method takes."""

    def take_step(self, share: float, learning_rate: float) -> None:
        """One optimizer step, with the learning rate of this share of the budget."""
        rise = min(1.0, (self.loop.steps + 1) / RISE_STEPS)
        self.steps.append(self.loop.step(learning_rate * rise * (1 - (1 - LAST_RATE) * share), share))
        self.seconds += sum(self.steps[-1].seconds.values())

    def total(self, name: str) -> int:
        """The sum of a field of ``StepRecord`` over all steps."""
        return sum(getattr(step, name) for step in self.steps)

    def measure(self, evaluate: Callable[[Qwen3ForCausalLM], Tensor]) -> RacePoint:
        """The policy's accuracy now."""
        found = normal_interval(evaluate(self.loop.model).double().mean(1).numpy())
        return RacePoint(
            seconds=self.seconds, step=self.loop.steps, accuracy=found.value, low=found.low, high=found.high
        )

    def record(self) -> dict:
        """Everything as JSON values."""
        return {
            "accuracy_start": self.curve[0].accuracy,
            "accuracy_end": self.curve[-1].accuracy,
            "wall_seconds": self.seconds,
            "steps": self.loop.steps,
            **{name: self.total(name) for name in ("rollouts", "completions_trained", "tokens_trained")},
            "largest_weight": max(step.largest_weight for step in self.steps),
            "zero_signal_share": float(np.mean([step.zero_signal for step in self.steps])),
            "seconds_by_phase": {p: sum(step.seconds[p] for step in self.steps) for p in self.steps[0].seconds},
            "curve": [asdict(point) for point in self.curve],
            "equal_updates": None if self.equal_updates is None else asdict(self.equal_updates),
        }


Contestant = tuple[str, Method, Callable[[Tensor], Tensor] | None]
"""Name, method, and which completions are worth a forward pass (None: ``method.live``)."""


def contestants() -> list[Contestant]:
    """Plain GRPO, which trains on everything it rolls out, and DPPO as ``DPPOConfig()`` has it.

    Completions are drawn at the rate that pays in each step, by confidence, since the decoder gives log-probabilities.
    """
    auto = COMPLETION_AUTO
    drawn = Pruning(rate=auto.largest, floor=1 - auto.largest, auto=auto, score=advantage_with_confidence)
    return [("grpo", METHODS["grpo"], everything), ("dppo", replace(METHODS["dppo"], completions=drawn), None)]


def race(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    split: Split,
    methods: Sequence[Contestant],
    setting: RaceSetting,
    *,
    seed: int,
    on_turn: Callable[[Runner, float], None] | None = None,
) -> list[Runner]:
    """Train each method from a copy of ``model``, in turns, step by step, so noise of the machine affects all alike.

    The first method takes ``setting.steps`` steps. After each of them every other method takes steps until it has used
    as many seconds. The learning rate falls over the budget, the same for all. ``on_turn`` is called after every turn
    with the method and the share of the budget used.
    """
    runners = [
        Runner(name, Loop(copy.deepcopy(model), tokenizer, split.train, method, seed=seed, live=live))
        for name, method, live in methods
    ]

    def evaluate(policy: Qwen3ForCausalLM) -> Tensor:
        rng = torch_generator(seed, Purpose.EVALUATION)  # the same draws every time: differences are the policy's
        return accuracy(policy, tokenizer, split.held_out, setting.samples, rng)

    start = runners[0].measure(evaluate)
    for runner in runners:
        runner.curve.append(start)
    marks = {round(setting.steps * (i + 1) / setting.evaluations) for i in range(setting.evaluations)}
    first = runners[0]
    for step in range(setting.steps):
        share = step / setting.steps
        first.take_step(share, setting.learning_rate)
        for runner in runners[1:]:
            while runner.seconds < first.seconds:
                runner.take_step(share, setting.learning_rate)
                if runner.loop.steps == setting.steps:
                    runner.equal_updates = runner.measure(evaluate)
        for runner in runners:
            if step + 1 in marks:
                runner.curve.append(runner.measure(evaluate))
            if on_turn is not None:
                on_turn(runner, (step + 1) / setting.steps)
    return runners
