"""Versions, ranges of fields, options, models and overrides of methods of TRL that are served; others are refused.

A test compares ``REFUSED``, and the served methods in ``tests/trl/trl_methods.json``, with all that TRL defines.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import trl
from datasets import Dataset
from transformers.training_args import OptimizerNames
from trl.data_utils import is_conversational

from dppo.environment import check_version
from dppo.errors import ConfigError, raise_problems
from dppo.hooked import changed
from dppo.methods import Method

OLDEST, OLDEST_ASYNC, BEFORE = "1.15", "1.16", "1.17"
"""The supported range of TRL, tested at both ends: our hooks use private names. The asynchronous trainer changed."""
HOOKED = Path(__file__).with_name("hooked.json")
"""Methods of TRL that we rely on. Those that transformers has are not among them: its range is in pyproject.toml."""

RANGES: Mapping[str, str] = {
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
"""Intervals of fields that TRL and transformers do not check: a run would fail late, or train on nonsense."""


def ranges_of(args: Any) -> dict[str, str]:
    """``RANGES`` without fields that are off, and without epochs if steps are counted."""
    off = {name for name in ("top_k", "top_p", "min_p", "repetition_penalty") if getattr(args, name, 0) is None}
    off |= {f"{each}_steps" for each in ("save", "eval", "logging") if getattr(args, f"{each}_strategy", "") == "no"}
    if isinstance(args.max_steps, int) and args.max_steps > 0:
        off.add("num_train_epochs")
    return {name: interval for name, interval in RANGES.items() if name not in off}


DEEPSPEED = "DeepSpeed is not served: its engine steps inside backward. Use DDP or FSDP2 (accelerate config)."


def check_trl_version(installed: str = trl.__version__, *, experimental: bool = False) -> None:
    """Raise ``ConfigError`` for a TRL before the tested range, or after it if a method that we rely on has changed.

    ``experimental``: the methods of its asynchronous trainer in place of the others.
    """
    oldest = OLDEST_ASYNC if experimental else OLDEST
    of_part = partial(changed, HOOKED, lambda path: path.startswith("trl.experimental.") == experimental)
    check_version("trl", installed, oldest=oldest, before=BEFORE, changed=of_part)


def unsupported_options(args: Any) -> list[str]:
    """One sentence per TRL option in ``args`` that would be silently wrong here; empty if all are served."""
    # A quantile below 1 is a threshold over all tokens of the batch, of one policy.
    whole, begins = args.top_entropy_quantile >= 1.0, f"top_entropy_quantile={args.top_entropy_quantile:g}"
    one_step = args.num_iterations == 1 and args.steps_per_generation == args.gradient_accumulation_steps
    served = served_in_rows(args) | {
        f"{begins} has its threshold over the tokens of all prompts, and some are not rolled out. Write "
        "prompt_prune_rate: 0.": whole or not args.prompt_prune_rate,
        f"{begins} is by entropies of the policy that generated: each generation is trained on in one optimizer step. "
        "Write num_iterations: 1, and leave steps_per_generation out.": whole or one_step,
        f"{begins} with an entropy bonus is not served. Write entropy_coef: 0.": whole or not args.entropy_coef,
        "use_adaptive_entropy needs the entropies of all completions, most of which are not forwarded here. Use a "
        "fixed coefficient: use_adaptive_entropy: false, entropy_coef: 0.01.": not args.use_adaptive_entropy,
    }
    return [sentence for sentence, fine in served.items() if not fine]


def served_in_rows(args: Any) -> dict[str, bool]:
    """By the sentence that refuses an option of transformers in dense rows, True if its value is served."""
    optimizer = OptimizerNames(args.optim).value
    return {
        "neftune_noise_alpha: its noise is scaled by the length of a batch, which a dense row changes. Leave it out.": (
            args.neftune_noise_alpha is None
        ),
        f"optim={optimizer!r} steps inside backward, and a step here has several. Use optim: adamw_torch.": (
            "lomo" not in optimizer and "layerwise" not in optimizer
        ),
        "use_liger_kernel is deprecated in TRL. Use model_init_kwargs: {use_kernels: true}.": not args.use_liger_kernel,
    }


def check_processes(trainer: Any) -> None:
    """Raise ``ConfigError`` for DeepSpeed, and for processes that share completions or rows."""
    if trainer.is_deepspeed_enabled:
        raise ConfigError(DEEPSPEED)
    if trainer.get_tp_size() * trainer.get_cp_size() * trainer.get_sp_size() > 1:
        parallelism = "tensor, context and sequence parallelism are not served"
        raise ConfigError(f"{parallelism}. Use DDP or FSDP2 (accelerate config).")


LOADER = ("get_train_dataloader", "_get_train_sampler", "get_batch_samples")
"""Methods that give a step its examples; with a streamed dataset TRL's are used."""

_LOSS_OF_ROWS = "each drawn sequence has a weight in the loss. Override loss_and_scores, or use TRL's own trainer."
_OF_ROWS = dict.fromkeys(
    ("get_train_dataloader", "get_batch_samples", "_prepare_inputs"),
    "only drawn rows are read. Override _get_train_sampler for another order, or change the dataset.",
) | {"compute_loss": _LOSS_OF_ROWS}

REFUSED: Mapping[str, Mapping[str, str]] = {
    "GRPOTrainer": {
        "_generate_and_score_completions": "advantages are of whole groups, before any completion is dropped. Override "
        "_calculate_rewards, or give a method its own advantages: dppo docs extending.",
        "_get_per_token_logps_and_entropies": "log-probabilities are those of packed rows, by the model's own forward. "
        "Set layout: padded and change the model's forward.",
        "_prepare_inputs": "a call of the loss trains on completions that were drawn. Change examples in the dataset, "
        "and completions in _generate or a rollout_func.",
        **dict.fromkeys(
            ("compute_loss", "_compute_loss", "get_off_policy_mask", "get_gamma_weights"),
            "the method has the loss. Set loss_type, or give a method its own token_loss: dppo docs extending.",
        ),
        **dict.fromkeys(
            LOADER,
            "prompts are in an order of seed and epoch. Put the dataset in order and set shuffle_dataset: false.",
        ),
    },
    "SFTTrainer": _OF_ROWS,
    "DPOTrainer": _OF_ROWS | {"_compute_loss": _LOSS_OF_ROWS},
}
"""By trainer of TRL and method, why an override would be ignored, and what to use instead."""


def check_overrides(kind: type, *, streamed: bool = False) -> None:
    """Raise ``ConfigError`` for overrides of a class of trainers that would have no effect."""
    classes = kind.__mro__
    base = next(each for each in classes if each.__name__ in REFUSED and each.__module__.startswith("trl."))
    libraries = ("dppo", "trl", "transformers")
    own = [each for each in classes[: classes.index(base)] if each.__module__.split(".")[0] not in libraries]
    refused = {name: why for name, why in REFUSED[base.__name__].items() if not (streamed and name in LOADER)}
    ignored = [(each.__name__, name) for each in own for name in refused if name in vars(each)]
    raise_problems(kind.__name__, [f"{each}.{name} would be ignored: {refused[name]}" for each, name in ignored])


def unserved_models(trainer: Any) -> Iterator[str]:
    """Reasons why a loaded model is not served, one sentence each; none if it is."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if trainer._is_vlm and trainer.tools:
        yield "tools are not served with a vision-language model: their answers may be pictures. Leave tools out."
    if trainer._is_vlm and trainer.is_fsdp_enabled:
        yield (
            "FSDP is not served with a vision-language model: ranks whose completions have no picture would not call "
            "the vision tower. Use DDP (accelerate config)."
        )
    if hasattr(model.get_output_embeddings(), "base_layer"):
        yield (
            "the adapter covers lm_head, and the fused head uses the weight below it: it would never train. Remove "
            "lm_head from target_modules, or write modules_to_save=['lm_head']."
        )
    if trainer._tokenizer.eos_token_id is None:
        yield "the tokenizer has no end-of-sequence token. Set one of its own: tokenizer.eos_token = '<|endoftext|>'."
    if trainer.rollout_func is None and isinstance(data := trainer.train_dataset, Dataset):
        template = trainer.chat_template or getattr(trainer.processing_class, "chat_template", None)
        first = data[0].get("prompt") if template is None and len(data) else None
        if is_conversational({"prompt": first}):
            texts = "dataset.map(lambda row: {'prompt': row['prompt'][-1]['content']})"
            yield f"prompts are conversations, and the tokenizer has no chat template. Set it, or write {texts}."


def unserved_tokens(trainer: Any, method: Method, log_probs: bool) -> Iterator[str]:
    """Reasons why tokens cannot be left out of completions in this run, one sentence each; none if they can."""
    level, mode = method.tokens, trainer.vllm_importance_sampling_mode
    if level.needs_log_probs and not log_probs:
        instead = "Set use_vllm: true, or token_prune_rate: 0 and head_prune_rate: 0"
        yield f"token pruning ({level}) needs the sampler's log-probabilities: generate gives none. {instead}."
    corrected = trainer.use_vllm and trainer.vllm_importance_sampling_correction
    if level.active and corrected and mode.startswith("sequence"):
        yield f"vllm_importance_sampling_mode={mode!r} needs all tokens of a completion. Set it to token_truncate."
