"""A pilot: a few prompts rolled out and trained on by the run's own trainer and engine, and one update as TRL pads it.

The weights stay as they are: the learning rate is 0. Half of the prompts make up a step. All are rolled out once, and
again with half of both levels pruned, and once more unpruned, so that steps of two sizes are timed. Where the sampler
gives log-probabilities and the objective allows tokens to be left out, all are rolled out once more with most tokens
kept from the head, which tells what the head costs; these completions are kept token by token. Then TRL's own trainer
takes steps on the same completions, which cost it no rollout.
"""

import contextlib
import gc
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.errors import ConfigError
from dppo.methods import Method
from dppo.pruning import TokenPruning, constant, needs_log_probs
from dppo.trl.grpo.config import DPPOConfig
from dppo.trl.grpo.trainer import DPPOTrainer
from dppo.trl.served import unserved_tokens
from dppo_lab.planning.observed import Observed, observed_run, timed_steps
from dppo_lab.planning.records import check_pilot
from dppo_lab.planning.tokens import TokenSample
from dppo_lab.runs.follow import Follow
from dppo_lab.runs.generation import Generation
from dppo_lab.runs.parsing import TRAINING_OURS, Run, parse_fields
from dppo_lab.runs.parts import build_trainer, prepare_model
from dppo_lab.runs.reader import read_run
from dppo_lab.runs.recorder import RunRecorder

GENERATIONS = 6
"""Of a pilot: two whole ones, two pruned ones, two whole ones; the first warms up and is not timed."""
PRUNED = 3.5
"""Of these, how many may be pruned, the one of warm-up included."""
RATE = 0.5
"""What the pruned ones prune at either level."""
HEADS, HEAD_RATE = 3, 0.85
"""Generations after those that leave tokens from the head, and the share that they leave."""
NO_LOG_PROBS = (
    "that takes the sampler's log-probabilities, which transformers' generate does not give. With use_vllm: true the "
    "plan has rows for them."
)
"""Why tokens are not looked at, whatever the configuration says of them."""
STOCK_STEPS = 3
"""Of TRL's own trainer, the first not timed."""
LEFT_OUT = (
    *("max_rounds", "round_factor", "sampling_design", "completion_budget", "history_half_life", "method"),
    *("prompt_values", "prune_floor", "logging_strategy"),
    *("steps_per_generation", "eval_benchmarks", "eval_steps", "save_steps", "processes"),
    *("lr_scheduler_kwargs", "warmup_steps", "warmup_ratio"),
    *("resume", "resume_from_checkpoint", "eval_on_start", "push_to_hub", "log_completions_hub_repo"),
)
"""Fields that only some methods take, while a pilot is of ``dppo``, and others of no use: it publishes nothing."""
Rollouts = dict[str, list[Any]]


def run_pilot(
    fields: Mapping[str, Any],
    prompts: int,
    *,
    now: Callable[[], float] = time.perf_counter,
    progress: Callable[[str], None] = lambda text: None,
) -> Observed:
    """What a pilot of ``prompts`` prompts of a configuration for ``dppo train`` shows.

    ``prompts`` is an even number >= 4, at most those of the training set; ``now`` is the clock, ``time.process_time``
    where other work runs on the machine.
    """
    check_pilot(prompts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, theirs = (pilot_fields(fields, prompts, folder / part, stock=part == "trl") for part in ("dppo", "trl"))
        with quietly(folder / "output.txt"):
            run = parse_fields(ours, DPPOConfig)
            progress("preparing the model")
            model = prepare_model(run, folder=folder / "start")
            kept, tokens, why = _trained(run, model, prompts, now, progress)
            progress("one update as TRL pads it")
            stock = _stock(parse_fields(theirs, GRPOConfig), model, prompts, kept, now)
        seen = observed_run(read_run(folder / "dppo"))
        timed = tuple(replace(each, generated=0.0, completions=0.0, rollout=0.0, reward=0.0) for each in stock)
        notes = [note for note in seen.notes if "one layout" not in note]
        notes += [f"Tokens were not looked at: {why}"] * bool(why)
        return replace(seen, timed=(*seen.timed, *timed), notes=tuple(notes), tokens=tokens)


def pilot_fields(fields: Mapping[str, Any], prompts: int, folder: Path, *, stock: bool) -> dict[str, Any]:
    """The fields of a pilot of a configuration, for TRL's own trainer (``stock``) or ours."""
    given = {name: value for name, value in fields.items() if name not in LEFT_OUT}
    group = int(fields.get("num_generations", 8))
    completions = prompts // 2 * group
    at_once = math.gcd(completions, int(fields.get("per_device_train_batch_size", 8)))
    passes = 1 if stock else int(fields.get("num_iterations", 1))
    steps = STOCK_STEPS if stock else GENERATIONS + HEADS
    common = {
        "output_dir": str(folder),
        "per_device_train_batch_size": at_once,
        "generation_batch_size": completions,
        "gradient_accumulation_steps": completions // at_once,
        "num_iterations": passes,
        "max_steps": steps * passes,
        "logging_steps": passes,
        "learning_rate": 0.0,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    if stock:
        given = {name: value for name, value in given.items() if name not in TRAINING_OURS}
        return given | common | {"use_vllm": False}
    return given | common | {
        "method": "dppo",
        "completion_prune_rate": RATE,
        "prompt_prune_rate": RATE,
        "prune_schedule": "stop",
        "prune_until": PRUNED / steps,
        "token_prune_rate": 0.0,
        "head_prune_rate": 0.0,
        "prompt_mode": "thin",
        "record_completions": 10**6,
        "overwrite": True,
    }  # fmt: skip


class Keeper(RunRecorder):
    """Records a pilot; keeps its last whole generation, and the completions of the last ones token by token."""

    def __init__(self, folder: str, **options: Any) -> None:
        super().__init__(folder, **options)
        self.kept: Rollouts = {}
        self.why_no_tokens = ""
        """Why tokens cannot be left out here; empty where they can."""
        self._seen: list[list[Tensor]] = []

    def generation(self, generation: Generation) -> None:
        """Called by the trainer, after the draws."""
        super().generation(generation)
        if generation.number == GENERATIONS - 1 and not self.why_no_tokens:
            trainer = cast(DPPOTrainer, self._trainer)
            trainer.session.method = with_tokens(trainer.method)
        if generation.sampled is not None and generation.moment_NT is not None:
            method = cast(DPPOTrainer, self._trainer).method
            live = (generation.moment_NT > 0).any(1) | bool(method.beta or method.entropy_coef)
            prompt_N = generation.row_Q.repeat_interleave(generation.size_Q)
            self._seen.append([part[live] for part in (generation.sampled.span_NT, generation.moment_NT, prompt_N)])
        if bool(generation.keep_P.all()):
            pairs = (
                (generation.prompt_ids, generation.prompt_mask),
                (generation.completion_ids, generation.completion_mask),
            )
            prompts, completions = (
                [ids[mask.bool()].tolist() for ids, mask in zip(*pair, strict=True)] for pair in pairs
            )
            logprobs = [[0.0] * len(tokens) for tokens in completions]
            self.kept = {"prompt_ids": prompts, "completion_ids": completions, "logprobs": logprobs}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called after every optimizer step: where no tokens are looked at, the pilot ends before them."""
        super().on_step_end(args, state, control, **kwargs)
        if self.why_no_tokens and state.global_step >= GENERATIONS * args.num_iterations:
            control.should_training_stop = True

    def tokens(self) -> TokenSample | None:
        """Completions with a gradient of the last generations, token by token; None where none were looked at."""
        if not self._seen:
            return None
        spans, moments, prompts = zip(*self._seen, strict=True)
        trainer, width = cast(DPPOTrainer, self._trainer), max(span_NT.shape[1] for span_NT in spans)
        span_NT, moment_NT = (
            torch.cat([pad(each, (0, width - each.shape[1])) for each in parts]) for parts in (spans, moments)
        )
        scored, group = needs_log_probs(trainer.method.score), trainer.session.generations
        return TokenSample.of(span_NT, moment_NT, torch.cat(prompts), generations=group, scored=scored)


def with_tokens(method: Method) -> Method:
    """The method that prunes nothing but keeps most tokens from the head."""
    return replace(method, tokens=TokenPruning(head_rate=HEAD_RATE), schedule=constant).with_rates(
        prompt=0.0, completion=0.0
    )


def why_no_tokens(trainer: DPPOTrainer) -> str:
    """Why tokens cannot be left out in a run, in a sentence; empty where they can."""
    log_probs = trainer.use_vllm or trainer.rollout_func is not None
    try:
        method = with_tokens(trainer.method)
    except ConfigError as error:
        return str(error)
    return " ".join(unserved_tokens(trainer, method, log_probs)) if log_probs else NO_LOG_PROBS


def _trained(run: Run, model: str, prompts: int, now: Callable[[], float], progress: Callable[[str], None]) -> Any:
    """Take the pilot's steps, recorded in its folder: its last whole generation, its tokens, why there are none."""
    trainer = build_trainer(run, model, DPPOTrainer, prompts)
    about = {"model": run.model.model_name_or_path, "dataset": run.data.dataset_path or run.data.dataset_name}
    keeper = Keeper(run.training.output_dir or "", task=about, now=now)
    keeper.attach(trainer)
    keeper.why_no_tokens = why_no_tokens(trainer)
    Follow.instead(trainer, lambda step, steps, _: progress(f"pilot, step {step:.0f} of {steps:.0f}"))
    trainer.train()
    found = keeper.kept, keeper.tokens(), keeper.why_no_tokens
    del trainer, keeper
    gc.collect()
    return found


def _stock(run: Run[GRPOConfig], model: str, prompts: int, kept: Rollouts, now: Callable[[], float]) -> Any:
    """Timed steps of TRL's own trainer on completions that were made before."""
    trainer = build_trainer(run, model, GRPOTrainer, prompts)

    def replayed(asked: list[Any], *_: Any, **__: Any) -> Rollouts:
        return {name: values[: len(asked)] for name, values in kept.items()}

    trainer.rollout_func = replayed
    RunRecorder(run.training.output_dir or "", completions=0, now=now).attach(trainer)
    Follow.instead(trainer, lambda *_: None)
    trainer.train()
    return timed_steps(read_run(Path(run.training.output_dir or "")))


@contextlib.contextmanager
def quietly(path: Path) -> Any:
    """Send what trainers print to a file, and drop their warnings: neither belongs into the table of a plan."""
    with path.open("w") as printed, contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
