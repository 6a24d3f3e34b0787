"""What TRL leaves unsaid of vLLM: that it cannot start, samples more coarsely than the trainer, or has died."""

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any, cast

import torch
import trl.trainer.grpo_trainer as of_trl
from trl.generation.vllm_client import VLLMClient
from trl.trainer.grpo_config import GRPOConfig

from dppo.errors import EngineError, in_one_line
from dppo.trl.layouts import MIXED

SERVE = (
    'VLLM_SERVER_DEV_MODE=1 vllm serve {} --weight-transfer-config \'{{"backend": "nccl"}}\' '
    "--logprobs-mode processed_logprobs"
)
"""The server that TRL's client talks to: docs/vllm.md."""


def precision_line(trainer: Any) -> str | None:
    """What to say at start where vLLM computes more coarsely than the trainer; None where it does not.

    TRL gives the ``LLM`` of ``vllm_mode: colocate`` no dtype, and vLLM takes a float32 model down to bfloat16.
    """
    ours, theirs = _trained_in(trainer), _sampled_in(trainer)
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


def _trained_in(trainer: Any) -> torch.dtype:
    """The precision of the trainer's forward passes."""
    own: torch.dtype = trainer.accelerator.unwrap_model(trainer.model).dtype
    return MIXED.get(trainer.accelerator.mixed_precision, own)


def _sampled_in(trainer: Any) -> torch.dtype:
    """The precision of vLLM's."""
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
