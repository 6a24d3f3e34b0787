"""Configurations: a YAML file and flags become fields, and fields become ``Run``, the checked arguments of a run.

A value means the same in a file, as a flag, and in the fields of a comparison: its field's flag parses it.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import fields as fields_of
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import UnionType
from typing import Any, Generic, NoReturn, Union, cast, get_args, get_origin, get_type_hints

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
MAPPINGS = {
    "task_arguments",
    "prompt_prior",
    "lr_scheduler_kwargs",
    "model_init_kwargs",
    "generation_kwargs",
    "chat_template_kwargs",
}
"""Fields that hold names and values, and are no file that does."""
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
        given = self.data.task_arguments
        return reasoning_gym_task(
            name,
            given if isinstance(given, Mapping) else None,
            seed=self.training.seed,
            answer_pattern=self.data.answer_pattern,
        )


AnyRun = Run[GRPOConfig]


class Parser(TrlParser):
    """TRL's parser, whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        """Raise the message that argparse would print below a usage of several hundred lines."""
        raise ConfigError(f"{message}. dppo train --help_all lists all fields.")

    def hints(self) -> dict[str, Any]:
        """The type of every field."""
        hints = {name: hint for kind in self.dataclass_types for name, hint in get_type_hints(kind).items()}
        return {f.name: hints[f.name] for kind in self.dataclass_types for f in fields_of(cast(Any, kind)) if f.init}

    def choices_of(self, name: str) -> tuple[Any, ...]:
        """The choices of a field; none where it takes any value."""
        return tuple(self._option_string_actions[f"--{name}"].choices or ())

    def from_flag(self, name: str, text: str) -> Any:
        """The value of a field when its flag is given this word."""
        action = self._option_string_actions[f"--{name}"]
        try:
            value = self._get_value(action, text)
            self._check_value(action, value)
        except argparse.ArgumentError as error:
            self.error(str(error))
        return [value] if action.nargs == "+" else value


def build_parser(config: type[GRPOConfig] = DPPOConfig) -> Parser:
    """The parser of ``dppo train``; for TRL's own trainer with its ``GRPOConfig``."""
    return Parser(cast(Any, (RunArguments, config, ModelConfig)), prog="dppo train", add_help=False, allow_abbrev=False)


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


MERGE = "tag:yaml.org,2002:merge"


class OnceLoader(yaml.SafeLoader):
    """YAML's safe loader, for which a name that is given twice in one mapping is an error."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The names and values as they are written, before any are merged; of two of one name YAML takes the last."""
        node, seen = super().compose_mapping_node(anchor), set[str]()
        names = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != MERGE]
        for key in names:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(key.value)
        return node


def read_file(path: str | Path, *, example: str = "examples/embedded.yaml") -> dict[str, Any]:
    """The fields of a YAML file; an error names ``example`` as a file that works."""
    check_config(path, example=example)
    try:
        read = yaml.load(Path(path).read_text(encoding="utf-8"), OnceLoader)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}). Try {offered(example)}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}. Try {offered(example)}") from error
    if not isinstance(read, dict):
        raise ConfigError(f"{path} must hold fields, such as method: dppo")
    return {str(name): value for name, value in read.items()}


def read_flags(flags: Sequence[str]) -> dict[str, Any]:
    """The fields that flags set, without defaults: ``--field value``, ``--field=value``, ``--switch``."""
    parser = build_parser()
    for action in parser._actions:
        action.default, action.required = argparse.SUPPRESS, False
    given, unknown = parser.parse_known_args(list(flags))
    if unknown and not unknown[0].startswith("-"):
        raise ConfigError(f"{unknown[0]!r} is no flag. Fields are set with --field value")
    if unknown:
        _refuse(unknown, parser)
    return vars(given)


def parse_fields(fields: Mapping[str, Any], config: type[Config], *, without_gpu: bool = False) -> Run[Config]:
    """The arguments of a run from its fields, with values as YAML has them or as words of flags.

    ``config`` is ``DPPOConfig``, or TRL's ``GRPOConfig`` for its own trainer.
    """
    parser = build_parser(config)
    hints = parser.hints()
    fields = dict(fields)
    variables = fields.pop(ENVIRONMENT, None) or {}
    if COMPARISON in fields:
        raise ConfigError(f"the block {COMPARISON!r} is for dppo compare CONFIG.yaml. Leave it out to train.")
    unknown = [word for name in fields.keys() - hints.keys() for word in (f"--{name}", str(fields[name]))]
    if unknown:
        _refuse(unknown, parser)
    if not isinstance(variables, Mapping):
        raise ConfigError(f"{ENVIRONMENT}={variables!r} must be a mapping. Write {ENVIRONMENT}: {{NAME: value}}")
    typed = {name: _typed(parser, name, value, hints[name]) for name, value in fields.items()}
    os.environ.update({str(name): str(value) for name, value in variables.items()})
    try:
        data, training, model = parser.parse_dict(typed)
    except ConfigError:
        raise
    except TypeError as error:  # of a field that a library reckons with
        empty = [name for name, value in typed.items() if value is None]
        if not empty:
            raise
        raise ConfigError(f"{', '.join(empty)}: no value ({error}). Write one, or leave the field out.") from error
    except (ValueError, PackageNotFoundError) as error:  # TRL's and transformers' own checks of a field
        raise ConfigError(" ".join(str(error).split())) from error
    return Run(data=data, training=training, model=model, without_gpu=without_gpu)


def _refuse(unknown: Sequence[str], parser: Parser) -> NoReturn:
    names = [word.removeprefix("--").split("=")[0].replace("-", "_") for word in unknown if word.startswith("--")]
    meant = "".join(did_you_mean(name, parser.hints()) for name in names)
    raise ConfigError(f"unknown fields: {' '.join(unknown)}. {meant}dppo train --help_all lists all of them.")


def _mapping(text: str) -> dict[str, Any] | None:
    """The mapping that a text writes, as JSON or as YAML, to which 1e-3 is no number; None where it writes none."""
    for read in (json.loads, yaml.safe_load):
        with suppress(ValueError, yaml.YAMLError):
            found = read(text)
            return found if isinstance(found, dict) else None
    return None


def _typed(parser: Parser, name: str, value: Any, hint: Any) -> Any:
    """The value as its field's flag parses its words; one without words, such as None, must be of the field's type."""
    if name == "scale_rewards" and isinstance(value, bool):  # as TRL reads it
        value = "group" if value else "none"
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [get_origin(part) or part for part in parts]
    if isinstance(value, list) and list in kinds:
        read = [parser.from_flag(name, str(part)) for part in value]
        return [entry for found in read for entry in (found if isinstance(found, list) else [found])]
    if dict in kinds and isinstance(value, str | bool | int | float):
        read = _mapping(value) if isinstance(value, str) else None
        if read is not None:
            return read
        if name in MAPPINGS:
            parser.error(f"argument --{name}: {value!r} is no mapping. Write {name}: {{key: value}}")
    if isinstance(value, str | bool | int | float):
        try:
            return parser.from_flag(name, str(value))
        except ConfigError as error:
            if value is not False or "no" not in map(str, parser.choices_of(name)):
                raise
            raise ConfigError(f"{name}: a bare no or off in YAML is false. Quote it: {name}: 'no'. {error}") from error
    if Any not in kinds and type(value) not in kinds:
        parser.error(f"argument --{name}: invalid value: {value!r}")
    return value
