"""A training run from a configuration: its arguments, its parts, and the check that touches nothing."""

from dppo.launch.arguments import AnyRun, Run, RunArguments, build_parser, parse_fields, parse_run
from dppo.launch.dry_run import Finding, dry_run
from dppo.launch.parts import (
    build_trainer,
    load_dataset,
    load_rewards,
    output_checkpoint,
    prepare_model,
    train,
    train_with,
)

__all__ = [
    "AnyRun",
    "Finding",
    "Run",
    "RunArguments",
    "build_parser",
    "build_trainer",
    "dry_run",
    "load_dataset",
    "load_rewards",
    "output_checkpoint",
    "parse_fields",
    "parse_run",
    "prepare_model",
    "train",
    "train_with",
]
