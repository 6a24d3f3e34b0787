"""Benchmarks during training: their problems, and the callback that evaluates on them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from transformers import Trainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from answer_judge.evaluation import Engine, ProblemSet, Sampling
from answer_judge.evaluation.during_training import BenchmarkCallback
from answer_judge.evaluation.transformers_engine import of_model
from answer_judge.problems import Judges
from dppo.errors import ConfigError
from dppo.trl.grpo.trainer import DPPOTrainer
from dppo_lab.runs.embedded import TASKS, EmbeddedJudge, check_alone, embedded_engine, held_out_set
from dppo_lab.runs.generated import problem_sets
from dppo_lab.runs.parsing import AnyRun


def load_benchmarks(run: AnyRun) -> list[ProblemSet]:
    """The problems of ``eval_benchmarks``, at most ``eval_benchmark_limit`` of each.

    Sharded weights are refused: they cannot generate unless all processes do so together.
    """
    data = run.data
    if not data.eval_benchmarks:
        return []
    if run.training.fsdp or run.training.deepspeed:
        raise ConfigError(
            "eval_benchmarks cannot generate with weights that FSDP or DeepSpeed share out. Leave it out, and evaluate "
            "checkpoints: dppo eval OUTPUT_DIR/checkpoint-50 --benchmarks math500"
        )
    embedded = check_alone(data.eval_benchmarks)
    if embedded is not None:
        return [held_out_set(embedded, run.training.seed, data.eval_benchmark_limit)]
    return problem_sets(
        data.eval_benchmarks,
        [],
        run.gym_task,
        folder=data.eval_benchmark_data,
        template=data.prompt_template,
        limit=data.eval_benchmark_limit,
    )


def benchmark_callback(
    run: AnyRun,
    trainer: GRPOTrainer,
    sets: list[ProblemSet],
    paused: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> BenchmarkCallback:
    """The callback that evaluates the trainer's policy on ``sets``, with completions sampled as in rollouts.

    Its figures go to the trainer, ours or TRL's own. The run's clock stands still within ``paused``.
    """
    training, accelerator = run.training, trainer.accelerator
    embedded = any(found.benchmark.name in TASKS for found in sets)
    layout = trainer.generating if isinstance(trainer, DPPOTrainer) else nullcontext

    @contextmanager
    def generating() -> Iterator[Any]:
        with paused(), layout(), accelerator.autocast():
            yield accelerator.unwrap_model(trainer.model)

    def engine(model: Any) -> Engine:
        if embedded:
            return embedded_engine(model, trainer.processing_class, training)
        options = training.chat_template_kwargs
        return of_model(
            model,
            trainer.processing_class,
            batch_size=training.per_device_train_batch_size * (training.steps_per_generation or 1),  # as in rollouts
            chat_options=options if isinstance(options, dict) else None,
        )

    def log(figures: dict[str, float]) -> None:
        # Not by TRL's own ``log``, which would move the figures of the step in progress into this record. And this
        # record must not replace the one that is due.
        due = trainer.control.should_log
        Trainer.log(trainer, figures)
        trainer.control.should_log = due

    return BenchmarkCallback(
        sets=sets,
        engine=engine,
        judge=EmbeddedJudge()
        if embedded
        else Judges(
            workers=run.data.reward_workers,
            limit_seconds=run.data.answer_time_limit,
            limits=run.program_limits,
            accept_weak_sandbox=run.data.accept_weak_sandbox,
        ),
        log=log,
        generating=generating,
        reduce=partial(_summed, trainer) if accelerator.num_processes > 1 else lambda tensor: tensor,
        rank=accelerator.process_index,
        processes=accelerator.num_processes,
        every=run.data.eval_benchmark_every,
        samples=run.data.eval_benchmark_samples,
        sampling=sampling_of(training),
        seed=training.seed,
    )


def sampling_of(training: GRPOConfig) -> Sampling:
    """Completions as they are sampled in rollouts."""
    return Sampling(
        temperature=training.temperature,
        top_p=training.top_p,
        top_k=training.top_k or 0,
        max_new_tokens=training.max_completion_length or Sampling().max_new_tokens,
    )


def _summed(trainer: GRPOTrainer, tensor: torch.Tensor) -> torch.Tensor:
    accelerator = trainer.accelerator
    return cast(torch.Tensor, accelerator.reduce(tensor.to(accelerator.device), reduction="sum")).cpu()
