"""What is checked about the fields of a run on prompts beside each by itself: what contradicts the method."""

from collections.abc import Mapping
from typing import Any

from dppo.methods import METHODS, Method
from dppo.methods.settings import CHOICES, method_problems
from dppo.objective import ADVANTAGE_RULES, clipped_surrogate
from dppo.trl.grpo.difficulty import difficulty_problems
from dppo.trl.grpo.objective import LOSS_TYPES, RATIOS, SETTINGS, WORDS, fields_of, unnamed_parts

CHOICES_OF_TRL = CHOICES | {
    "loss_type": LOSS_TYPES,
    "importance_sampling_level": RATIOS,
    "scale_rewards": ADVANTAGE_RULES,
}
"""Fields that name a part of the method or of the objective, and the parts there are."""


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
    """One sentence per field that contradicts the method or another field; empty when there is none."""
    base = METHODS[args.method]
    return difficulty_problems(args) + _value_problems(args, base) + method_problems(args) + _round_problems(args, base)


def _value_problems(args: Any, base: Method) -> list[str]:
    """What is missing or unread of values estimated before training, and of the reference they go with."""
    problems = []
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


def _round_problems(args: Any, base: Method) -> list[str]:
    given = {name: getattr(args, name) for name in ("max_rounds", "round_factor")}
    return [
        f"method={args.method!r} has no rounds, but {name}={value:g}. Leave it out, or use method='dapo'."
        for name, value in given.items()
        if value is not None and base.rounds is None
    ]
