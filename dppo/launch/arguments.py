"""Arguments of a run in TRL's own style: a YAML file, flags that override it, and a help that lists ours first."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, NoReturn, cast

import torch
import yaml
from trl.scripts.utils import TrlParser
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.model_config import ModelConfig
from typing_extensions import TypeVar

from dppo.errors import ConfigError
from dppo.trl.config import DPPOConfig

POSITIVE = (
    "reward_workers",
    "answer_time_limit",
    "embedded_problems",
    "scratch_minutes",
    "eval_benchmark_every",
    "eval_benchmark_limit",
    "eval_benchmark_samples",
)
"""Fields that must be greater than 0."""


@dataclass
class RunArguments:
    """What to train on, beside TRL's and our training fields."""

    dataset_name: str = field(
        default="",
        metadata={
            "help": "Training problems: a local .jsonl, .jsonl.gz or .parquet file, a folder of those, a public set or "
            "hub dataset by name, or `embedded` for the task of dppo demo."
        },
    )
    dataset_path: str | None = field(
        default=None, metadata={"help": "Local file or folder that stands in for dataset_name: nothing is fetched."}
    )
    dataset_train_split: str = field(default="train", metadata={"help": "Split of a hub dataset to train on."})
    eval_dataset_name: str | None = field(
        default=None, metadata={"help": "Problems for eval_strategy, like dataset_name; embedded: held-out questions."}
    )
    eval_dataset_path: str | None = field(
        default=None, metadata={"help": "Local file or folder that stands in for eval_dataset_name."}
    )
    dataset_test_split: str = field(default="test", metadata={"help": "Split of a hub dataset to evaluate on."})
    eval_benchmarks: list[str] | None = field(
        default=None,
        metadata={
            "help": "Benchmarks to follow while training, as for `dppo eval`: gsm8k, math500, ... or "
            "name=problems.jsonl; or `embedded` alone, held-out questions. Logged as eval/<benchmark>/pass@1."
        },
    )
    eval_benchmark_data: str | None = field(
        default=None, metadata={"help": "Local folder with the benchmarks' files. Default: fetched from the hub."}
    )
    eval_benchmark_every: int = field(
        default=50, metadata={"help": "Optimizer steps from one evaluation to the next, >= 1; also before and after."}
    )
    eval_benchmark_limit: int | None = field(
        default=64, metadata={"help": "Most problems of each benchmark, >= 1: the same ones every time."}
    )
    eval_benchmark_samples: int = field(default=1, metadata={"help": "Completions per problem, >= 1."})
    prompt_column: str | None = field(
        default=None, metadata={"help": "Column with the problem. Default: prompt, problem or question."}
    )
    answer_column: str | None = field(
        default=None,
        metadata={"help": "Column with the answer. Default: answer, final_answer, ground_truth, solution."},
    )
    prompt_template: str | None = field(
        default=None, metadata={"help": "Text of the user's turn; {problem} is where the problem goes."}
    )
    extract: str | None = field(
        default=None,
        metadata={
            "help": "How the answer is read from its column: `hashes`, `boxed` or `verbatim`. Default: seen there."
        },
    )
    max_prompt_tokens: int | None = field(
        default=None, metadata={"help": "Prompts longer than this are bad rows, >= 1. Default: no limit."}
    )
    on_bad_rows: str = field(
        default="error",
        metadata={"help": "`error` stops at empty or over-long prompts; `drop` leaves them out and says so."},
    )
    reward_funcs: list[str] | None = field(
        default=None,
        metadata={
            "help": "Rewards, added up: `accuracy` (math-verify, the default), `format` (a \\boxed answer is there), "
            "`overlong` (DAPO's penalty for long ones), `embedded`, or dotted paths such as package.module.function."
        },
    )
    overlong_cache_tokens: int = field(
        default=512,
        metadata={"help": "Tokens before max_completion_length over which `overlong` grows from 0 to -1, >= 1."},
    )
    reward_rule: str | None = field(
        default=None,
        metadata={
            "help": "How `accuracy` judges: the name of a benchmark, such as olympiadbench; exact by default "
            "(docs/verifier.md)."
        },
    )
    reward_workers: int = field(default=2, metadata={"help": "Processes that verify answers, >= 1."})
    answer_time_limit: float = field(default=5.0, metadata={"help": "Seconds one answer may take to verify, > 0."})
    rollout_func: str | None = field(
        default=None,
        metadata={
            "help": "What completes prompts in place of transformers or vLLM: `embedded` (the decoder of dppo demo, "
            "with log-probabilities) or the dotted path of a function for TRL's rollout_func."
        },
    )
    embedded_problems: int = field(
        default=192, metadata={"help": "Training problems where dataset_name is `embedded`, >= 1."}
    )
    scratch_minutes: float = field(
        default=3.0, metadata={"help": "Minutes of warm-up where model_name_or_path is scratch:text, > 0."}
    )
    processes: int | None = field(
        default=None,
        metadata={
            "help": "Processes the run is meant for, >= 1: a dry run plans for them, and a launch with another number "
            "stops (launchers fall back to one without a word). Default: any."
        },
    )
    resume: bool = field(default=False, metadata={"help": "Go on from the newest complete checkpoint in output_dir."})
    overwrite: bool = field(default=False, metadata={"help": "Train into an output_dir that already holds a run."})
    dry_run: bool = field(
        default=False, metadata={"help": "Check every field and local file, print the plan of a step, and stop."}
    )

    def __post_init__(self) -> None:
        if not self.dataset_name and not self.dataset_path:
            raise ConfigError("dataset_name is not set. Write, for example, dataset_name: problems.jsonl")
        if self.on_bad_rows not in ("error", "drop"):
            raise ConfigError(f"on_bad_rows={self.on_bad_rows!r} is not one of 'error', 'drop'.")
        for name in POSITIVE:
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ConfigError(
                    f"{name}={getattr(self, name):g} must be greater than 0. Leave it out for the default."
                )


Config = TypeVar("Config", bound=GRPOConfig, default=DPPOConfig, covariant=True)
Parsed = TypeVar("Parsed", bound=GRPOConfig)


@dataclass(frozen=True, kw_only=True)
class Run(Generic[Config]):
    """The parsed arguments of one run; of a run of TRL's own trainer where the type says ``GRPOConfig``."""

    data: RunArguments
    training: Config
    model: ModelConfig
    without_gpu: bool = False
    """True for a dry run of GPU settings on a machine without one, where they cannot be checked."""

    @property
    def sampler_log_probs(self) -> bool:
        """Whether rollouts come with the log-probabilities that the ``confidence`` score needs."""
        return self.training.use_vllm or self.data.rollout_func is not None


AnyRun = Run[GRPOConfig]
TRAINING_OURS = {f.name for f in fields(DPPOConfig)} - {f.name for f in fields(GRPOConfig)}
"""Training fields that TRL's own trainer does not have."""
OURS = {f.name for f in fields(RunArguments)} | TRAINING_OURS


class Parser(TrlParser):
    """TRL's parser, with our fields ahead of the several hundred of TRL and transformers in its help."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print below its usage of several hundred lines."""
        raise ConfigError(f"{message}. dppo train --help lists all fields.")

    def format_help(self) -> str:
        """Usage, then our fields, then all others."""
        formatter = self._get_formatter()
        formatter.add_text(self.description)
        ours = [a for a in self._actions if a.dest in OURS]
        others = [a for a in self._actions if a.dest not in OURS and not isinstance(a, argparse._HelpAction)]
        for title, actions in (("dppo", ours), ("TRL and transformers", others)):
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        return formatter.format_help()


def build_parser(config: type[GRPOConfig] = DPPOConfig) -> Parser:
    """The parser of ``dppo train``; for TRL's own trainer with its ``GRPOConfig``."""
    return Parser(
        cast(Any, (RunArguments, config, ModelConfig)),
        prog="dppo train",
        description="usage: dppo train CONFIG.yaml [--any_field value]. Fields of the file and flags are the same.",
    )


def parse_run(words: Sequence[str]) -> Run:
    """The arguments of a run from ``CONFIG.yaml`` and flags, the flags winning.

    Args:
        words: what follows ``dppo train``.

    Raises:
        ConfigError: if the file is missing, is not a mapping of fields, has an unknown field, or a field is wrong.
    """
    return parse_fields(words, DPPOConfig)


def parse_fields(words: Sequence[str], config: type[Parsed]) -> Run[Parsed]:
    """As ``parse_run``, with the training fields of ``config``: ours, or those of TRL's own trainer."""
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    if words and not words[0].startswith("-"):
        path = Path(words[0])
        if not path.is_file():
            raise ConfigError(f"there is no configuration file {path}. Try examples/embedded.yaml")
        words = ["--config", *words]
    without_gpu = _dry(words) and "--use_cpu" not in words and not torch.accelerator.is_available()
    try:
        data, training, model, *unknown = build_parser(config).parse_args_and_config(
            [*words, "--use_cpu", "true"] if without_gpu else words, return_remaining_strings=True
        )
    except ConfigError:
        raise
    except yaml.YAMLError as error:
        raise ConfigError(f"the configuration is not YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:  # TRL's and transformers' own checks of a field
        raise ConfigError(str(error)) from error
    if unknown and unknown[0]:
        raise ConfigError(f"unknown fields: {' '.join(unknown[0])}. dppo train --help lists all of them.")
    return Run(data=data, training=training, model=model, without_gpu=without_gpu)


def _dry(words: list[str]) -> bool:
    """Whether the flags ask for a dry run."""
    at = words.index("--dry_run") + 1 if "--dry_run" in words else 0
    return bool(at) and (at == len(words) or words[at].lower() not in ("false", "0", "no"))
