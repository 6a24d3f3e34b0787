"""What ``run.json`` says of a run before anything is trained."""

from collections.abc import Mapping, Sized
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from typing import Any, cast

from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from dppo.environment import environment
from dppo.methods import GRPO
from dppo.runs.folder import STOCK, RunFacts
from dppo.trl.plan import biases
from dppo.trl.trainer import DPPOTrainer


def describe_run(trainer: GRPOTrainer, task: Mapping[str, Any] | None = None) -> RunFacts:
    """Method, task, settings and environment of a run that has begun, with our trainer or TRL's own.

    ``task`` wins over what the trainer knows of its ``model``, ``dataset`` and number of ``prompts``.
    """
    data = trainer.train_dataset
    known = {
        "model": str(trainer.accelerator.unwrap_model(trainer.model).config.name_or_path),
        "dataset": type(data).__name__,
        "prompts": len(data) if isinstance(data, Sized) else None,
    }
    return RunFacts(
        **_method(trainer),
        seed=trainer.args.seed,
        task=known | dict(task or {}),
        config=changed_fields(trainer.args),
        environment=environment(processes=trainer.accelerator.num_processes),
        status="running",
        error=None,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        updates=trainer.args.max_steps if trainer.args.max_steps > 0 else None,
        seconds=None,
    )


def _method(trainer: GRPOTrainer) -> dict[str, Any]:
    """Name, description, paper and biases of what is trained with."""
    if isinstance(trainer, DPPOTrainer):
        method, reasons = trainer.method, biases(trainer.args, trainer.method, trainer.schedule)
        return {"method": method.name, "describe": method.describe(), "paper": method.paper, "biased": reasons}
    args = cast(GRPOConfig, trainer.args)
    described = (
        f"TRL's GRPOTrainer as it is: loss_type {args.loss_type}, advantages scaled by {args.scale_rewards}, beta "
        f"{args.beta:g}. Nothing is pruned."
    )
    return {"method": STOCK, "describe": described, "paper": GRPO.paper, "biased": []}


def changed_fields(args: Any) -> dict[str, Any]:
    """Fields of a trainer's ``args`` that differ from their defaults, by name; of access tokens only that there is one.

    Fields that are filled in when the arguments are made count as changed.
    """
    shown = args.to_dict()
    changed = {}
    for field in fields(args):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name in shown and getattr(args, field.name) != default:
            changed[field.name] = shown[field.name]
    return changed
