"""TRL's words for an objective: from fields of ``GRPOConfig`` to the parts of a ``Method``, and back."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

from trl.trainer.grpo_config import GRPOConfig

from dppo.methods import METHODS, Method, Part
from dppo.objective import ADVANTAGE_RULES, DAPO_TOKENS, GRPO_MEAN, NORMALISERS, Normaliser, losses

LOSSES: Mapping[str, tuple[losses.TokenLoss, Normaliser]] = {
    "cispo": (losses.cispo, DAPO_TOKENS),
    "sapo": (losses.sapo, GRPO_MEAN),
    "vespo": (losses.vespo, DAPO_TOKENS),
}
LOSS_TYPES = {name: (losses.clipped_surrogate, each) for name, each in NORMALISERS.items()} | LOSSES
"""TRL's ``loss_type`` names the loss of a token and the denominator; most words have the usual loss."""
RATIOS: Mapping[str, losses.Ratio] = {"token": losses.token_ratio, "sequence": losses.sequence_ratio}
"""By TRL's ``importance_sampling_level``."""
FIELDS: Mapping[losses.TokenLoss, Mapping[str, str]] = {
    losses.clipped_surrogate: {"clip_low": "epsilon", "clip_high": "epsilon_high", "delta": "delta"},
    losses.cispo: {"ratio_max": "epsilon_high"},
    losses.sapo: {name: f"sapo_{name}" for name in ("temperature_pos", "temperature_neg")},
    losses.vespo: {name: f"vespo_{name}" for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")},
}
"""Fields with the constants of each loss."""
OBJECTIVE: Mapping[str, str] = {
    **dict.fromkeys(("scale_rewards", "multi_objective_aggregation"), "advantages"),
    **dict.fromkeys(("importance_sampling_level", "off_policy_mask_threshold"), "token_loss"),
    **{field: "token_loss" for names in FIELDS.values() for field in names.values()},
    **{"loss_type": "normaliser", "use_bias_correction_kl": "kl"},
    **{"beta": "beta", "entropy_coef": "entropy_coef", "router_aux_loss_coef": "router_coef"},
}
"""Fields of TRL that describe an objective, with the part of a ``Method`` that each belongs to."""
SETTINGS = ("loss_type", "importance_sampling_level", "scale_rewards", "multi_objective_aggregation")
"""Fields that choose the objective: other values than those of a method's own objective contradict it."""


def fields_of(method: Method, parts: Collection[Part] | None = None) -> dict[str, Any]:
    """TRL's fields for parts of a method's objective, as far as there are fields; default: the parts that it fixes."""
    parts = method.fixes if parts is None else parts
    found: dict[str, Any] = dict(method.advantages.settings) if "advantages" in parts else {}
    if "normaliser" in parts and method.normaliser.name in NORMALISERS:
        found["loss_type"] = method.normaliser.name
    if "token_loss" in parts:
        found |= _loss_fields(method.token_loss)
    if "kl" in parts and losses.bound(method.kl)[1].get("ratio") is not None:
        found["use_bias_correction_kl"] = True
    coefficients = {name: getattr(method, OBJECTIVE[name]) for name in ("beta", "entropy_coef", "router_aux_loss_coef")}
    return found | {name: value for name, value in coefficients.items() if value}


def _loss_fields(loss: losses.TokenLoss) -> dict[str, Any]:
    function, constants = losses.bound(loss)
    found: dict[str, Any] = {}
    if function is losses.off_policy_masked:
        found["off_policy_mask_threshold"] = constants["threshold"]
        function, constants = losses.bound(constants["loss"])
    for name, (known, _) in LOSSES.items():
        if known is function:
            found["loss_type"] = name
    named = [names for known, names in FIELDS.items() if known is function]
    levels = [name for name, known in RATIOS.items() if known is constants.get("ratio", losses.token_ratio)]
    if not (named and levels):
        return found
    own = {field: constants[name] for name, field in named[0].items() if constants[name] is not None}
    return found | {"importance_sampling_level": levels[0]} | own


def objective_of(args: Any, model_config: Any = None) -> dict[str, Any]:
    """The fields of a ``Method`` that the fields of a ``GRPOConfig`` describe."""
    function, normaliser = LOSS_TYPES[args.loss_type]
    ratio, given = RATIOS[args.importance_sampling_level], dict(vars(args))
    if args.epsilon_high is None:
        given["epsilon_high"] = args.epsilon
    constants = {name: given[field] for name, field in FIELDS[function].items()}
    loss = partial(function, **({"ratio": ratio} if "ratio" in losses.bound(function)[1] else {}), **constants)
    if args.off_policy_mask_threshold is not None:
        loss = partial(losses.off_policy_masked, loss=loss, threshold=args.off_policy_mask_threshold)
    rules = [*ADVANTAGE_RULES.values(), *(method.advantages for method in METHODS.values())]
    return {
        "advantages": next(rule for rule in rules if rule.settings and rule.settings.items() <= given.items()),
        "token_loss": loss,
        "normaliser": normaliser,
        "beta": args.beta,
        "kl": partial(losses.k3, ratio=ratio) if args.use_bias_correction_kl else losses.k3,
        "entropy_coef": args.entropy_coef,
        "router_coef": router_coef(args.router_aux_loss_coef, model_config),
    }


def router_coef(given: float | None, model_config: Any) -> float:
    """The coefficient of the router loss, as in TRL: the model's own if none is given; 0 without experts."""
    if model_config is None:
        return given or 0.0
    config = model_config.get_text_config()
    if not hasattr(config, "output_router_logits"):
        return 0.0
    return getattr(config, "router_aux_loss_coef", 0.0) if given is None else given


def unnamed_parts(method: Method) -> dict[str, Any]:
    """The parts of an objective that are a method's own and that no fields of TRL describe."""
    # Converted to TRL's fields and back: parts that come back different have no fields.
    there = {field.name: field.default for field in fields(GRPOConfig)} | fields_of(method)
    made = objective_of(SimpleNamespace(**there))
    own = {part: getattr(method, part) for part in method.fixes}
    return {part: value for part, value in own.items() if _comparable(made[part]) != _comparable(value)}


def _comparable(part: Any) -> Any:
    return losses.bound(part) if isinstance(part, partial | FunctionType) else part


def unread_by(method: Method, given: Mapping[str, Any]) -> dict[str, str]:
    """Fields of TRL that the method does not use, each with the part of the method that takes its place.

    A method with its own token loss may use ``loss_type`` for the normaliser, unless it names another loss.
    """
    parts = unnamed_parts(method)
    found = {name: part.replace("_", " ") for name, part in OBJECTIVE.items() if part in parts}
    if "token_loss" in parts and given.get("loss_type") in LOSSES:
        found["loss_type"] = "token loss"
    return found


def contradictions(method: Method, given: Mapping[str, Any]) -> list[str]:
    """One sentence per field in ``given`` that describes another objective than a preset's; empty if there is none."""
    own, any_objective = fields_of(method), "dppo" if method.completions.rate else "grpo"
    other = f"or name a method that works on any objective: method: {any_objective}."
    return [
        f"method={method.name!r} has an objective of its own, {name}: {own[name]}, and {name}={given[name]!r} is "
        f"another. Leave {name} out, {other}"
        for name in SETTINGS
        if name in own and name in given and given[name] != own[name]
    ] + [
        f"method={method.name!r} brings its own {part}, which TRL's fields do not describe, so {name}={given[name]!r} "
        f"would change nothing of it. Leave {name} out, {other}"
        for name, part in unread_by(method, given).items()
        if name in given
    ]
