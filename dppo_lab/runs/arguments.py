"""The arguments of a run: what to train on, TRL's and our training fields, and the model."""

from dataclasses import dataclass, fields
from typing import Generic

from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.model_config import ModelConfig
from typing_extensions import TypeVar

from answer_judge.sandbox import Limits
from dppo.trl.grpo.config import DPPOConfig
from dppo_lab.runs.fields import RunArguments


def program_limits(data: RunArguments) -> Limits:
    """The limits of one program that the model wrote."""
    return Limits.of(data.program_cpu_seconds, data.program_memory_mb)


Config = TypeVar("Config", bound=GRPOConfig, default=DPPOConfig, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Run(Generic[Config]):
    """The parsed arguments of one run, with our trainer or, as a ``Run[GRPOConfig]``, with TRL's own."""

    data: RunArguments
    training: Config
    model: ModelConfig
    without_gpu: bool = False
    """True for a dry run on a machine without a GPU: settings for one cannot be checked there."""

    @property
    def sampler_log_probs(self) -> bool:
        """Whether rollouts bring the log-probabilities that the ``confidence`` score needs."""
        return self.training.use_vllm or self.data.rollout_func is not None


AnyRun = Run[GRPOConfig]


TRAINING_OURS = {f.name for f in fields(DPPOConfig)} - {f.name for f in fields(GRPOConfig)}
"""Training fields that TRL's own trainer does not have."""
OURS = {f.name for f in fields(RunArguments)} | TRAINING_OURS
