"""What is checked about our fields before anything is loaded: ranges, choices, and what contradicts the method."""

import math
from typing import TYPE_CHECKING

from dppo.methods import METHODS, Method
from dppo.objective import ADVANTAGE_RULES
from dppo.pruning import DESIGNS, SCHEDULES, SCORES, above_lowest
from dppo.pruning.schedules import FULL_SHARE

if TYPE_CHECKING:
    from dppo.trl.config import DPPOConfig

AUTO = "auto"

NOT_OFFERED = {above_lowest}
"""Scores that belong to one rule."""

_DAPO = {"loss_type": "dapo"}
_GSPO = {"importance_sampling_level": "sequence", "loss_type": "grpo"}
NEEDED_FIELDS = {
    "gspo": _GSPO,
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": _DAPO,
    "dapo_loss": _DAPO,
    "cppo_trl": {"loss_type": "bnpo"},
    "cppo_verl": {"loss_type": "grpo"},
    "pods": {"completion_score": AUTO, "multi_objective_aggregation": "sum_then_normalize"},
    "dppo_dapo": _DAPO,
    "dppo_gspo": _GSPO,
    "dppo_threshold_dapo": _DAPO,
    "dppo_threshold_gspo": _GSPO,
}
"""Fields that a method of that name stands for: they must be set, since TRL's fields decide the loss."""


def field_problems(args: "DPPOConfig") -> list[str]:
    """One sentence per field of ``args`` that is out of range or contradicts the method; empty when there is none.

    Args:
        args: before anything is built from them.
    """
    problems = _choice_problems(args)
    rates = ("prompt_prune_rate", "completion_prune_rate")
    base = METHODS.get(args.method)
    if base is not None and not (base.completions.rate or base.prompts.rate):
        problems += [
            f"method={args.method!r} prunes nothing, but {name}={getattr(args, name):g}. "
            f"Use method='dppo', or {name}: 0."
            for name in rates
            if getattr(args, name)
        ]
    if base is not None:
        problems += _round_problems(args, base)
    if args.loss_type == "cispo" and args.importance_sampling_level == "sequence":
        problems.append("loss_type='cispo' is served per token only. Use importance_sampling_level: token.")
    for name, value in NEEDED_FIELDS.get(args.method, {}).items():
        if getattr(args, name) != value:
            problems.append(f"method={args.method!r} needs {name}: {value}, it is {getattr(args, name)!r}.")
    for name in rates:
        rate = getattr(args, name)
        if not 0 <= rate < 1:
            problems.append(f"{name}={rate:g} must be in [0, 1). To prune half, write {name}: 0.5.")
        elif args.prune_floor is not None and not 0 < args.prune_floor <= 1 - rate:
            problems.append(
                f"prune_floor={args.prune_floor:g} must be in (0, {1 - rate:g}], the share that {name}={rate:g} "
                f"keeps. Try prune_floor: {(1 - rate) / 2:g}."
            )
    if not 0 <= args.prune_until <= 1:
        problems.append(f"prune_until={args.prune_until:g} must be in [0, 1]. Try prune_until: {FULL_SHARE}.")
    if not -1 < args.advantage_power < math.inf:
        problems.append(f"advantage_power={args.advantage_power:g} must be > -1. Try advantage_power: 0.5.")
    if args.record_completions < 0:
        problems.append(f"record_completions={args.record_completions} must be >= 0. Try record_completions: 16.")
    if isinstance(args.max_tokens_per_row, float):
        problems.append(
            f"max_tokens_per_row={args.max_tokens_per_row:g} must be a whole number of tokens. "
            f"Try max_tokens_per_row: {max(1, round(args.max_tokens_per_row))}."
        )
    for name in ("history_half_life", "max_tokens_per_row", "reward_time_limit"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            problems.append(f"{name}={value:g} must be greater than 0. Leave it out for the default.")
    return problems


def _choice_problems(args: "DPPOConfig") -> list[str]:
    problems = []
    choices = {
        "method": METHODS,
        "prompt_mode": ("thin", "fill"),
        "layout": ("rows", "packed", "auto", "padded"),
        "completion_score": (AUTO, *(name for name, score in SCORES.items() if score not in NOT_OFFERED)),
        "prune_schedule": (AUTO, *SCHEDULES),
        "completion_budget": ("rows", "tokens"),
        "importance_sampling_level": ("token", "sequence"),
        "scale_rewards": ADVANTAGE_RULES,
        "sampling_design": [name for name, design in DESIGNS.items() if design.unbiased],
    }
    for name, allowed in choices.items():
        if getattr(args, name) not in allowed:
            problems.append(f"{name}={getattr(args, name)!r} is not one of {', '.join(map(repr, allowed))}.")
    return problems


def _round_problems(args: "DPPOConfig", base: Method) -> list[str]:
    given = {name: getattr(args, name) for name in ("max_rounds", "round_factor") if getattr(args, name) is not None}
    if base.rounds is None:
        return [
            f"method={args.method!r} has no rounds, but {name}={value:g}. Leave it out, or use method='dapo'."
            for name, value in given.items()
        ]
    problems = []
    if args.max_rounds is not None and args.max_rounds < 0:
        problems.append(f"max_rounds={args.max_rounds} must be >= 0, 0 for no limit. Try max_rounds: 10.")
    if args.round_factor is not None and not 0 < args.round_factor < math.inf:
        problems.append(f"round_factor={args.round_factor:g} must be greater than 0. Try round_factor: 1.0.")
    if args.scale_rewards == "batch" or args.multi_objective_aggregation == "normalize_then_sum":
        problems.append(
            f"method={args.method!r} needs advantages from each group alone, since rounds are scored one by one. "
            "Use scale_rewards: group and multi_objective_aggregation: sum_then_normalize."
        )
    return problems
