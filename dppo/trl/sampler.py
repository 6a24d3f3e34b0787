"""What TRL leaves unsaid of vLLM: that it samples in another precision than the trainer's, and that it has died."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dppo.errors import EngineError, in_one_line


def precision_line(trainer: Any) -> str | None:
    """What to say at start where vLLM computes in another precision than the trainer; None where it does not.

    TRL gives the ``LLM`` of ``vllm_mode: colocate`` no dtype, and vLLM takes a float32 model down to bfloat16.

    Args:
        trainer: with ``use_vllm``; its main process, which is the one that knows a server.
    """
    ours, theirs = _trained_in(trainer), _sampled_in(trainer)
    if ours == theirs:
        return None
    alike = {"bfloat16": "set bf16: true, or ", "float16": "set fp16: true, or "}.get(theirs, "")
    server = trainer.vllm_mode == "server"
    mended = f"start the server with --dtype {ours}" if server else f"sample in {ours} by the line in docs/vllm.md"
    return (
        f"the trainer computes in {ours}, vLLM samples in {theirs}: their log-probabilities differ with the same "
        f"weights, too (sampling/sampling_logp_difference/mean). To mend it, {alike}{mended}."
    )


def _trained_in(trainer: Any) -> str:
    """The precision of the trainer's forward passes."""
    under_autocast = {"bf16": "bfloat16", "fp16": "float16"}.get(trainer.accelerator.mixed_precision)
    model = trainer.accelerator.unwrap_model(trainer.model)
    return under_autocast or str(model.dtype).removeprefix("torch.")


def _sampled_in(trainer: Any) -> str:
    """The precision of vLLM's."""
    engine = trainer.vllm_generation
    if trainer.vllm_mode == "server":
        dtype = engine.vllm_client.get_server_info()["model_config"]["dtype"]
    else:
        dtype = engine.llm.llm_engine.model_config.dtype
    return str(dtype).removeprefix("torch.")


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
