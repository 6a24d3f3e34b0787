"""What is served of TRL: the versions, the ranges of its fields, and the options refused, with what to use instead."""

from collections.abc import Mapping
from types import MappingProxyType

import trl
from packaging.version import Version
from trl.trainer.grpo_config import GRPOConfig

from dppo.errors import ConfigError

OLDEST, BEFORE = Version("1.16"), Version("1.17")
"""The supported range of TRL, tested at the version in constraints.txt: our hooks are private and may change."""

RANGES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("learning_rate", "weight_decay", "adam_epsilon", "warmup_steps", "epsilon_high"), "[0, inf)"),
        **dict.fromkeys(("adam_beta1", "adam_beta2"), "[0, 1)"),
        **dict.fromkeys(("num_train_epochs", "logging_steps", "save_steps", "eval_steps"), "(0, inf)"),
        **dict.fromkeys(("temperature", "repetition_penalty"), "(0, inf)"),
        **dict.fromkeys(("top_p", "vllm_gpu_memory_utilization"), "(0, 1]"),
        **dict.fromkeys(("min_p", "ref_model_mixup_alpha", "top_entropy_quantile"), "[0, 1]"),
        **dict.fromkeys(("max_steps", "top_k"), "[-1, inf)"),
        **dict.fromkeys(("seed", "data_seed", "dataloader_num_workers"), "[0, inf)"),
        **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), "[1, inf)"),
        **dict.fromkeys(("max_completion_length", "num_iterations", "num_generations_eval"), "[1, inf)"),
        **dict.fromkeys(("gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"), "[1, inf)"),
        **dict.fromkeys(("num_generations", "ref_model_sync_steps"), "[1, inf)"),
        "max_grad_norm": "[0, inf]",  # inf: never clipped
        "delta": "(0, inf]",
        "router_aux_loss_coef": "[0, inf)",
        "off_policy_mask_threshold": "[-inf, inf]",
    }
)
"""Interval of fields of TRL and transformers that neither checks: a run would die late, or train on nonsense."""
DEEPSPEED = (
    "DeepSpeed is not served: its engine steps inside backward, and a step here has several. Use DDP or FSDP2 "
    "(accelerate config)."
)
LIGER = "use_liger_kernel is deprecated in TRL. Use model_init_kwargs: {use_kernels: true}."


def check_trl_version(installed: str = trl.__version__) -> None:
    """Return when ``installed`` is in the supported range of TRL."""
    if not OLDEST <= Version(installed) < BEFORE:
        raise ConfigError(
            f"TRL {installed} is not supported: DPPOTrainer overrides private methods that were checked on "
            f"{OLDEST} <= TRL < {BEFORE} only. Install one: pip install 'trl>={OLDEST},<{BEFORE}'"
        )


def unsupported_options(args: GRPOConfig) -> list[str]:
    """One sentence per TRL option in ``args`` that would be silently wrong here; empty when all are served."""
    rules: list[tuple[bool, str]] = [
        (
            args.top_entropy_quantile < 1.0,
            f"top_entropy_quantile={args.top_entropy_quantile:g} takes its threshold over the tokens of the whole "
            "batch, most of which are not forwarded here. Use top_entropy_quantile: 1.0.",
        ),
        (
            args.use_adaptive_entropy,
            "use_adaptive_entropy moves its coefficient by the entropy of all completions, most of which are not "
            "forwarded here. Use a fixed coefficient: use_adaptive_entropy: false, entropy_coef: 0.01.",
        ),
        (args.use_liger_kernel, LIGER),
    ]
    return [sentence for wrong, sentence in rules if wrong]
