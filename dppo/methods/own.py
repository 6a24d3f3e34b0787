"""Methods by their names: presets, which settings complete, and a user's own, complete, by ``package.module:name``."""

import re
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any, TypeVar

from dppo.errors import ConfigError, in_words
from dppo.files import current_folder_first
from dppo.methods.method import Method
from dppo.methods.registry import METHODS
from dppo.methods.rows import RowMethod
from dppo.pruning import PIVOTAL, SCORES
from dppo.settings import AUTO

DECIDED = (
    *("prompt_prune_rate", "completion_prune_rate", "token_prune_rate", "head_prune_rate", "prune_floor"),
    *("completion_score", "completion_budget", "sampling_design", "prune_schedule", "prune_until"),
    *("advantage_power", "max_rounds", "round_factor"),
)
"""Settings of this library that a method of one's own decides, also if it has no value for them."""

AnyMethod = TypeVar("AnyMethod")


def is_own(name: Any) -> bool:
    """True for ``package.module:name``."""
    return isinstance(name, str) and ":" in name


def method_named(name: str) -> Method:
    """The preset of that name, or the method at ``package.module:name``."""
    return imported(name, Method) if is_own(name) else METHODS[name]


def imported(name: str, kind: type[AnyMethod]) -> AnyMethod:
    """The method at ``package.module:name``, looked up in the current folder first."""
    module, _, attribute = name.partition(":")
    try:
        with current_folder_first():
            found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"method={name!r} cannot be imported: {error}. Write package.module:name.") from error
    if not isinstance(found, kind):
        raise ConfigError(f"method={name!r} is a {type(found).__name__}, not a {kind.__name__}: dppo docs extending.")
    return found


def own_settings(method: Method) -> dict[str, Any]:
    """Settings by name, as a method has them. Parts that no setting can express are left out."""
    found: dict[str, Any] = {
        "prompt_prune_rate": AUTO if method.prompts.auto else method.prompts.rate,
        "completion_prune_rate": AUTO if method.drawn and method.drawn.auto else method.completions.rate,
        "token_prune_rate": AUTO if method.tokens.auto else method.tokens.rate,
        "head_prune_rate": method.tokens.head_rate,
    }
    if (level := method.drawn) is not None:
        design = level.design if level.design.unbiased else PIVOTAL
        found |= {"completion_budget": level.budget, "sampling_design": design.name}
        names = [name for name, score in SCORES.items() if score == level.score]
        found |= {"completion_score": names[0]} if names else {}
    return found


def settle(args: Any, method: Method | RowMethod, own: Mapping[str, Any]) -> list[str]:
    """Give settings with their default the values of a user's own method; one sentence for each that contradicts it.

    The method decides ``own``, its settings by name, and all of ``DECIDED``.
    """
    problems, decided = [], {*DECIDED, *own}
    for each in fields(args):
        name, value = each.name, getattr(args, each.name)
        if name in decided and value == each.default:
            setattr(args, name, own.get(name, value))
        elif name in decided and (name not in own or value != own[name]):
            problems.append(_contradiction(name, value, method, own))
    return problems


def _contradiction(name: str, value: Any, method: Method | RowMethod, own: Mapping[str, Any]) -> str:
    how = "put it into the method: dppo docs extending"
    if name in ("prompt_prune_rate", "completion_prune_rate") and value != AUTO:
        how = f"hand over method.with_rates({name.removesuffix('_prune_rate')}={value:g})"
    elif name in {each.name for each in fields(method)}:
        how = f"hand over replace(method, {name}={value!r})"
    wrong = f"would change nothing of the method {method.name!r}, which is complete"
    if name in own:
        wrong = f"contradicts the method {method.name!r}, which has {name}={own[name]!r}"
    return f"{name}={value!r} {wrong}. Leave it out, or {how}."


def parts_in_words(method: Method | RowMethod) -> dict[str, str]:
    """Name and parts of a user's own method as text, for checkpoints."""
    found = {"method": f"{method.name} (own)"}
    for name in part_names(type(method)):
        part = getattr(method, name)
        text = in_words(part) if callable(part) and not hasattr(part, "__dataclass_fields__") else str(part)
        found[f"method.{name}"] = re.sub(r" at 0x\w+", "", text)
    return found


def part_names(kind: type[Method] | type[RowMethod]) -> list[str]:
    """Fields of a method that change what is trained."""
    return [each.name for each in fields(kind) if each.name not in ("name", "paper", "deviations", "fixes")]


def assigned(method: Any) -> ConfigError:
    """The error for a method that is set on a trainer after it was made."""
    why = f"trainer.method was assigned {getattr(method, 'name', method)!r}, and a trainer is made for one method"
    return ConfigError(f"{why}. Write method=mine where the trainer is made: DPPOTrainer(..., method=mine).")
