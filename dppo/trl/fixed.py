"""Fields of the arguments that a trainer reads at construction alone, so that a later change would do nothing."""

import copy
from dataclasses import fields
from typing import Any

from dppo.settings import TABLE

READ_LATER = {"max_tokens_per_row", "accept_missing", "record_completions"}
"""Settings of this library that are read at each use: a change has an effect."""
OF_TRL = {
    *("epsilon_high", "delta", "off_policy_mask_threshold", "use_bias_correction_kl", "router_aux_loss_coef"),
    *("sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg"),
    *("vespo_lambda_neg", "num_generations", "num_iterations", "steps_per_generation", "reward_weights"),
    *("beta", "loss_type", "loss_weights", "label_smoothing", "ld_alpha", "use_weighting"),
    *("f_divergence_type", "f_alpha_divergence_coef"),
}
"""Fields of TRL's GRPO and DPO that describe the objective. transformers changes others of its own during a run."""


def fixed_arguments(args: Any) -> dict[str, Any]:
    """Copies of the values of those fields, by name with ``args.`` in front."""
    ours = {each.name for each in fields(args) if each in TABLE} - READ_LATER
    return {f"args.{name}": copy.deepcopy(vars(args)[name]) for name in sorted((ours | OF_TRL) & vars(args).keys())}
