"""Settings that a trainer reads at construction alone: a later change would do nothing, so it is refused."""

import copy
from dataclasses import fields
from typing import Any

from dppo.errors import ConfigError
from dppo.settings import TABLE
from dppo.trl.grpo.objective import OBJECTIVE

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


class FixedSettings:
    """Settings of one of our trainers at its construction."""

    def __init__(self, trainer: Any) -> None:
        self._values, self._dataset = _values(trainer), trainer.train_dataset
        self._own = {name: vars(trainer)[name] for name in ("session", "source") if name in vars(trainer)}

    def check(self, trainer: Any) -> None:
        """Raise ``ConfigError`` if a setting, the dataset or an attribute of our own has changed."""
        another = "after the trainer was made, and its method, prompts and history are of the first. Make another"
        if trainer.train_dataset is not self._dataset:
            raise ConfigError(f"trainer.train_dataset was changed {another} trainer, with it.")
        found = _values(trainer)
        for name, before in self._values.items():
            if (now := found[name]) != before:
                field = "epsilon" if name == "epsilon_low" else name.removeprefix("args.")
                advice = f"whose config has {field}={now!r}"
                raise ConfigError(f"trainer.{name} was changed from {before!r} to {now!r} {another} trainer, {advice}.")
        for name, ours in self._own.items():  # a subclass may have taken the name for its own
            if (now := getattr(trainer, name)) is not ours:
                advice = f"Give yours another name: self.my_{name} = ..."
                raise ConfigError(f"trainer.{name} is dppo's own attribute, and was set to {now!r}. {advice}")


def _values(trainer: Any) -> dict[str, Any]:
    """Copies of the values that the method is made of, by attribute or ``args.field``."""
    args, read_at_each_use = trainer.args, {"max_tokens_per_row", "accept_missing", "log_metrics"}
    ours = {each.name for each in fields(args) if each in TABLE} - read_at_each_use
    of_args = {f"args.{name}": copy.deepcopy(vars(args)[name]) for name in sorted((ours | OF_TRL) & vars(args).keys())}
    return {name: getattr(trainer, name) for name in ATTRIBUTES if hasattr(trainer, name)} | of_args
