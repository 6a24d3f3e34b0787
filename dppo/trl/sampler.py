"""What TRL leaves unsaid of vLLM: that it samples more coarsely than the trainer computes, and that it has died."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dppo.errors import EngineError, in_one_line


def precision_line(trainer: Any) -> str | None:
    """What to say at start where vLLM computes more coarsely than the trainer; None where it does not.

    TRL gives the ``LLM`` of ``vllm_mode: colocate`` no dtype, and vLLM takes a float32 model down to bfloat16.

    Args:
        trainer: with ``use_vllm``; its main process, which is the one that knows a server.
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
    under_autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}
    mode = trainer.accelerator.mixed_precision
    return under_autocast[mode] if mode in under_autocast else trainer.accelerator.unwrap_model(trainer.model).dtype


def _sampled_in(trainer: Any) -> torch.dtype:
    """The precision of vLLM's."""
    engine = trainer.vllm_generation
    if trainer.vllm_mode == "server":
        name = engine.vllm_client.get_server_info()["model_config"]["dtype"]
        return getattr(torch, name.removeprefix("torch."))
    return engine.llm.llm_engine.model_config.dtype


@contextmanager
def failures_named(trainer: Any) -> Iterator[None]:
    """A context around what vLLM does for a trainer.

    Raises:
        EngineError: in place of whatever vLLM raised, which stays its cause: with the step, the run's last checkpoint
            and the line that goes on from it.
    """
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
