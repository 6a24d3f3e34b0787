"""Ranges of fields of TRL and transformers that neither checks: a run would die late, or train on nonsense."""

from collections.abc import Mapping
from numbers import Real
from types import MappingProxyType
from typing import Any

RANGES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("learning_rate", "weight_decay", "adam_epsilon", "warmup_steps"), "[0, inf)"),
        **dict.fromkeys(("adam_beta1", "adam_beta2"), "[0, 1)"),
        **dict.fromkeys(("num_train_epochs", "logging_steps", "save_steps", "eval_steps"), "(0, inf)"),
        **dict.fromkeys(("temperature", "repetition_penalty"), "(0, inf)"),
        **dict.fromkeys(("top_p", "vllm_gpu_memory_utilization"), "(0, 1]"),
        **dict.fromkeys(("min_p", "ref_model_mixup_alpha"), "[0, 1]"),
        **dict.fromkeys(("max_steps", "top_k"), "[-1, inf)"),
        **dict.fromkeys(("seed", "data_seed", "dataloader_num_workers"), "[0, inf)"),
        **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), "[1, inf)"),
        **dict.fromkeys(("max_completion_length", "num_iterations", "num_generations_eval"), "[1, inf)"),
        "ref_model_sync_steps": "[1, inf)",
        "max_grad_norm": "[0, inf]",  # inf: never clipped
    }
)
"""Interval of each; None, where a field allows it, is in every range."""


def range_problems(args: Any) -> list[str]:
    """One sentence per field of ``RANGES`` that is a number out of its range; empty when there is none.

    Args:
        args: a ``DPPOConfig``, or TRL's own ``GRPOConfig``.
    """
    problems = []
    for name, interval in RANGES.items():
        value, default = getattr(args, name), getattr(type(args), name)
        if isinstance(value, Real) and not isinstance(value, bool) and not _within(float(value), interval):
            advice = "leaving it out" if default is None else f"{name}: {default:g}"
            problems.append(f"{name}={value:g} must be in {interval}. Try {advice}.")
    return problems


def _within(value: float, interval: str) -> bool:
    """Whether a number is in an interval such as ``[0, 1)``; NaN is in none."""
    low, high = map(float, interval[1:-1].split(", "))
    above = low <= value if interval[0] == "[" else low < value
    return above and (value <= high if interval[-1] == "]" else value < high)
