"""Held-out problems of a run, and the callback that follows its accuracy on them while it trains."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from transformers import Trainer, TrainerCallback
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.errors import ConfigError
from dppo.lab.demo.rollouts import check_embedded
from dppo.lab.gym import GymScorer, is_gym
from dppo.lab.judge import judge
from dppo.lab.runs.embedded import TASKS
from dppo.lab.runs.folder import ACCURACY
from dppo.lab.runs.held_out import Asker, HeldOut, asker, check_names, embedded_set, gym_set, sums
from dppo.lab.runs.models import chat_options
from dppo.lab.runs.parsing import AnyRun
from dppo.lab.subject import SubjectSampling
from dppo.trl.grpo.trainer import DPPOTrainer


def judged_sets(run: AnyRun, names: list[str]) -> list[HeldOut]:
    """Public benchmarks and files of one's own, read and judged by answer-judge."""
    asked, data = f"eval_benchmarks: {names[0]}", run.data
    problems = judge("evaluation.problems", asked)
    judges = judge("problems", asked).Judges(
        workers=data.reward_workers,
        limit_seconds=data.answer_time_limit,
        limits=judge("sandbox", asked).Limits.of(data.program_cpu_seconds, data.program_memory_mb),
        accept_weak_sandbox=data.accept_weak_sandbox,
    )
    records = problems.choose(names, [], folder=data.eval_benchmark_data, template=data.prompt_template)
    return [_judged(problems.load_set(record, limit=data.eval_benchmark_limit), judges) for record in records]


def _judged(found: Any, judges: Any) -> HeldOut:
    def score(texts: list[str], places: list[int]) -> list[tuple[float, bool]]:
        asked = [found.problems[place] for place in places]
        golds, details = [problem.answer for problem in asked], [problem.details for problem in asked]
        verdicts = judges.verify_many(texts, golds, benchmark=found.benchmark.rule, details=details)
        return [(float(verdict.reason == "right"), verdict.reason != "no_answer") for verdict in verdicts]

    questions = [found.benchmark.prompt(problem.problem) for problem in found.problems]
    ids = [problem.id for problem in found.problems]
    return HeldOut(name=found.benchmark.name, questions=questions, ids=ids, score=score)


def load_benchmarks(run: AnyRun) -> list[HeldOut]:
    """The problems of ``eval_benchmarks``, at most ``eval_benchmark_limit`` of each.

    Sharded weights are refused: they cannot generate unless all processes do so together.
    """
    data, names = run.data, run.data.eval_benchmarks or []
    if not names:
        return []
    if run.training.fsdp or run.training.deepspeed:
        raise ConfigError(
            "eval_benchmarks cannot generate with weights that FSDP or DeepSpeed share out. Leave it out, and evaluate "
            "checkpoints: dppo eval OUTPUT_DIR/checkpoint-50 --benchmarks math500"
        )
    if embedded := [name for name in names if name in TASKS]:
        if len(names) > 1:  # the demonstration's decoder answers these
            raise ConfigError(f"{embedded[0]} must stand alone. Write eval_benchmarks: [{embedded[0]}]")
        return [embedded_set(embedded[0], run.training.seed, data.eval_benchmark_limit)]
    limits = {"limit": data.eval_benchmark_limit, "template": data.prompt_template}
    scorer = GymScorer(data.reward_workers, data.answer_time_limit)
    judged = [name for name in names if not is_gym(name)]
    sets = judged_sets(run, judged) if judged else []
    sets += [gym_set(run.gym_task(name), scorer, **limits) for name in names if is_gym(name)]
    check_names(sets)
    return sets


class BenchmarkCallback(TrainerCallback):
    """Logs the figures of ``evaluate`` by ``log``: at the start, every ``every`` steps, and at the end."""

    def __init__(
        self, evaluate: Callable[[], dict[str, float]], log: Callable[[dict[str, float]], None], every: int
    ) -> None:
        self.evaluate, self.log, self.every, self._last = evaluate, log, every, -1

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Not after a resume.
        if state.global_step == 0:
            self._at(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every == 0:
            self._at(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step != self._last:
            self._at(state.global_step)

    def _at(self, step: int) -> None:
        self._last = step
        self.log(self.evaluate())


def figures_of(
    sets: Sequence[HeldOut],
    ask: Asker,
    sampling: SubjectSampling,
    *,
    samples: int = 1,
    seed: int = 0,
    reduce: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    **share: int,
) -> dict[str, float]:
    """The figures of a model on each set, by their names in the log.

    Every process asks its ``share`` of the problems, by its ``rank`` of ``processes``, and ``reduce`` sums over all.
    Completions have their own seeds, the same at every call, and no global generator is touched. So a run trains as it
    would have without this.
    """
    figures: dict[str, float] = {}
    for each in sets:
        count, *totals = reduce(sums(each, ask, sampling, samples=samples, seed=seed, **share)).tolist()
        names = ("pass@1", "mean_tokens", "truncated", "no_answer")
        figures |= {f"eval/{each.name}/{name}": total / count for name, total in zip(names, totals, strict=True)}
    return {**figures, ACCURACY: sum(figures[f"eval/{each.name}/pass@1"] for each in sets) / len(sets)}


def benchmark_callback(
    run: AnyRun,
    trainer: GRPOTrainer,
    sets: list[HeldOut],
    paused: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> BenchmarkCallback:
    """The callback that evaluates the trainer's policy on ``sets``, with completions sampled as in rollouts.

    Its figures go to the trainer, ours or TRL's own. The run's clock stands still within ``paused``.
    """
    training, accelerator = run.training, trainer.accelerator
    embedded = any(found.name in TASKS for found in sets)
    layout = trainer.generating if isinstance(trainer, DPPOTrainer) else nullcontext
    size = training.per_device_train_batch_size * (training.steps_per_generation or 1)
    options = chat_options(run, trainer.processing_class)
    share = {"rank": accelerator.process_index, "processes": accelerator.num_processes}
    drawn = {"samples": run.data.eval_benchmark_samples, "seed": training.seed, **share}

    def summed(tensor: torch.Tensor) -> torch.Tensor:
        if accelerator.num_processes == 1:
            return tensor
        return cast(torch.Tensor, accelerator.reduce(tensor.to(accelerator.device), reduction="sum")).cpu()

    def evaluate() -> dict[str, float]:
        with paused(), layout(), accelerator.autocast():
            model: Any = accelerator.unwrap_model(trainer.model)
            if embedded:
                check_embedded(model, training)
            ask = asker(model, trainer.processing_class, embedded=embedded, batch_size=size, options=options)
            sampling = SubjectSampling(
                temperature=training.temperature,
                top_p=training.top_p,
                top_k=training.top_k or 0,
                max_new_tokens=training.max_completion_length or 512,
            )
            return figures_of(sets, ask, sampling, reduce=summed, **drawn)

    def log(figures: dict[str, float]) -> None:
        # Not by TRL's own ``log``, which would move the figures of the step in progress into this record. And this
        # record must not replace the one that is due.
        due = trainer.control.should_log
        Trainer.log(trainer, figures)
        trainer.control.should_log = due

    return BenchmarkCallback(evaluate, log, run.data.eval_benchmark_every)
