"""``DPPOConfig``: every TRL ``GRPOConfig`` field plus ours, checked before anything is loaded."""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from trl.trainer.grpo_config import GRPOConfig

from dppo.errors import raise_problems
from dppo.methods import METHODS, Method
from dppo.methods.settings import bias_problems, fill_in, pruned, read_rates, setting_problems
from dppo.objective import emphasised
from dppo.settings import OwnSettings, described
from dppo.trl.grpo.fields import CHOICES_OF_TRL, contradictions, field_problems
from dppo.trl.grpo.objective import CONSTANTS, SETTINGS, WORDS, fields_of, objective_of, unnamed_parts
from dppo.trl.support import DEEPSPEED, RANGES, unsupported_options
from dppo.typed import NamedFields


@dataclass
class DPPOConfig(NamedFields, OwnSettings, GRPOConfig):
    """Arguments of ``DPPOTrainer``: those of ``OwnSettings``, and all of TRL's ``GRPOConfig``, with their meaning.

    Raises:
        ConfigError: at construction, listing every field that is out of range, biased without ``accept_bias``,
            or a TRL option this trainer does not serve (with what to use instead).
    """

    def __post_init__(self) -> None:
        read_rates(self)
        if self.scale_rewards in (True, False):  # as TRL reads it
            self.scale_rewards = "group" if self.scale_rewards else "none"
        problems = [DEEPSPEED] if self.deepspeed else []  # before transformers looks for the package
        raise_problems("DPPOConfig", problems + setting_problems(self, CHOICES_OF_TRL, RANGES))
        self.generation_batch_given = self.generation_batch_size is not None  # TRL fills it in for this process count
        self._fill_in()
        with self._groups_of_one():
            super().__post_init__()
        unsupported = partial(unsupported_options, self, generation_batch_given=self.generation_batch_given)
        raise_problems("DPPOConfig", field_problems(self) or unsupported())
        raise_problems("DPPOConfig", bias_problems(self, self.build_method().selection_bias))

    @contextmanager
    def _groups_of_one(self) -> Iterator[None]:
        """TRL asks for two completions a prompt, which its own advantages need: a baseline from history does not.

        Raises:
            ConfigError: one completion a prompt, and advantages that would all be 0.
        """
        if self.num_generations != 1:
            yield
            return
        rule = METHODS[self.method].advantages
        if not rule.of_one:
            raise_problems(
                "DPPOConfig",
                [
                    f"num_generations=1 with advantages by {rule.name!r} has no gradient: a completion is compared "
                    "with itself. Write num_generations: 2, or method: dppo_history, whose baseline is from history."
                ],
            )
        per_step = self.per_device_train_batch_size * (self.steps_per_generation or self.gradient_accumulation_steps)
        # Any number above 1 that divides what TRL counts on all processes.
        self.num_generations = self.generation_batch_size or per_step * int(os.environ.get("WORLD_SIZE", "1"))
        if self.num_generations == 1:
            raise_problems("DPPOConfig", ["a generation of one completion. Write per_device_train_batch_size: 16."])
        evaluated, self.num_generations_eval = self.num_generations_eval, self.num_generations_eval or 1
        yield
        self.num_generations, self.num_generations_eval = 1, evaluated

    def _fill_in(self) -> None:
        """Fields that were left out get the method's own values, or TRL's defaults where it has none.

        Raises:
            ConfigError: a field says another objective than the method's own.
        """
        fill_in(self)
        given = {name: value for name in (*SETTINGS, *CONSTANTS) if (value := getattr(self, name)) is not None}
        defaults = {field.name: field.default for field in fields(GRPOConfig)}
        others = {name for names in WORDS.values() for name in names} - {*SETTINGS, *CONSTANTS}
        given |= {name: value for name in sorted(others) if (value := getattr(self, name)) != defaults[name]}
        raise_problems("DPPOConfig", contradictions(self.method, given))
        own = fields_of(METHODS[self.method])
        for name in (*SETTINGS, *CONSTANTS):
            setattr(self, name, given.get(name, own.get(name, defaults[name])))

    def build_method(self, *, sampler_log_probs: bool = False, model_config: Any = None) -> Method:
        """The ``Method`` these arguments describe: pruning from ours, the objective from TRL's fields.

        Args:
            sampler_log_probs: whether rollouts come with log-probabilities, which ``completion_score: auto`` uses.
            model_config: of the model, whose router loss belongs to the objective; None where it is not known.
        """
        return self._built(METHODS[self.method], unnamed_parts(METHODS[self.method]), sampler_log_probs, model_config)

    def build_other(self, name: str, *, sampler_log_probs: bool = False) -> Method:
        """Another method as this run would train it: what it fixes of the objective is its own, the rest is the run's.

        Args:
            name: of the method; its rates are 0.
            sampler_log_probs: as for ``build_method``.
        """
        other = copy.copy(self)
        other.method, other.prompt_prune_rate, other.completion_prune_rate = name, 0.0, 0.0
        own = {part: getattr(METHODS[name], part) for part in METHODS[name].fixes}
        # Emphasised advantages mean something else in groups of another size: then all are of one.
        base = replace(METHODS[name], sizes=None) if self.advantage_power else METHODS[name]
        return other._built(base, own, sampler_log_probs, None)

    def _built(self, base: Method, own: dict[str, Any], sampler_log_probs: bool, model_config: Any) -> Method:
        objective = objective_of(self, model_config) | own
        objective["advantages"] = emphasised(objective["advantages"], self.advantage_power)
        return pruned(self, replace(base, **objective), sampler_log_probs)


DPPOConfig.__doc__ = described(DPPOConfig, OwnSettings)
