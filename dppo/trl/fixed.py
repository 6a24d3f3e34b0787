"""Settings that a trainer reads at construction alone: a later change would do nothing, so it is refused."""

import copy
from dataclasses import fields
from typing import Any

from dppo.errors import ConfigError
from dppo.settings import TABLE
from dppo.trl.grpo.objective import OBJECTIVE

READ_LATER = {"max_tokens_per_row", "accept_missing", "log_metrics"}
"""Our settings that are read at each use."""
OF_TRL = {
    *(*OBJECTIVE, "num_generations", "num_iterations", "steps_per_generation", "reward_weights", "loss_weights"),
    *("label_smoothing", "ld_alpha", "use_weighting", "f_divergence_type", "f_alpha_divergence_coef"),
}
"""Fields of TRL's GRPO and DPO that describe the objective."""
ATTRIBUTES = (
    *("beta", "epsilon_low", "epsilon_high", "entropy_coef", "loss_type", "scale_rewards", "num_generations"),
    *("num_iterations", "importance_sampling_level", "multi_objective_aggregation", "off_policy_mask_threshold"),
)
"""Attributes that TRL's trainers read in each step; here the method is made of them."""
OWN = ("session", "source")
"""Attributes of the trainers here whose names a subclass may take for its own."""
OF_CONFIG = {"epsilon_low": "epsilon"}
"""Fields of the configuration with another name than the trainer's attribute."""


class FixedSettings:
    """Settings of one of our trainers at its construction."""

    def __init__(self, trainer: Any) -> None:
        self._values, self._dataset = _values(trainer), trainer.train_dataset
        self._kinds = {name: type(getattr(trainer, name)) for name in OWN if hasattr(trainer, name)}

    def check(self, trainer: Any) -> None:
        """Raise ``ConfigError`` if a setting or the dataset has changed, or an attribute of ``OWN`` is not ours."""
        another = "after the trainer was made, and its method, prompts and history are of the first. Make another"
        if trainer.train_dataset is not self._dataset:
            raise ConfigError(f"trainer.train_dataset was changed {another} trainer, with it.")
        found = _values(trainer)
        for name, before in self._values.items():
            if (now := found[name]) != before:
                field = name.removeprefix("args.")
                advice = f"whose config has {OF_CONFIG.get(field, field)}={now!r}"
                raise ConfigError(f"trainer.{name} was changed from {before!r} to {now!r} {another} trainer, {advice}.")
        for name, kind in self._kinds.items():
            if not isinstance(now := getattr(trainer, name), kind):
                raise ConfigError(
                    f"trainer.{name} is dppo's own attribute, and was set to {now!r}. "
                    f"Give yours another name: self.my_{name} = ..."
                )


def _values(trainer: Any) -> dict[str, Any]:
    """Copies of the values that the method is made of, by attribute or ``args.field``."""
    args, ours = trainer.args, {each.name for each in fields(trainer.args) if each in TABLE} - READ_LATER
    of_args = {f"args.{name}": copy.deepcopy(vars(args)[name]) for name in sorted((ours | OF_TRL) & vars(args).keys())}
    return {name: getattr(trainer, name) for name in ATTRIBUTES if hasattr(trainer, name)} | of_args
