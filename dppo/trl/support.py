"""What the adapter serves: the TRL range, and every option it refuses, with the reason and what to use instead."""

from typing import TYPE_CHECKING, Any

import trl
from packaging.version import Version

from dppo.errors import ConfigError

if TYPE_CHECKING:
    from dppo.trl.config import DPPOConfig

OLDEST, BEFORE = Version("1.16"), Version("1.17")
"""The supported range of TRL, tested at the version in constraints.txt: our hooks are private and may change."""

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo")


def check_trl_version(installed: str = trl.__version__) -> None:
    """Return when ``installed`` is in the supported range of TRL.

    Raises:
        ConfigError: naming the installed version, the range, and the command that installs one from it.
    """
    if not OLDEST <= Version(installed) < BEFORE:
        raise ConfigError(
            f"TRL {installed} is not supported: DPPOTrainer overrides private methods that were checked on "
            f"{OLDEST} <= TRL < {BEFORE} only. Install one: pip install 'trl>={OLDEST},<{BEFORE}'"
        )


def unsupported_options(args: "DPPOConfig") -> list[str]:
    """One sentence per TRL option in ``args`` that would be silently wrong here; empty when all are served.

    Each of these needs the full, unpruned batch, or adds a term that pruning weights do not reach.
    """
    steps, accumulation = args.steps_per_generation or 1, args.gradient_accumulation_steps
    rules: list[tuple[bool, str]] = [
        (
            args.loss_type not in LOSS_TYPES,
            f"loss_type={args.loss_type!r} is not served; use one of {', '.join(map(repr, LOSS_TYPES))}.",
        ),
        (
            args.top_entropy_quantile < 1.0,
            f"top_entropy_quantile={args.top_entropy_quantile:g} takes its threshold over the whole batch, which "
            "pruning does not forward. Use top_entropy_quantile: 1.0.",
        ),
        (
            args.entropy_coef != 0.0 or args.use_adaptive_entropy,
            "an entropy bonus gives every completion a gradient that the scores do not see. "
            "Use entropy_coef: 0.0 and use_adaptive_entropy: false.",
        ),
        (
            args.off_policy_mask_threshold is not None,
            "off_policy_mask_threshold is not served. Leave it out; with vLLM, "
            "vllm_importance_sampling_mode: sequence_mask drops sequences that are far off policy.",
        ),
        (
            steps % accumulation != 0 and (accumulation % steps != 0 or args.num_iterations > 1),
            f"steps_per_generation={steps} and gradient_accumulation_steps={accumulation}: an optimizer step would mix "
            f"parts of two generations unevenly. Use steps_per_generation: {accumulation}.",
        ),
        (
            args.use_liger_kernel,
            "use_liger_kernel is deprecated in TRL. Use model_init_kwargs: {use_kernels: true}.",
        ),
    ]
    return [sentence for wrong, sentence in rules if wrong]


def check_model(trainer: Any) -> None:
    """Return when the loaded model is of a kind the adapter serves.

    Raises:
        ConfigError: for DeepSpeed, vision-language models, an adapter on the head, and a mixture of experts with a
            router loss.
    """
    if trainer.is_deepspeed_enabled:
        raise ConfigError(
            "DeepSpeed is not served: its engine steps inside backward, and a step here has several. "
            "Use DDP or FSDP2 (accelerate config)."
        )
    if trainer._is_vlm:
        raise ConfigError(
            "vision-language models are not served by DPPOTrainer yet. Use trl.GRPOTrainer for this model."
        )
    if hasattr(trainer.accelerator.unwrap_model(trainer.model).get_output_embeddings(), "base_layer"):
        raise ConfigError(
            "the adapter covers lm_head, which the fused head scores by its own weight: the adapter would never train. "
            "Take lm_head out of target_modules, or train it in full: modules_to_save=['lm_head']."
        )
    if trainer.aux_loss_enabled:
        raise ConfigError(
            "this mixture-of-experts model adds a router loss over the whole batch, which pruning would change. "
            "Train without it: router_aux_loss_coef: 0.0"
        )
