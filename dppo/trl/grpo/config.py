"""``DPPOConfig``: every TRL ``GRPOConfig`` field plus ours, checked before anything is loaded."""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from trl.trainer.grpo_config import GRPOConfig

from dppo.errors import raise_problems
from dppo.methods import METHODS, Method
from dppo.methods.from_settings import RATES, pruned, with_rollout_cost
from dppo.methods.own import DECIDED, is_own, method_named, own_settings, settle
from dppo.methods.settings import (
    CHOICES,
    bias_problems,
    fill_in,
    fill_problems,
    method_problems,
    read_rates,
    setting_problems,
)
from dppo.objective import ADVANTAGE_RULES, DR_GRPO, AdvantageRule, emphasised
from dppo.pruning.prior import prior_problems, read_prior
from dppo.settings import DEFAULT_METHOD, OwnSettings, described
from dppo.trl.grpo.objective import (
    CONSTANTS,
    LOSS_TYPES,
    OBJECTIVE,
    PARTS,
    RATIOS,
    SETTINGS,
    WORDS,
    fields_of,
    objective_of,
    router_coef,
    unnamed_parts,
    unread_by,
)
from dppo.trl.served import DEEPSPEED, ranges_of, unsupported_options
from dppo.typed import NamedFields

FILLED = {*SETTINGS, *CONSTANTS, *RATES, "head_prune_rate", "completion_budget", "sampling_design"}
"""Fields that get a value of the method if they are None."""

CHOICES_OF_TRL = CHOICES | {
    "loss_type": LOSS_TYPES,
    "importance_sampling_level": RATIOS,
    "scale_rewards": ADVANTAGE_RULES,
}
"""Fields that name a part of the method or of the objective, and the parts there are."""


def contradictions(method: str, given: dict[str, Any]) -> list[str]:
    """One sentence per field that describes another objective than a preset's; empty if there is none."""
    own, any_objective = fields_of(METHODS[method]), "dppo" if METHODS[method].completions.rate else "grpo"
    other = f"or name a method that works on any objective: method: {any_objective}."
    return [
        f"method={method!r} has an objective of its own, {name}: {own[name]}, and {name}={given[name]!r} is another. "
        f"Leave {name} out, {other}"
        for name in SETTINGS
        if name in own and name in given and given[name] != own[name]
    ] + [
        f"method={method!r} brings its own {part}, which TRL's fields do not describe, so {name}={given[name]!r} would "
        f"change nothing of it. Leave {name} out, {other}"
        for name, part in unread_by(METHODS[method], given).items()
        if name in given
    ]


def field_problems(args: Any, own: Method | None = None) -> list[str]:
    """One sentence per field that contradicts the method or another field; empty if there is none.

    ``own`` is a method of one's own, which ``settle`` has compared with the fields; None for a preset.
    """
    base = METHODS[args.method] if own is None else own
    problems = _prior_problems(args, base) + _value_problems(args, base)
    problems += method_problems(args, base) if own is None else fill_problems(args)
    longest = args.loss_type == "dr_grpo" or ("normaliser" in base.fixes and base.normaliser is DR_GRPO)
    if longest and args.max_completion_length is None:
        problems.append(
            "max_completion_length is null, and dr_grpo divides by it. Write max_completion_length: 512, or another "
            "loss_type."
        )
    return problems + [
        f"method={args.method!r} has no rounds, but {name}={value:g}. Leave it out, or use method='dapo'."
        for name in ("max_rounds", "round_factor")
        if (value := getattr(args, name)) is not None and base.rounds is None
    ]


def _prior_problems(args: Any, base: Method) -> list[str]:
    """Problems of pass rates from a column, which must be used by some choice."""
    if (given := args.prompt_prior) is None:
        return []
    problems = prior_problems(given)
    if not (args.prompt_prune_rate or base.advantages.from_history):
        problems.append(
            f"prompt_prior={given!r:.80} has no use: no prompts are pruned, and no baseline is from history. Set "
            "prompt_prune_rate: auto, or leave it out."
        )
    if args.prompt_values is not None:
        problems.append("prompt_prior and prompt_values are two priors of the same prompts. Leave prompt_values out.")
    return problems


def _value_problems(args: Any, base: Method) -> list[str]:
    """Problems of values estimated before training, and of the reference policy that they need."""
    problems = []
    if base.needs_reference and not args.beta:
        problems.append(
            f"method={args.method!r} regresses on the log-ratio to a reference, times beta, and beta=0. Write beta: "
            f"{base.beta or 1e-3:g}, or leave it out."
        )
    rule, given = base.advantages, args.prompt_values
    if rule.from_values and given is None:
        problems.append(
            f"method={args.method!r} needs the value of every prompt. Set prompt_values: FILE, and let dppo values "
            "CONFIG.yaml write that file before training."
        )
    if given is not None and not (rule.from_values or rule.from_history):
        problems.append(f"method={args.method!r} has no use for prompt_values={given!r}. Leave it out.")
    return problems


@dataclass
class DPPOConfig(NamedFields, OwnSettings, GRPOConfig):
    """Arguments of ``DPPOTrainer``: those of ``OwnSettings``, and all of TRL's ``GRPOConfig``, with their meaning.

    Raises:
        ConfigError: at construction, listing every field that is out of range, biased without ``accept_bias``,
            or a TRL option that this trainer does not serve.
    """

    def __post_init__(self) -> None:
        if isinstance(self.method, Method):  # a configuration is written to files
            advice = (
                "Give it to the trainer: DPPOTrainer(..., method=mine). In a file write method: package.module:mine."
            )
            raise_problems(
                "DPPOConfig", [f"method is the value {self.method.name!r}, and a configuration holds names. {advice}"]
            )
        read_rates(self)
        self.prompt_prior = read_prior(self.prompt_prior)
        if self.scale_rewards in (True, False):  # as TRL reads it
            self.scale_rewards = "group" if self.scale_rewards else "none"
        problems = [DEEPSPEED] if self.deepspeed else []  # before transformers looks for the package
        raise_problems("DPPOConfig", problems + setting_problems(self, CHOICES_OF_TRL, ranges_of(self)))
        self.generation_batch_given = self.generation_batch_size is not None  # TRL fills it in for this process count
        self.method_given, self.method = self.method, self.method or DEFAULT_METHOD
        own = method_named(self.method) if is_own(self.method) else None
        self._fill_in(own)
        with self._groups_of_one((own or METHODS[self.method]).advantages):
            super().__post_init__()
        self._check(own)

    def with_method(self, method: Method | str) -> "DPPOConfig":
        """A copy for another method. Fields that were left out get its values.

        Args:
            method: a name as for the field ``method``, or a method of one's own.

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
            raise_problems("DPPOConfig", setting_problems(other, CHOICES_OF_TRL, ranges_of(other)))
            own = method_named(name) if is_own(name) else None
        else:
            own = method
        other._fill_in(own)
        if other.num_generations == 1:
            raise_problems("DPPOConfig", _alone((own or METHODS[name]).advantages))
        other._check(own)
        return other

    def _check(self, own: Method | None) -> None:
        """Check the fields against a method of one's own, or against the preset that ``method`` names."""
        raise_problems("DPPOConfig", field_problems(self, own) or unsupported_options(self))
        raise_problems("DPPOConfig", bias_problems(self, self.build_method(own).selection_bias))

    @contextmanager
    def _groups_of_one(self, rule: AdvantageRule) -> Iterator[None]:
        """A context in which TRL accepts one completion per prompt: a baseline from history does not need two.

        Raises:
            ConfigError: one completion a prompt, and advantages that would all be 0.
        """
        if self.num_generations != 1:
            yield
            return
        raise_problems("DPPOConfig", _alone(rule))
        per_step = self.per_device_train_batch_size * (self.steps_per_generation or self.gradient_accumulation_steps)
        # Any number above 1 that divides what TRL counts on all processes.
        self.num_generations = self.generation_batch_size or per_step * int(os.environ.get("WORLD_SIZE", "1"))
        if self.num_generations == 1:
            raise_problems("DPPOConfig", ["a generation of one completion. Write per_device_train_batch_size: 16."])
        evaluated, self.num_generations_eval = self.num_generations_eval, self.num_generations_eval or 1
        yield
        self.num_generations, self.num_generations_eval = 1, evaluated

    def _fill_in(self, own: Method | None) -> None:
        """Give fields that were left out the values of the method, else TRL's defaults.

        ``own`` is a method of one's own; None for the preset that ``method`` names.

        Raises:
            ConfigError: a field contradicts the method.
        """
        left_out = [each.name for each in fields(self) if each.name in FILLED and getattr(self, each.name) is None]
        defaults = {field.name: field.default for field in fields(GRPOConfig)}
        if own is None:
            self._fill_in_preset(METHODS[self.method], defaults)
        else:
            given = {name: defaults[name] for name in OBJECTIVE} | fields_of(replace(own, fixes=PARTS))
            # As with TRL, a mixture of experts brings its own coefficient if none is given.
            given |= {"router_aux_loss_coef": own.router_coef or self.router_aux_loss_coef} | own_settings(own)
            raise_problems("DPPOConfig", settle(self, own, given, (*DECIDED, *OBJECTIVE)))
        self._left_out = {name: getattr(self, name) for name in left_out}

    def _fill_in_preset(self, method: Method, defaults: dict[str, Any]) -> None:
        fill_in(self, method)
        given = {name: value for name in (*SETTINGS, *CONSTANTS) if (value := getattr(self, name)) is not None}
        others = {name for names in WORDS.values() for name in names} - {*SETTINGS, *CONSTANTS}
        given |= {name: value for name in sorted(others) if (value := getattr(self, name)) != defaults[name]}
        raise_problems("DPPOConfig", contradictions(self.method, given))
        own = fields_of(method)
        for name in (*SETTINGS, *CONSTANTS):
            setattr(self, name, given.get(name, own.get(name, defaults[name])))

    def build_method(
        self, own: Method | None = None, *, sampler_log_probs: bool = False, model_config: Any = None
    ) -> Method:
        """The ``Method`` of a run: of a preset and these arguments, or the method of one's own as it is.

        A preset gets its pruning from our fields and its objective from TRL's.

        Args:
            own: the method that ``with_method`` was given; None for the one that ``method`` names.
            sampler_log_probs: True if rollouts have log-probabilities, which ``completion_score: auto`` uses.
            model_config: of the model, whose router loss belongs to the objective; None if it is not known.
        """
        if own is None and is_own(self.method):
            own = method_named(self.method)
        if own is None:
            base = METHODS[self.method]
            return self._built(base, unnamed_parts(base), sampler_log_probs, model_config)
        if model_config is not None:
            own = replace(own, router_coef=router_coef(self.router_aux_loss_coef, model_config))
        return own if self.rollout_cost is None else with_rollout_cost(own, self.rollout_cost)

    def build_other(self, name: str, *, sampler_log_probs: bool = False) -> Method:
        """Another method as this run would train it, at rates of 0, with this run's objective where it fixes none."""
        base = method_named(name)
        if is_own(name):
            return replace(base.with_rates(prompt=0.0, completion=0.0), tokens=base.tokens.at_rate(0.0, 0.0))
        other = copy.copy(self)
        other.method, other.prompt_prune_rate, other.completion_prune_rate = name, 0.0, 0.0
        other.token_prune_rate, other.head_prune_rate = 0.0, 0.0
        own = {part: getattr(base, part) for part in base.fixes}
        # Emphasised advantages mean something else in groups of another size: then all are of one.
        base = replace(base, sizes=None) if self.advantage_power else base
        return other._built(base, own, sampler_log_probs, None)

    def _built(self, base: Method, own: dict[str, Any], sampler_log_probs: bool, model_config: Any) -> Method:
        objective = objective_of(self, model_config) | own
        objective["advantages"] = emphasised(objective["advantages"], self.advantage_power)
        return pruned(self, replace(base, **objective), sampler_log_probs)


def _alone(rule: AdvantageRule) -> list[str]:
    """The sentence that refuses groups of one completion whose advantages would all be 0."""
    if rule.of_one:
        return []
    return [
        f"num_generations=1 with advantages by {rule.name!r} has no gradient: a completion is compared with itself. "
        "Write num_generations: 2, or method: dppo_history, whose baseline is from history."
    ]


DPPOConfig.__doc__ = described(DPPOConfig, OwnSettings)
