"""Functions with names that TRL keeps private, for all trainers; ``base.py`` and ``grpo/hooks.py`` have more.

``tests/trl/trl_methods.json`` lists what they rely on, and a test compares it with the installed TRL.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.utils import use_adapter


@contextmanager
def reference_model(trainer: Any) -> Iterator[Any]:
    """The reference policy of a trainer: a model of its own, or the policy without its adapter."""
    if trainer.ref_model is not None:
        yield trainer.ref_model
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
        yield trainer.model


def loss_of_pairs(trainer: Any, model: Callable[..., Any], inputs: Mapping[str, Tensor]) -> tuple[Any, Any]:
    """TRL's loss of a batch of its collator and the metrics it would log, by name; ``model`` stands for the policy.

    Metrics that the trainer had before are dropped.
    """
    trainer._metrics = {"train": defaultdict(list)}
    loss = DPOTrainer._compute_loss(trainer, model, inputs, False)
    return loss, trainer._metrics["train"]


def add_metrics(trainer: Any, metrics: Mapping[str, float]) -> None:
    """Add metrics of this step to a trainer's next log of training; several of one name are averaged.

    NaN, of a metric that is not known, is left out: TRL would log None if there is no other value.
    """
    for name, value in metrics.items():
        if not math.isnan(value):
            trainer._metrics["train"][name].append(value)


def count_tokens(trainer: Any, tokens: int) -> None:
    """Add tokens to those that a trainer on rows has trained on, which it logs as ``num_tokens``."""
    trainer._total_train_tokens += tokens
    trainer._metrics["train"]["num_tokens"] = [trainer._total_train_tokens]
