"""Conversion of an objective from the fields of ``GRPOConfig`` to the parts of a ``Method``, and back."""

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any, cast

from trl.trainer.grpo_config import GRPOConfig

from dppo.methods import METHODS, Method, Part
from dppo.objective import (
    ADVANTAGE_RULES,
    DAPO_TOKENS,
    GRPO_MEAN,
    NORMALISERS,
    AdvantageRule,
    Normaliser,
    Ratio,
    TokenLoss,
    cispo,
    clipped_surrogate,
    k3,
    off_policy_masked,
    sapo,
    sequence_ratio,
    token_ratio,
    vespo,
)
from dppo.objective.losses import bound

LOSS_TYPES: Mapping[str, tuple[TokenLoss, Normaliser]] = {
    **{name: (clipped_surrogate, normaliser) for name, normaliser in NORMALISERS.items()},
    "cispo": (cispo, DAPO_TOKENS),
    "sapo": (sapo, GRPO_MEAN),
    "vespo": (vespo, DAPO_TOKENS),
}
"""TRL's ``loss_type`` names two things: the loss of a token, and the denominator of sums."""
RATIOS: Mapping[str, Ratio] = {"token": token_ratio, "sequence": sequence_ratio}
"""By TRL's ``importance_sampling_level``."""
SETTINGS = ("loss_type", "importance_sampling_level", "scale_rewards", "multi_objective_aggregation")
"""Fields that choose the objective: other values than those of a method's own objective contradict it."""
CONSTANTS = ("epsilon", "epsilon_high", "beta", "entropy_coef", "router_aux_loss_coef")
"""Fields with numbers of the objective: a method has its paper's, and others may be set."""
WORDS = {
    "token_loss": ("importance_sampling_level", "epsilon", "epsilon_high", "delta", "off_policy_mask_threshold"),
    "advantages": ("scale_rewards", "multi_objective_aggregation"),
    "normaliser": ("loss_type",),
    "kl": ("use_bias_correction_kl",),
}
"""Fields that describe one part of an objective alone, by that part."""
PARTS: frozenset[Part] = frozenset(("advantages", "token_loss", "normaliser", "kl"))
"""Parts of an objective. A method of one's own fixes all of them."""
SHAPES = ("sapo_temperature_pos", "sapo_temperature_neg")
SHAPES += ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg")
"""Fields with the constants of TRL's other losses."""
OBJECTIVE = tuple(
    dict.fromkeys((*SETTINGS, *CONSTANTS, *(name for names in WORDS.values() for name in names), *SHAPES))
)
"""Fields of TRL that a method of one's own decides."""


def fields_of(method: Method) -> dict[str, Any]:
    """TRL's fields for those parts of an objective that a method fixes, as far as there are fields for them."""
    found: dict[str, Any] = dict(method.advantages.settings) if "advantages" in method.fixes else {}
    if "normaliser" in method.fixes and method.normaliser.name in NORMALISERS:
        found["loss_type"] = method.normaliser.name
    if "token_loss" in method.fixes:
        function, constants = bound(method.token_loss)
        if function is off_policy_masked:
            found["off_policy_mask_threshold"] = constants["threshold"]
            function, constants = bound(constants["loss"])
        named = [name for name, (known, _) in LOSS_TYPES.items() if known is function]
        if named and function is not clipped_surrogate:
            found["loss_type"] = named[0]
        levels = [name for name, known in RATIOS.items() if known is constants.get("ratio", token_ratio)]
        if named and levels:
            found["importance_sampling_level"] = levels[0]
            words = {"clip_low": "epsilon", "clip_high": "epsilon_high", "ratio_max": "epsilon_high"}
            words |= {"delta": "delta"} | {name.partition("_")[2]: name for name in SHAPES}
            found |= {words[name]: value for name, value in constants.items() if name in words and value is not None}
    if "kl" in method.fixes and bound(method.kl)[1].get("ratio") is not None:
        found["use_bias_correction_kl"] = True
    own = {"beta": method.beta, "entropy_coef": method.entropy_coef, "router_aux_loss_coef": method.router_coef}
    return found | {name: value for name, value in own.items() if value}


def objective_of(args: GRPOConfig, model_config: Any = None) -> dict[str, Any]:
    """The fields of a ``Method`` that TRL's fields describe."""
    ratio = RATIOS[args.importance_sampling_level]
    _, normaliser = LOSS_TYPES[args.loss_type]
    loss = _token_loss(args, ratio)
    if args.off_policy_mask_threshold is not None:
        loss = partial(off_policy_masked, loss=loss, threshold=args.off_policy_mask_threshold)
    return {
        "advantages": _advantage_rule(args),
        "token_loss": loss,
        "normaliser": normaliser,
        "beta": args.beta,
        "kl": partial(k3, ratio=ratio) if args.use_bias_correction_kl else k3,
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


def _advantage_rule(args: GRPOConfig) -> AdvantageRule:
    """The rule that TRL's fields choose, of the shared ones and those of methods."""
    own = {rule.name: rule for rule in (method.advantages for method in METHODS.values())}
    return next(
        rule
        for rule in (own | ADVANTAGE_RULES).values()
        if rule.settings and all(getattr(args, name) == value for name, value in rule.settings.items())
    )


def _token_loss(args: GRPOConfig, ratio: Ratio) -> TokenLoss:
    function, _ = LOSS_TYPES[args.loss_type]
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    if function is cispo:
        return partial(cispo, ratio=ratio, ratio_max=high)
    if function is sapo:
        constants = {name: getattr(args, f"sapo_{name}") for name in ("temperature_pos", "temperature_neg")}
        return partial(sapo, ratio=ratio, **constants)
    if function is vespo:
        constants = {name: getattr(args, f"vespo_{name}") for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")}
        return partial(vespo, **constants)
    return partial(clipped_surrogate, ratio=ratio, clip_low=args.epsilon, clip_high=high, delta=args.delta)


def unnamed_parts(method: Method) -> dict[str, Any]:
    """The parts of an objective that are a method's own and that no fields of TRL describe.

    The method is converted to TRL's fields and back: parts that come back different have no fields.
    """
    there = {field.name: field.default for field in fields(GRPOConfig)} | fields_of(method)
    made = objective_of(cast(GRPOConfig, SimpleNamespace(**there)))
    own = {part: getattr(method, part) for part in method.fixes}
    return {part: value for part, value in own.items() if _comparable(made[part]) != _comparable(value)}


def _comparable(part: Any) -> Any:
    return bound(part) if isinstance(part, partial | FunctionType) else part


def unread_by(method: Method, given: Mapping[str, Any]) -> dict[str, str]:
    """Fields of TRL that the method does not use, each with the part of the method that takes its place.

    ``loss_type`` names two things. A method with its own token loss may use it for the normaliser. So it is unused only
    if it names another loss than the usual one.
    """
    parts = unnamed_parts(method)
    found = {name: part.replace("_", " ") for part in parts for name in WORDS.get(part, ())}
    loss, _ = LOSS_TYPES.get(given.get("loss_type", ""), (clipped_surrogate, None))
    if "token_loss" in parts and loss is not clipped_surrogate:
        found["loss_type"] = "token loss"
    return found
