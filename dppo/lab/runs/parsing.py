"""Configurations: a YAML file and flags become fields, and fields become ``Run``, the checked arguments of a run.

TRL's parser reads them. A field of a file is read as the words of its flag, so that a value means the same in both.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import fields as fields_of
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import NoneType
from typing import Any, Generic, NoReturn, cast, get_args, get_origin, get_type_hints

import torch
import yaml
from trl.scripts.utils import TrlParser
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.model_config import ModelConfig
from typing_extensions import TypeVar

from dppo.errors import ConfigError, did_you_mean
from dppo.lab.gym import ReasoningGymTask, reasoning_gym_task
from dppo.lab.runs.fields import RunArguments
from dppo.lab.runs.words import check_config, split_words
from dppo.lab.shipped import offered
from dppo.trl.grpo.config import DPPOConfig

Config = TypeVar("Config", bound=GRPOConfig, default=DPPOConfig, covariant=True)
TRAINING_OURS = {f.name for f in fields_of(DPPOConfig)} - {f.name for f in fields_of(GRPOConfig)}
"""Training fields that TRL's own trainer does not have."""
COMPARISON = "compare"
"""The block of a configuration that names what is compared."""
ENVIRONMENT = "env"
"""The block of a configuration that sets environment variables, as in TRL."""


@dataclass(frozen=True, kw_only=True)
class Run(Generic[Config]):
    """The parsed arguments of one run, with our trainer or, as a ``Run[GRPOConfig]``, with TRL's own."""

    data: RunArguments
    training: Config
    model: ModelConfig
    without_gpu: bool = False
    """True for a dry run on a machine without a GPU: settings for one cannot be checked there."""

    @property
    def sampler_log_probs(self) -> bool:
        """True if rollouts bring the log-probabilities that the ``uncertainty`` score needs."""
        return self.training.use_vllm or self.data.rollout_func is not None

    def gym_task(self, name: str) -> ReasoningGymTask:
        """The task of reasoning-gym of this name, with the run's arguments, seed and answer pattern."""
        given = cast(dict[str, Any] | None, self.data.task_arguments)
        return reasoning_gym_task(name, given, seed=self.training.seed, answer_pattern=self.data.answer_pattern)


AnyRun = Run[GRPOConfig]


class Parser(TrlParser):
    """TRL's parser: errors are ours, and fields of mappings and lists take both forms that their types allow."""

    def error(self, message: str) -> NoReturn:
        """Raise the message that argparse would print below a usage of several hundred lines."""
        quote = " A bare no or off in YAML is false: quote it, 'no'."
        quote *= "'False'" in message and "no" in message.partition("choose from")[2]
        raise ConfigError(f"{message}.{quote} List all fields: dppo train --help_all")

    def hints(self) -> dict[str, Any]:
        """The type of every field."""
        hints = {name: hint for kind in self.dataclass_types for name, hint in get_type_hints(kind).items()}
        return {f.name: hints[f.name] for kind in self.dataclass_types for f in fields_of(cast(Any, kind)) if f.init}

    def given(self, words: Sequence[str]) -> dict[str, Any]:
        """The values of the fields that words of flags set, without defaults."""
        for name, hint in self.hints().items():
            action, kinds = self._option_string_actions[f"--{name}"], _kinds(hint)
            if dict in kinds:
                action.type = partial(_mapping, name)
            if list in kinds:
                action.nargs = "+"
        for action in self._actions:
            action.default, action.required = argparse.SUPPRESS, False
        found, unknown = self.parse_known_args(list(words))
        if unknown:
            names = [word.removeprefix("--").split("=")[0].replace("-", "_") for word in unknown if word[:2] == "--"]
            meant = "".join(did_you_mean(name, self.hints()) for name in names)
            raise ConfigError(f"unknown fields: {' '.join(unknown)}. {meant}List them: dppo train --help_all")
        either = {name for name, hint in self.hints().items() if {list, str} <= {*_kinds(hint)}}
        return {name: v[0] if name in either and len(v) == 1 else v for name, v in vars(found).items()}


def build_parser(config: type[GRPOConfig] = DPPOConfig) -> Parser:
    """The parser of ``dppo train``; for TRL's own trainer with its ``GRPOConfig``."""
    return Parser(cast(Any, (RunArguments, config, ModelConfig)), prog="dppo train", add_help=False, allow_abbrev=False)


def _kinds(hint: Any) -> list[Any]:
    """The types that a field may have."""
    return [get_origin(part) or part for part in get_args(hint) or (hint,)] if get_origin(hint) is not list else [list]


def _mapping(name: str, value: str) -> Any:
    """The mapping that a text writes, as JSON or as YAML, to which 1e-3 is no number; some fields may name a file."""
    for read in (json.loads, yaml.safe_load):
        with suppress(ValueError, yaml.YAMLError):
            if isinstance(found := read(value), dict):
                return found
    if not name.endswith(("_kwargs", "_arguments", "_prior")):
        return value
    raise argparse.ArgumentTypeError(f"{value!r} is no mapping. Write {name}: {{key: value}}")


def parse_run(words: Sequence[str]) -> Run:
    """The arguments of a run from the words of ``dppo train``: ``CONFIG.yaml``, and flags, which win."""
    return parse_given(given_fields(words))


def given_fields(words: Sequence[str]) -> dict[str, Any]:
    """The fields of a configuration and of the flags behind it, which win."""
    path, flags = split_words(words)
    return (read_file(path) if path else {}) | read_flags(flags)


def parse_given(fields: Mapping[str, Any]) -> Run:
    """As ``parse_fields``; in a dry run without a GPU, settings for one are checked as if for a CPU, and it says so."""
    without_gpu = fields.get("dry_run") is True and not fields.get("use_cpu") and not torch.accelerator.is_available()
    return parse_fields({**fields, **({"use_cpu": True} if without_gpu else {})}, DPPOConfig, without_gpu=without_gpu)


class OnceLoader(yaml.SafeLoader):
    """YAML's safe loader, for which a name that is given twice in one mapping is an error."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The names and values as they are written, before any are merged; of two of one name YAML takes the last."""
        node, seen = super().compose_mapping_node(anchor), set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(key.value)
        return node


def read_file(path: str | Path, *, example: str = "examples/embedded.yaml") -> dict[str, Any]:
    """The fields of a YAML file; an error names ``example`` as a file that works."""
    check_config(path, example=example)
    try:
        read = yaml.load(Path(path).read_text(encoding="utf-8"), OnceLoader)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        what = "cannot be read" if isinstance(error, OSError) else "is not YAML"
        raise ConfigError(f"{path} {what}: {' '.join(str(error).split())}. Try {offered(example)}") from error
    if not isinstance(read, dict):
        raise ConfigError(f"{path} must hold fields, such as method: dppo")
    return {str(name): value for name, value in read.items()}


def read_flags(flags: Sequence[str]) -> dict[str, Any]:
    """The fields that flags set, without defaults: ``--field value``, ``--field=value``, ``--switch``."""
    return build_parser().given(flags)


def parse_fields(fields: Mapping[str, Any], config: type[Config], *, without_gpu: bool = False) -> Run[Config]:
    """The arguments of a run from its fields, with values as YAML has them or as words of flags.

    ``config`` is ``DPPOConfig``, or TRL's ``GRPOConfig`` for its own trainer.
    """
    fields = dict(fields)
    variables = fields.pop(ENVIRONMENT, None) or {}
    if COMPARISON in fields:
        raise ConfigError(f"the block {COMPARISON!r} is for dppo compare CONFIG.yaml. Leave it out to train.")
    if not isinstance(variables, Mapping):
        raise ConfigError(f"{ENVIRONMENT}={variables!r} must be a mapping. Write {ENVIRONMENT}: {{NAME: value}}")
    if isinstance(scaled := fields.get("scale_rewards"), bool):  # as TRL reads it
        fields["scale_rewards"] = "group" if scaled else "none"
    parser = build_parser(config)
    hints = parser.hints()
    empty = {name: None for name, value in fields.items() if value is None and NoneType in _kinds(hints.get(name))}
    words = [word for name, value in fields.items() if name not in empty for word in _words(name, value)]
    typed = parser.given(words) | empty
    os.environ.update({str(name): str(value) for name, value in variables.items()})
    try:
        data, training, model = parser.parse_dict(typed)
    except ConfigError:
        raise
    except (TypeError, ValueError, PackageNotFoundError) as error:  # TRL's and transformers' own checks of a field
        if empty and isinstance(error, TypeError):
            raise ConfigError(f"{', '.join(empty)}: no value ({error}). Write one, or leave the field out.") from error
        raise ConfigError(" ".join(str(error).split())) from error
    return Run(data=data, training=training, model=model, without_gpu=without_gpu)


def _words(name: str, value: Any) -> list[str]:
    """The words of a flag that sets a field to a value."""
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}={json.dumps(value, default=str) if isinstance(value, Mapping) else value}"]
