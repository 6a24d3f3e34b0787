"""Benchmarks of the policy while it trains, on a subset, every so many steps."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from transformers import TrainerCallback

from answer_judge.errors import ConfigError
from answer_judge.evaluation.engines import Engine
from answer_judge.evaluation.problems import ProblemSet
from answer_judge.evaluation.samples import Judge, graded_samples
from answer_judge.evaluation.sampling import Sampling


class BenchmarkCallback(TrainerCallback):
    """Logs ``eval/<benchmark>/pass@1`` and its companions at the start, every ``every`` steps, and at the end.

    Every process asks its own share of the problems. Completions have their own seeds and no global generator is
    touched, so a run trains as it would have without this. ``seed`` is the same at every step, so that steps differ by
    the policy alone.

    ``engine`` gives what answers from the live model, which the context ``generating`` gives; it is asked once per
    evaluation. ``log`` receives the figures. ``reduce`` sums a tensor over all processes, of which this is ``rank``.
    """

    def __init__(
        self,
        *,
        sets: Sequence[ProblemSet],
        engine: Callable[[Any], Engine],
        judge: Judge,
        log: Callable[[dict[str, float]], None],
        generating: Callable[[], AbstractContextManager[Any]],
        sampling: Sampling,
        every: int,
        samples: int = 1,
        seed: int = 0,
        reduce: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        if every < 1 or samples < 1:
            raise ConfigError(
                f"eval_benchmark_every={every} and eval_benchmark_samples={samples} must be at least 1. "
                "Try eval_benchmark_every: 50"
            )
        self.sets = [replace(problems, problems=problems.problems[rank::processes]) for problems in sets]
        self.engine, self.judge, self.log, self.generating = engine, judge, log, generating
        self.sampling, self.every, self.samples, self.seed, self.reduce = sampling, every, samples, seed, reduce
        self._last = -1

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Not after a resume."""
        if state.global_step == 0:
            self._evaluate(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every == 0:
            self._evaluate(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Unless it was just asked."""
        if state.global_step != self._last:
            self._evaluate(state.global_step)

    def _evaluate(self, step: int) -> None:
        self._last = step
        with self.generating() as model:
            engine = self.engine(model)
            sums = [self.reduce(self._sums(problems, engine)).tolist() for problems in self.sets]
        figures: dict[str, float] = {}
        for problems, (count, right, tokens, truncated, unanswered) in zip(self.sets, sums, strict=True):
            name = f"eval/{problems.benchmark.name}"
            figures |= {f"{name}/pass@1": right / count, f"{name}/mean_tokens": tokens / count}
            figures |= {f"{name}/truncated": truncated / count, f"{name}/no_answer": unanswered / count}
        means = [figures[f"eval/{problems.benchmark.name}/pass@1"] for problems in self.sets]
        self.log({**figures, "eval/average/pass@1": sum(means) / len(means)})

    def _sums(self, problems: ProblemSet, engine: Engine) -> torch.Tensor:
        """(5,) samples, right, tokens, truncated, without an answer, of this process's share."""
        sums = torch.zeros(5, dtype=torch.float64)
        if not problems.problems:
            return sums
        drawn = graded_samples(problems, engine, self.judge, self.sampling, samples=self.samples, seed=self.seed)
        for batch in drawn:
            for sample in batch:
                truncated, unanswered = sample.generated.finish == "length", sample.reason == "no_answer"
                sums += torch.tensor([1, sample.right, sample.generated.tokens, truncated, unanswered]).double()
        return sums
