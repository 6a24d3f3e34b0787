"""Skipped steps, warnings if nothing is learned, and errors with advice: models, rounds, vLLM, rewards."""

import atexit
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any, cast

import torch
import trl.trainer.grpo_trainer as of_trl
from torch import distributed
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback
from trl.generation.vllm_client import VLLMClient
from trl.trainer.grpo_config import GRPOConfig

from dppo.errors import ConfigError, EngineError, RoundsError, first_line, in_one_line
from dppo.files import model_problem, near
from dppo.rewards import guarded
from dppo.step import PromptSource
from dppo.trl.layouts import MIXED
from dppo.trl.metrics import STEP
from dppo.typed import check


class StepGuard(TrainerCallback):
    """Times optimizer steps. Skips one if its gradient is not finite, warns of it, and logs ``skipped_step_share``.

    Without gradients neither weights nor moments change. Under fp16 the loss scaler skips such steps itself.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.skipped = trainer, 0
        self._step_began = self._update_began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the time of a step, once its batches are there."""
        self._step_began = self.trainer.clock.now()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Clear a gradient that is not finite, after clipping."""
        trainer, accelerator, broken = self.trainer, self.trainer.accelerator, False
        self._update_began = trainer.clock.now()
        if accelerator.scaler is None:
            norm = torch.nn.utils.get_total_norm([p.grad for p in trainer.model.parameters() if p.grad is not None])
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            here = (~norm.isfinite()).to(accelerator.device, torch.float32).reshape(1)
            broken = bool(accelerator.reduce(here, reduction="sum").item())
        if broken:
            self.skipped += 1
            trainer.model.zero_grad(set_to_none=True)
            skipped = f"the gradient is not finite, the step is skipped ({self.skipped} so far)"
            warnings.warn(f"step {state.global_step}: {skipped}. Lower learning_rate or max_grad_norm.", stacklevel=2)
        trainer.add_metrics({"skipped_step_share": float(broken)})

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the time of the update."""
        clock = self.trainer.clock
        clock.add("optimizer", clock.now() - self._update_began)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the time of the step, before ``Trainer`` logs, saves or evaluates."""
        clock = self.trainer.clock
        clock.add(STEP, clock.now() - self._step_began)
        seconds = clock.flush()
        if args.log_metrics != "all":
            update = sum(seconds.pop(f"time/{phase}") for phase in ("log_probs", "forward_backward", "optimizer"))
            rollout = seconds.pop("time/rollout")
            seconds = {"time/rollout": rollout, "time/update": update, "time/other": sum(seconds.values())}
        self.trainer.add_metrics(seconds)


class EmptySignalWarning:
    """Warns if no completion has a gradient for 10, 20, 40, ... generations in a row, or no reward for 1, 2, 4, ..."""

    def __init__(self) -> None:
        self.empty = self.unscored = 0

    def observe(self, signal: bool, scored: bool = True) -> None:
        """Count one generation. ``signal``: some completion has a gradient; ``scored``: some has a reward."""
        self.empty = 0 if signal else self.empty + 1
        self.unscored = 0 if scored else self.unscored + 1
        times, rest = (self.unscored, 0) if self.unscored else divmod(self.empty, 10)
        if rest or times.bit_count() != 1:
            return
        problem = f"all groups had zero variance for {self.empty} generations"
        if self.unscored:
            problem = f"all rewards were NaN or None for {self.unscored} generation(s)"
        advice = "nothing is learned. To see completions: log_completions: true."
        warnings.warn(f"{problem} in a row: {advice}", stacklevel=2)


def end_at_exit() -> None:
    """Register the end of a gloo group: ended by the interpreter, its threads sometimes abort the process."""
    if distributed.is_initialized() and distributed.get_backend() == "gloo":
        atexit.unregister(_end_group)
        atexit.register(_end_group)


def _end_group() -> None:
    if distributed.is_initialized():
        # An unreferenced trainer is a cycle, and the reducer of its wrapped model holds the group. It must go first: as
        # the last holder it would end the group and keep the interpreter, for which the group's threads may wait.
        gc.collect()
        distributed.destroy_process_group()
        gc.collect()


@contextmanager
def saved_at_the_limit(trainer: Any, source: PromptSource) -> Iterator[None]:
    """Save the run as it was before its rounds, if they raise an error."""
    before, step = source.stream.state_dict(), trainer.state.global_step
    try:
        yield
    except RoundsError as error:
        source.stream.load_state_dict(before)
        saves = step and trainer.args.save_strategy != "no"
        raise RoundsError(f"step {step}: {error} {_way_on(trainer.save_now() if saves else None)}") from error


@contextmanager
def failures_named(trainer: Any) -> Iterator[None]:
    """Turn a failure of vLLM's generation into an error that names the last checkpoint."""
    try:
        yield
    except Exception as error:  # of its engine, its workers, or the connection to its server
        failed = f"step {trainer.state.global_step}: vLLM failed while it generated ({in_one_line(error)})"
        raise EngineError(f"{failed}. {_way_on(trainer.last_checkpoint)}") from error


def _way_on(folder: Path | None) -> str:
    """A sentence about how to resume a run that failed."""
    if folder is None:
        return "There is no checkpoint: start the run again, with save_strategy: steps and a lower save_steps."
    script = f"trainer.train(resume_from_checkpoint='{folder}')"
    return f"The last checkpoint is {folder}: go on with dppo train CONFIG.yaml --resume, or {script}."


@contextmanager
def models_named(*models: Any) -> Iterator[None]:
    """Turn the 40 lines of transformers for a model that cannot be loaded into one line of a ``ConfigError``."""
    names = [each for each in models if isinstance(each, str)]
    for problem in filter(None, map(model_problem, names)):
        raise ConfigError(problem)
    try:
        yield
    except OSError as error:
        unknown = [name for name in names if not Path(name).is_dir()]
        if unknown and any(word in str(error) for word in (*unknown, "huggingface.co")):
            problem = f"{near(unknown[0])}{first_line(error)}"
            raise ConfigError(f"model {unknown[0]}: {problem} Check the name, or give a folder.") from None
        raise


def precision_line(trainer: Any) -> str | None:
    """A warning if vLLM computes in a coarser precision than the trainer: TRL gives it no dtype."""
    own: torch.dtype = trainer.accelerator.unwrap_model(trainer.model).dtype
    ours = MIXED.get(trainer.accelerator.mixed_precision, own)
    trained = str(ours).removeprefix("torch.")
    if trainer.vllm_mode == "server":
        theirs = trainer.vllm_generation.vllm_client.get_server_info()["model_config"]["dtype"]
        then = f"start the server with --dtype {trained}"
    else:
        theirs = trainer.vllm_generation.llm.llm_engine.model_config.dtype
        then = f"before the trainer is made: trl.generation.vllm_generation.LLM = partial(vllm.LLM, dtype='{trained}')"
    sampled = str(theirs).removeprefix("torch.")
    if torch.finfo(getattr(torch, sampled)).eps <= torch.finfo(ours).eps:
        return None
    differ = "log-probabilities differ (sampling/sampling_logp_difference/mean)"
    return f"the trainer computes in {trained}, vLLM samples in {sampled}: {differ}. To sample in {trained}, {then}"


@contextmanager
def start_named(args: GRPOConfig, model: Any) -> Iterator[None]:
    """Turn a failure of vLLM's start in TRL's constructor into an ``EngineError``; other errors stay."""
    try:
        yield
    except Exception as error:  # of its engine, its workers, or the connection to its server
        engine = (cast(Any, of_trl).VLLMGeneration, VLLMClient)  # vLLM's own errors differ by version
        if not any(isinstance(frame.f_locals.get("self"), engine) for frame, _ in walk_tb(error.__traceback__)):
            raise
        if args.vllm_mode == "server":
            address = args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
            failed = f"vllm_mode: server: no vLLM server could be used at {address}"
            serve = f"VLLM_SERVER_DEV_MODE=1 vllm serve {model if isinstance(model, str) else 'MODEL'}"  # docs/vllm.md
            works = f'Start one: {serve} --weight-transfer-config \'{{"backend": "nccl"}}\' '
            works += "--logprobs-mode processed_logprobs"
        else:
            failed = "vllm_mode: colocate: vLLM could not start in the trainer's process"
            longest = args.vllm_max_model_length or "not set, so the model's own limit"
            share = f"vllm_gpu_memory_utilization: {args.vllm_gpu_memory_utilization:g}"
            works = f"Its share of the memory is {share}, its longest sequence vllm_max_model_length: {longest}"
        raise EngineError(f"{failed} ({in_one_line(error)}). {works}. Or without vLLM: use_vllm: false") from error


def weights_mismatch(weights: Sequence[float] | None, rewards: int) -> str:
    """A sentence if ``reward_weights`` are not one number per reward function; else empty."""
    if weights is None or len(weights) == rewards:
        return ""
    need = f"must have one number for each of {rewards} reward functions"
    return f"reward_weights={list(weights)} {need}. Try reward_weights: {[1.0] * rewards}, or leaving it out."


def guarded_rewards(reward_funcs: Any, args: Any, data: Any) -> Any:
    """Reward functions that check each call, for a ``DPPOConfig``; models and names of models are unchanged."""
    if reward_funcs is None:
        return None
    functions = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    for function in functions:
        check("reward_funcs", function, str | Callable, "reward_funcs=[my_reward]")
    if wrong := weights_mismatch(args.reward_weights, len(functions)):
        raise ConfigError(wrong)
    columns = {*(getattr(data, "column_names", None) or ())} if args.remove_unused_columns else set()
    columns -= {"prompt", "image", "images"}  # ``GRPOTrainer`` keeps these
    checked = partial(guarded, limit_seconds=args.reward_time_limit, dropped=columns)
    return [each if isinstance(each, str | torch.nn.Module) else checked(each) for each in functions]
