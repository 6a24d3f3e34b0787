"""``DPPOConfig``: every TRL ``GRPOConfig`` field plus ours, checked before anything is loaded."""

import copy
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from trl.trainer.grpo_config import GRPOConfig

from dppo.errors import raise_problems
from dppo.methods import Method
from dppo.methods import settings as checks
from dppo.methods.from_settings import pruned, with_rollout_cost
from dppo.methods.method import PARTS
from dppo.methods.own import is_own, method_named, own_settings, settle
from dppo.objective import ADVANTAGE_RULES, DR_GRPO, emphasised
from dppo.pruning.prior import prior_problems, read_prior
from dppo.settings import DEFAULT_METHOD, OwnSettings, described
from dppo.trl.grpo import objective
from dppo.trl.served import DEEPSPEED, ranges_of, unsupported_options
from dppo.typed import NamedFields

CHOICES_OF_TRL = checks.CHOICES | {
    "loss_type": objective.LOSS_TYPES,
    "importance_sampling_level": objective.RATIOS,
    "scale_rewards": ADVANTAGE_RULES,
}
"""Fields that name a part of the method or of the objective, and the parts there are."""


def field_problems(args: Any, base: Method, *, own: bool) -> Iterator[str]:
    """One sentence per field that contradicts the method or another; ``settle`` has compared an ``own`` method."""
    method, rule, prior, values = f"method={args.method!r}", base.advantages, args.prompt_prior, args.prompt_values
    if prior is not None:
        yield from prior_problems(prior)
        if not (args.prompt_prune_rate or rule.from_history):
            yield f"prompt_prior={prior!r:.80} has no use: no prompts are pruned. Set prompt_prune_rate: auto."
        if values is not None:
            yield "prompt_prior and prompt_values are two priors of the same prompts. Leave prompt_values out."
    if base.needs_reference and not args.beta:
        yield f"{method} regresses on beta times a log-ratio, and beta=0. Write beta: {base.beta or 1e-3:g}."
    if rule.from_values and values is None:
        yield f"{method} needs prompt_values: FILE. Write it first: python examples/prompt_values.py CONFIG.yaml"
    if values is not None and not (rule.from_values or rule.from_history):
        yield f"{method} has no use for prompt_values={values!r}. Leave it out."
    yield from checks.fill_problems(args) if own else checks.method_problems(args, base)
    longest = args.loss_type == "dr_grpo" or ("normaliser" in base.fixes and base.normaliser is DR_GRPO)
    if longest and args.max_completion_length is None:
        yield "max_completion_length is null, and dr_grpo divides by it. Write max_completion_length: 512."
    for name in ("max_rounds", "round_factor"):
        if (value := getattr(args, name)) is not None and base.rounds is None:
            yield f"{method} has no rounds, but {name}={value:g}. Leave it out, or use method='dapo'."


@dataclass
class DPPOConfig(NamedFields, OwnSettings, GRPOConfig):
    """Arguments of ``DPPOTrainer``: those of ``OwnSettings``, and all of TRL's ``GRPOConfig``, with their meaning.

    Raises:
        ConfigError: at construction, listing every field that is out of range, biased without ``accept_bias``,
            or a TRL option that this trainer does not serve.
    """

    def __post_init__(self) -> None:
        if isinstance(self.method, Method):  # a configuration is written to files
            self._refuse(
                f"method is the value {self.method.name!r}, and a configuration holds names. Give it to the trainer: "
                "DPPOTrainer(..., method=mine). In a file write method: package.module:mine."
            )
        checks.read_rates(self)
        self.prompt_prior = read_prior(self.prompt_prior)
        if self.scale_rewards in (True, False):  # as TRL reads it
            self.scale_rewards = "group" if self.scale_rewards else "none"
        deepspeed = [DEEPSPEED] if self.deepspeed else []  # before transformers looks for the package
        self._refuse(*deepspeed, *checks.setting_problems(self, CHOICES_OF_TRL, ranges_of(self)))
        self.generation_batch_given = self.generation_batch_size is not None  # TRL fills it in for this process count
        self.method_given, self.method = self.method, self.method or DEFAULT_METHOD
        base, own = method_named(self.method), is_own(self.method)
        self._fill_in(base, own=own)
        self._check_sizes()
        self._check(base, own=own)

    def _check_sizes(self) -> None:
        """TRL's own checks; a batch that does not hold whole groups is refused with the next size that does."""
        alone, evaluated = self.num_generations == 1, self.num_generations_eval
        if alone:  # TRL wants more, and a baseline from history does not: any number that divides what TRL counts
            calls = self.steps_per_generation or self.gradient_accumulation_steps
            here = calls * self.per_device_train_batch_size
            self.num_generations = self.generation_batch_size or here * int(os.environ.get("WORLD_SIZE", "1"))
            if self.num_generations == 1:
                self._refuse("a generation of one completion. Write per_device_train_batch_size: 16.")
            self.num_generations_eval = evaluated or 1
        try:
            super().__post_init__()
        except ValueError as refused:
            if "divisible" not in str(refused):
                raise
            group, processes = self.num_generations or 1, self.world_size
            if "eval batch" in str(refused):
                name, group = "per_device_eval_batch_size", self.num_generations_eval or group
                unit = group // math.gcd(group, processes)
            elif self.generation_batch_given:
                name, unit = "generation_batch_size", math.lcm(group, self.per_device_train_batch_size * processes)
            else:
                name, steps = "per_device_train_batch_size", self.steps_per_generation or 1
                unit = group // math.gcd(group, processes * steps)
            self._refuse(f"{refused} Write {name}: {math.ceil(getattr(self, name) / unit) * unit}.")
        if alone:
            self.num_generations, self.num_generations_eval = 1, evaluated

    def with_method(self, method: Method | str) -> "DPPOConfig":
        """A copy for another method, named or of one's own. Fields that were left out get its values.

        Raises:
            ConfigError: the configuration names another method, or a field contradicts this one.
        """
        name = method if isinstance(method, str) else method.name
        if self.method_given is not None and self.method_given != method:
            problem = f"method={name!r} was given beside args.method={self.method_given!r}. Leave one of them out."
            raise_problems("DPPOTrainer", [problem])
        other = copy.copy(self)
        for field, filled in self._left_out.items():
            if getattr(other, field) == filled:  # else it was changed after the construction
                setattr(other, field, None)
        other.method = other.method_given = name
        if isinstance(method, str):
            self._refuse(*checks.setting_problems(other, CHOICES_OF_TRL, ranges_of(other)))
            base, own = method_named(method), is_own(method)
        else:
            base, own = method, True
        other._fill_in(base, own=own)
        other._check(base, own=own)
        return other

    def _check(self, base: Method, *, own: bool) -> None:
        self._refuse(*(list(field_problems(self, base, own=own)) or unsupported_options(self)))
        self._refuse(*checks.bias_problems(self, self.build_method(base if own else None).selection_bias))

    def _fill_in(self, base: Method, *, own: bool) -> None:
        """Give fields that were left out the values of the method, else TRL's defaults; refuse contradictions."""
        before = vars(self).copy()
        defaults = {field.name: field.default for field in fields(GRPOConfig)}
        if own:
            given = {name: defaults[name] for name in objective.OBJECTIVE} | objective.fields_of(base, PARTS)
            # As with TRL, a mixture of experts brings its own coefficient if none is given.
            given |= {"router_aux_loss_coef": base.router_coef or self.router_aux_loss_coef} | own_settings(base)
            self._refuse(*settle(self, base, given))
        else:
            unset = {field.name: field.default for field in fields(DPPOConfig)}
            checks.fill_in(self, base)
            given = {name: value for name in objective.OBJECTIVE if (value := getattr(self, name)) != unset[name]}
            self._refuse(*objective.contradictions(base, given))
            found = defaults | objective.fields_of(base) | given
            for name in objective.OBJECTIVE:
                setattr(self, name, found[name])
        self._left_out = {name: value for name, value in vars(self).items() if before.get(name, value) is None}
        if self.num_generations == 1 and not base.advantages.of_one:
            why = f"advantages by {base.advantages.name!r} compare a completion with itself"
            self._refuse(f"num_generations=1: {why}. Write num_generations: 2, or method: dppo_history.")

    def build_method(
        self, own: Method | None = None, *, sampler_log_probs: bool = False, model_config: Any = None
    ) -> Method:
        """The ``Method`` of a run: a preset with the pruning and objective of the fields, or one's own as it is.

        Args:
            own: the method that ``with_method`` was given; None for the one that ``method`` names.
            sampler_log_probs: True if rollouts have log-probabilities, which ``completion_score: auto`` uses.
            model_config: of the model, whose router loss belongs to the objective; None if it is not known.
        """
        base = method_named(self.method) if own is None else own
        if own is None and not is_own(self.method):
            parts = objective.objective_of(self, model_config) | objective.unnamed_parts(base)
            parts["advantages"] = emphasised(parts["advantages"], self.advantage_power)
            return pruned(self, replace(base, **parts), sampler_log_probs)
        if model_config is not None:
            base = replace(base, router_coef=objective.router_coef(self.router_aux_loss_coef, model_config))
        return with_rollout_cost(base, self.rollout_cost)


DPPOConfig.__doc__ = described(DPPOConfig, OwnSettings)
