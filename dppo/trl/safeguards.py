"""What keeps a run alive and honest: steps that are skipped, and warnings that say why nothing is learned.

Where a model cannot be loaded, rounds find nothing, or vLLM cannot start or has died, the error says what to do; and a
line says where vLLM samples more coarsely than the trainer computes.
"""

import atexit
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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

from dppo.errors import ConfigError, EngineError, OutOfMemoryError, RoundsError, first_line, in_one_line
from dppo.files import model_problem, near
from dppo.rewards import guarded
from dppo.step import PromptSource
from dppo.trl.layouts import MIXED
from dppo.typed import check

KEPT = {"prompt", "image", "images"}
"""Columns that ``GRPOTrainer`` keeps under ``remove_unused_columns``."""
SERVE = (
    'VLLM_SERVER_DEV_MODE=1 vllm serve {} --weight-transfer-config \'{{"backend": "nccl"}}\' '
    "--logprobs-mode processed_logprobs"
)
"""The server that TRL's client talks to: docs/vllm.md."""


class NonFiniteGuard(TrainerCallback):
    """Skips an optimizer step whose gradient is not finite, logs ``skipped_step_share``, and warns each time.

    A NaN loss would otherwise turn every weight into NaN without a word. The gradients are cleared, so neither the
    weights nor the optimizer's moments change; the learning-rate schedule goes on. Under a loss scaler (fp16) the
    scaler does the skipping and this guard stays out of its way.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.skipped = 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Clear the gradients of a step that must not be taken. Called by ``Trainer`` after gradient clipping."""
        trainer = self.trainer
        trainer.clock.start("optimizer")
        broken = trainer.accelerator.scaler is None and not self._finite(trainer)
        if broken:
            self.skipped += 1
            trainer.model.zero_grad(set_to_none=True)
            warnings.warn(
                f"step {state.global_step}: the gradient is not finite, so the step was skipped (skipped so far: "
                f"{self.skipped}). If this repeats, lower learning_rate or max_grad_norm, and look at the rewards.",
                stacklevel=2,
            )
        trainer.add_metrics({"skipped_step_share": float(broken)})

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by ``Trainer`` when the weights have moved: the time of each phase goes to the log."""
        self.trainer.clock.stop("optimizer")
        self.trainer.add_metrics(self.trainer.clock.flush())

    @staticmethod
    def _finite(trainer: Any) -> bool:
        gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
        if not gradients:
            return True
        norm = torch.nn.utils.get_total_norm(gradients)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        broken = (~norm.isfinite()).to(torch.float32).reshape(1)
        return not bool(trainer.accelerator.reduce(broken, reduction="sum").item())


class EmptySignalWarning:
    """Warns when generation after generation no completion has a gradient: after 10, and each time that doubles.

    Where no reward function gave a number, after 1: that is a fault of theirs.
    """

    FIRST = 10

    def __init__(self) -> None:
        self.empty = self.unscored = 0

    def observe(self, signal: bool, scored: bool = True) -> None:
        """Count one generation: whether some completion has a gradient, and whether some has a reward."""
        self.empty = 0 if signal else self.empty + 1
        self.unscored = 0 if scored else self.unscored + 1
        if self.unscored.bit_count() == 1:
            warnings.warn(
                f"all rewards were NaN or None, {self.unscored} generation(s) in a row: nothing is being learned. "
                "Print some completions (log_completions: true), and what the reward functions make of them.",
                stacklevel=2,
            )
        times, more = divmod(self.empty, self.FIRST)
        if not self.unscored and not more and times.bit_count() == 1:
            warnings.warn(
                f"no completion had an advantage for {self.empty} generations in a row, all rewards of a group being "
                "equal: nothing is being learned. Print some completions (log_completions: true); the reward may "
                "never be earned, or always.",
                stacklevel=2,
            )


class MemoryAdvice:
    """Says which number to lower when a forward or backward pass runs out of memory, and when a row is over budget.

    ``setting`` is what to lower where a forward pass has no more sequences than must be ``together``.
    """

    def __init__(self, setting: str = "max_completion_length", together: int = 1) -> None:
        self._setting, self._together = setting, together
        self._least = "one completion with its prompt" if together == 1 else "one prompt with its answers"
        self.budget = 0
        """Tokens of a forward pass, as set."""
        self.in_flight = 0
        """Tokens of the forward pass that is being computed; 0 where none is."""
        self.completions = 0
        """Completions in it."""
        self._warned = False

    def warn_if_beyond(self, tokens: int) -> None:
        """Warn once that what cannot be split is longer than a row, and gets one of its own."""
        if tokens > self.budget and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._least} is {tokens} tokens, over max_tokens_per_row={self.budget}: it gets a "
                f"row of its own, nothing is cut. Where memory allows, set max_tokens_per_row: {tokens}.",
                stacklevel=2,
            )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn an out-of-memory error of a training pass into one that names the number to lower."""
        self.in_flight = 0
        try:
            yield
        except RuntimeError as error:
            exhausted = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
            if not exhausted or not self.in_flight:
                raise
            lower = f"max_tokens_per_row: {min(self.budget, self.in_flight) // 2}"
            if self.completions <= self._together:  # a row cannot hold less than that
                lower = f"a lower {self._setting}, since that is {self._least}"
            raise OutOfMemoryError(
                f"out of memory in a forward or backward pass over {self.in_flight} tokens "
                f"(max_tokens_per_row={self.budget}). Set {lower}, or gradient_checkpointing: true."
            ) from error


def end_at_exit() -> None:
    """End a gloo group before the interpreter does: left to that, its threads now and then abort the process."""
    if distributed.is_initialized() and distributed.get_backend() == "gloo":
        atexit.unregister(_end_group)
        atexit.register(_end_group)


def _end_group() -> None:
    if distributed.is_initialized():
        # A trainer that nobody holds is a cycle, and the reducer of its wrapped model keeps the group and its threads.
        # Before the group: a reducer that is the last to hold it ends it without letting go of the interpreter, for
        # which a thread of the group may be waiting with the group's lock in hand.
        gc.collect()
        distributed.destroy_process_group()
        gc.collect()


@contextmanager
def saved_at_the_limit(trainer: Any, source: PromptSource) -> Iterator[None]:
    """Where rounds end in an error, save the run as it was before them and say where."""
    before, step = source.stream.state_dict(), trainer.state.global_step
    try:
        yield
    except RoundsError as error:
        source.stream.load_state_dict(before)
        saved = "No step had been taken."
        if step and trainer.args.save_strategy == "no":
            saved = "Nothing was saved, since save_strategy is no."
        elif step:
            saved = f"The run up to here is in {trainer.save_now()}: go on from it with resume: true."
        raise RoundsError(f"step {step}: {error} {saved}") from error


@contextmanager
def models_named(*models: Any) -> Iterator[None]:
    """A context in which models are loaded: one that cannot be is an error in one line, where transformers has 40.

    Raises:
        ConfigError: a folder is missing or is no model, or a name of the hub cannot be loaded.
    """
    names = [each for each in models if isinstance(each, str)]
    for problem in filter(None, map(model_problem, names)):
        raise ConfigError(problem)
    try:
        yield
    except OSError as error:
        unknown = [name for name in names if not Path(name).is_dir()]
        if unknown and any(word in str(error) for word in (*unknown, "huggingface.co")):
            said = f"{near(unknown[0])}{first_line(error)}"
            raise ConfigError(f"model {unknown[0]}: {said} Check the name, or give a folder.") from None
        raise


def precision_line(trainer: Any) -> str | None:
    """What to say at start where vLLM computes more coarsely than the trainer; None where it does not.

    TRL gives the ``LLM`` of ``vllm_mode: colocate`` no dtype, and vLLM takes a float32 model down to bfloat16.
    """
    own: torch.dtype = trainer.accelerator.unwrap_model(trainer.model).dtype
    ours, theirs = MIXED.get(trainer.accelerator.mixed_precision, own), _sampled_in(trainer)
    if torch.finfo(theirs).eps <= torch.finfo(ours).eps:
        return None
    trained, sampled = (str(dtype).removeprefix("torch.") for dtype in (ours, theirs))
    mended = f"before the trainer is made: trl.generation.vllm_generation.LLM = partial(vllm.LLM, dtype='{trained}')"
    if trainer.vllm_mode == "server":
        mended = f"start the server with --dtype {trained}"
    return (
        f"the trainer computes in {trained}, vLLM samples in {sampled}: their log-probabilities differ with the same "
        f"weights, too, see sampling/sampling_logp_difference/mean. To sample in {trained}, {mended}"
    )


def _sampled_in(trainer: Any) -> torch.dtype:
    """The precision of vLLM's forward passes."""
    engine = trainer.vllm_generation
    if trainer.vllm_mode == "server":
        name = engine.vllm_client.get_server_info()["model_config"]["dtype"]
        return getattr(torch, name.removeprefix("torch."))
    return engine.llm.llm_engine.model_config.dtype


@contextmanager
def start_named(args: GRPOConfig, model: Any) -> Iterator[None]:
    """A context around TRL's constructor, which starts vLLM in its process or looks for its server.

    Only what vLLM raises becomes an ``EngineError``: other errors of the constructor stay as they are.
    """
    try:
        yield
    except Exception as error:  # of its engine, its workers, or the connection to its server
        if not _of_vllm(error):
            raise
        if args.vllm_mode == "server":
            address = args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
            failed = f"vllm_mode: server: no vLLM server could be used at {address}"
            works = f"Start one: {SERVE.format(model if isinstance(model, str) else 'MODEL')}"
        else:
            failed = "vllm_mode: colocate: vLLM could not start in the trainer's process"
            longest = args.vllm_max_model_length or "not set, so the model's own limit"
            works = (
                f"Its part of the memory is vllm_gpu_memory_utilization: {args.vllm_gpu_memory_utilization:g}, its "
                f"longest sequence vllm_max_model_length: {longest}"
            )
        raise EngineError(f"{failed} ({in_one_line(error)}). {works}. Or without vLLM: use_vllm: false") from error


def _of_vllm(error: BaseException) -> bool:
    """Whether an error came out of what TRL starts vLLM, or speaks to its server, with."""
    engine = (cast(Any, of_trl).VLLMGeneration, VLLMClient)  # as TRL's trainer knows it
    return any(isinstance(frame.f_locals.get("self"), engine) for frame, _ in walk_tb(error.__traceback__))


@contextmanager
def failures_named(trainer: Any) -> Iterator[None]:
    """A context around what vLLM does for a trainer: its failure names the last checkpoint and how to go on from it."""
    try:
        yield
    except Exception as error:  # of its engine, its workers, or the connection to its server
        step, folder = trainer.state.global_step, trainer.last_checkpoint
        if folder is not None:
            script = f"trainer.train(resume_from_checkpoint='{folder}')"
            then = f"The run's last checkpoint is {folder}: go on with dppo train CONFIG.yaml --resume, or {script}"
        elif trainer.args.save_strategy == "no":
            then = "Nothing was saved, since save_strategy is no"
        else:
            then = "No checkpoint had been written: start the run again, with a lower save_steps"
        raise EngineError(f"step {step}: vLLM failed while it generated ({in_one_line(error)}). {then}.") from error


def weights_mismatch(weights: Sequence[float] | None, rewards: int) -> str:
    """What is wrong with a number of ``reward_weights`` that is not that of ``rewards``; empty where it is."""
    if weights is None or len(weights) == rewards:
        return ""
    return (
        f"reward_weights={list(weights)} must have one number for each of {rewards} reward functions. Try "
        f"reward_weights: {[1.0] * rewards}, or leaving it out."
    )


def guarded_rewards(reward_funcs: Any, args: Any, data: Any) -> Any:
    """Reward functions that are checked when they are called; models and names of models as they are.

    ``args`` is a ``DPPOConfig``, ``data`` the training set or None.
    """
    functions = reward_funcs if isinstance(reward_funcs, list | tuple) or reward_funcs is None else [reward_funcs]
    for function in functions or ():
        check("reward_funcs", function, str | Callable, "reward_funcs=[my_reward]")
    if functions is not None and (wrong := weights_mismatch(args.reward_weights, len(functions))):
        raise ConfigError(wrong)
    columns = {*(getattr(data, "column_names", None) or ())} if args.remove_unused_columns else set()
    return functions and [
        guarded(function, args.reward_time_limit, columns - KEPT)
        if callable(function) and not isinstance(function, torch.nn.Module)
        else function
        for function in functions
    ]
