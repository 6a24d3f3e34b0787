"""What is checked about our fields before anything is loaded: ranges, choices, and what contradicts the method."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

from dppo.methods import METHODS, Method
from dppo.objective import ADVANTAGE_RULES, clipped_surrogate
from dppo.settings import FULL_SHARE
from dppo.step.asked import CHOICES, choice_problems, rate_problems, unread_problems
from dppo.trl.grpo.difficulty import difficulty_problems
from dppo.trl.grpo.objective import LOSS_TYPES, RATIOS, SETTINGS, WORDS, advantage_rules, fields_of, unnamed_parts
from dppo.typed import mismatch

DEFAULT_METHOD = "dppo"
"""What prunes where no method is named: then the objective is that of TRL's own defaults."""

AT_LEAST: dict[str, float] = dict.fromkeys(("epsilon", "epsilon_high", "beta", "max_rounds", "record_completions"), 0)
AT_LEAST |= dict.fromkeys(
    ("gradient_accumulation_steps", "steps_per_generation", "generation_batch_size", "num_generations"), 1
)
ABOVE: dict[str, float] = {"advantage_power": -1}
ABOVE |= dict.fromkeys(("history_half_life", "max_tokens_per_row", "reward_time_limit", "round_factor", "delta"), 0)
OF_TRL = ("num_iterations", "num_generations", "max_completion_length", "per_device_train_batch_size", "entropy_coef")
OF_TRL += ("router_aux_loss_coef", "off_policy_mask_threshold", "top_entropy_quantile")
"""Fields of TRL that are read here, beside those above."""


def value_problems(args: Any, own: Iterable[str]) -> list[str]:
    """One sentence per field of another type than its annotation's, or out of range; empty when there is none."""
    hints, problems = get_type_hints(type(args)), []
    for name in dict.fromkeys((*own, *AT_LEAST, *ABOVE, *OF_TRL)):
        value, default = getattr(args, name), getattr(type(args), name)
        if value is default or (name == "scale_rewards" and isinstance(value, bool)):
            continue  # left out; or as TRL reads it
        advice = "leaving it out." if default is None else f"{name}: {default}."
        if wrong := mismatch(name, value, hints[name], advice):
            problems.append(wrong)
        elif name in AT_LEAST and not AT_LEAST[name] <= value < math.inf:
            problems.append(f"{name}={value:g} must be >= {AT_LEAST[name]}. Try {advice}")
        elif name in ABOVE and not ABOVE[name] < value <= math.inf:
            problems.append(f"{name}={value:g} must be greater than {ABOVE[name]}. Try {advice}")
    return problems


def read_rate(rate: Any) -> Any:
    """A rate as a number where it is one in words, as flags have it; anything else as it is."""
    try:
        return float(rate) if isinstance(rate, str) else rate
    except ValueError:
        return rate


def contradictions(method: str, given: dict[str, Any]) -> list[str]:
    """One sentence per field that says another objective than the method's own; empty where there is none."""
    own, any_objective = fields_of(METHODS[method]), "dppo" if METHODS[method].completions.rate else "grpo"
    other = f"or name a method that works on any objective: method: {any_objective}."
    return [
        f"method={method!r} has an objective of its own, {name}: {own[name]}, and {name}={given[name]!r} is another. "
        f"Leave {name} out, {other}"
        for name in SETTINGS
        if name in own and name in given and given[name] != own[name]
    ] + [
        f"method={method!r} brings its own {part}, which TRL's fields do not describe, so {name}={given[name]!r} would "
        f"change nothing of it. Leave {name} out, {other}"
        for name, part in unread_by(METHODS[method], given).items()
        if name in given
    ]


def unread_by(method: Method, given: Mapping[str, Any]) -> dict[str, str]:
    """Fields of TRL that say nothing of a method, and the part of its own, in words, that each would describe.

    Args:
        method: of the run.
        given: fields by name. ``loss_type`` says two things, so it may be read in part: of a method that brings its
            token loss and not its normaliser, only one that names no other loss than the usual is.
    """
    parts = unnamed_parts(method)
    found = {name: part.replace("_", " ") for part in parts for name in WORDS.get(part, ())}
    loss, _ = LOSS_TYPES.get(given.get("loss_type", ""), (clipped_surrogate, None))
    if "token_loss" in parts and loss is not clipped_surrogate:
        found["loss_type"] = "token loss"
    return found


def field_problems(args: Any) -> list[str]:
    """One sentence per field that is out of range or contradicts the method; empty when there is none."""
    problems = _choice_problems(args) + difficulty_problems(args) + _value_problems(args)
    base = METHODS.get(args.method)
    if base is not None:
        problems += rate_problems(args, base) + unread_problems(args, base) + _round_problems(args, base)
    if not 0 <= args.prune_until <= 1:
        problems.append(f"prune_until={args.prune_until:g} must be in [0, 1]. Try prune_until: {FULL_SHARE}.")
    return problems


def _value_problems(args: Any) -> list[str]:
    """What is missing or unread of values estimated before training, and of the reference they go with."""
    base, problems = METHODS.get(args.method), []
    if base is None:
        return problems
    if base.needs_reference and not args.beta:
        problems.append(
            f"method={args.method!r} regresses on the log-ratio to a reference, times beta, and beta=0. Write beta: "
            f"{base.beta:g}, or leave it out."
        )
    rule, given = base.advantages, args.prompt_values
    if rule.from_values and given is None:
        problems.append(
            f"method={args.method!r} needs the value of every prompt. Set prompt_values: FILE, and let dppo values "
            "CONFIG.yaml write that file before training."
        )
    if given is not None and not (rule.from_values or rule.from_history):
        problems.append(f"method={args.method!r} has no use for prompt_values={given!r}. Leave it out.")
    if given is not None and args.difficulty_features is not None:
        problems.append(
            "prompt_values and difficulty_features are two priors of the same prompts. Leave difficulty_features out."
        )
    return problems


def _choice_problems(args: Any) -> list[str]:
    choices = CHOICES | {
        "layout": ("rows", "packed", "auto", "padded"),
        "loss_type": LOSS_TYPES,
        "importance_sampling_level": RATIOS,
        "scale_rewards": ADVANTAGE_RULES,
        "multi_objective_aggregation": sorted(
            {rule.settings.get("multi_objective_aggregation", "sum_then_normalize") for rule in advantage_rules()},
            reverse=True,
        ),
    }
    return choice_problems(args, choices)


def _round_problems(args: Any, base: Method) -> list[str]:
    given = {name: getattr(args, name) for name in ("max_rounds", "round_factor")}
    return [
        f"method={args.method!r} has no rounds, but {name}={value:g}. Leave it out, or use method='dapo'."
        for name, value in given.items()
        if value is not None and base.rounds is None
    ]
