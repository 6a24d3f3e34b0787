"""``DPPOConfig``: every TRL ``GRPOConfig`` field plus ours, checked before anything is loaded."""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from trl.trainer.grpo_config import GRPOConfig

from dppo.errors import raise_problems
from dppo.methods import METHODS, Method
from dppo.objective import emphasised
from dppo.pruning import PIVOTAL, Pruning
from dppo.pruning.schedules import FULL_SHARE
from dppo.step.asked import AUTO, RATES, pruned
from dppo.trl.fields import (
    DEFAULT_METHOD,
    contradictions,
    field_problems,
    read_rate,
    value_problems,
)
from dppo.trl.objective import CONSTANTS, SETTINGS, fields_of, objective_of, unnamed_parts
from dppo.trl.ranges import range_problems
from dppo.trl.support import unsupported_options

LEFT_OUT: Any = None
"""Default of fields that the method fills in: None in a configuration, never in a ``DPPOConfig``."""


@dataclass
class DPPOConfig(GRPOConfig):
    """Arguments of ``DPPOTrainer``. TRL's fields keep their meaning; these come on top.

    Raises:
        ConfigError: at construction, listing every field that is out of range, biased without ``accept_bias``,
            or a TRL option this trainer does not serve (with what to use instead).
    """

    method: str = field(
        default=LEFT_OUT,
        metadata={
            "help": "How completions and prompts are pruned: `dppo` (the default: probability proportional to the "
            "score, unbiased), `dppo_threshold` (the paper's rule, unbiased), `dppo_deterministic` (the paper's "
            "Algorithm 1, biased), `infobatch` (prompts only), `cppo`, `cppo_trl`, `cppo_verl`, `pods` "
            "(biased), `dapo` (rounds of rollouts until enough groups have rewards that differ, biased), `greso` (such "
            "rounds without prompts that gave nothing time after time, biased), `greso_compat` (as in its code, for "
            "rewards of 0, 0.1 and 1), `dppo_history` (a baseline from each prompt's history, for 1, 2 or 4 "
            "completions a prompt; `_scaled` divides by a deviation from history, `_sizes` has group sizes by it), "
            "`grpo_history` (the same, nothing pruned), or `grpo` (nothing is pruned). Names with an objective of "
            "their own, such as `dr_grpo`, `gspo` or `dppo_gspo`, fill in TRL's fields where they are left out; all "
            "others work on the objective that TRL's fields describe, whose normaliser decides whether pruned prompts "
            "are biased."
        },
    )
    loss_type: str = field(
        default=LEFT_OUT,
        metadata={"help": "As in TRL, all of whose losses are served. Default: the method's own, or TRL's `dapo`."},
    )
    importance_sampling_level: str = field(
        default=LEFT_OUT, metadata={"help": "As in TRL: `token` or `sequence`. Default: the method's own, or `token`."}
    )
    scale_rewards: str = field(
        default=LEFT_OUT,
        metadata={"help": "As in TRL: `group`, `batch` or `none`. Default: the method's own, or `group`."},
    )
    multi_objective_aggregation: str = field(
        default=LEFT_OUT,
        metadata={
            "help": "As in TRL: `sum_then_normalize` or `normalize_then_sum`. Default: the method's own, or the first."
        },
    )
    epsilon: float = field(
        default=LEFT_OUT, metadata={"help": "As in TRL: lower clip. Default: the method's own, or 0.2."}
    )
    beta: float = field(
        default=LEFT_OUT,
        metadata={"help": "As in TRL: coefficient of the KL term, >= 0. Default: the method's own, or 0."},
    )
    entropy_coef: float = field(
        default=LEFT_OUT,
        metadata={"help": "As in TRL: coefficient of the entropy bonus. Default: the method's own, or 0."},
    )
    completion_prune_rate: float | str | None = field(
        default=LEFT_OUT,
        metadata={
            "help": "Share of the completions with a gradient that is not trained on, in [0, 1). Completions without "
            "a gradient (zero advantage, beta=0) are always skipped: that is exact. `auto`: chosen in each step from "
            "the scores, before the draw, 0 where nothing is to be had. Default: the method's, 0.5 for those that "
            "prune completions."
        },
    )
    prompt_prune_rate: float | str | None = field(
        default=LEFT_OUT,
        metadata={
            "help": "Share of the candidate prompts with a history that is not rolled out, in [0, 1). Prompts never "
            "seen are always rolled out, so this does nothing in the first epoch. `auto`: starts unpruned and is "
            "chosen from what prompts gave when they came back, 0 where nothing is to be had. Default: the method's, "
            "0 for all but `infobatch`, which has 0.5."
        },
    )
    prune_schedule: str = field(
        default=AUTO,
        metadata={
            "help": "How the rates change over the run: `constant`, `stop` (0 after prune_until), `fade` (down to 0 "
            "in a straight line from prune_until to the end), or `auto`: the method's own, `stop` for `infobatch` "
            "and `constant` for all others."
        },
    )
    prune_until: float = field(
        default=FULL_SHARE,
        metadata={"help": "Share of the run, in [0, 1], with the full rates where prune_schedule is not `constant`."},
    )
    advantage_power: float = field(
        default=0.0,
        metadata={
            "help": "p > -1 in A * abs(A)^p, which takes the place of the advantage A; above 0 it stresses rare "
            "outcomes. That is another objective than the reward's; pruning it is as unbiased as pruning its own."
        },
    )
    prompt_mode: str = field(
        default="thin",
        metadata={
            "help": "`thin`: a block is the usual number of prompts and fewer are rolled out, so steps are cheaper. "
            "`fill`: blocks are longer and rollout batches stay full; a run takes as many steps and sees more prompts "
            "(`candidates/epoch` counts its epochs)."
        },
    )
    max_rounds: int | None = field(
        default=None,
        metadata={
            "help": "Most rounds of rollouts per generation where the method has rounds, >= 0; 0 is no limit. There "
            "`dapo` saves the run and stops, `greso` trains on the groups there are. Default: the method's, 10."
        },
    )
    round_factor: float | None = field(
        default=None,
        metadata={
            "help": "Prompts of a round as a multiple of those of a generation, > 0, where the method has rounds. "
            "Default: the method's, 1 for `dapo` (3 in its paper), 1.5 for `greso`, whose later rounds are smaller."
        },
    )
    prune_floor: float | None = field(
        default=None,
        metadata={
            "help": "Smallest probability of keeping a prompt or completion, in (0, 1 - rate]; no weight exceeds one "
            "over it per level. Default: 0.2, or half of 1 - rate where that is smaller."
        },
    )
    completion_score: str = field(
        default=AUTO,
        metadata={
            "help": "What completions are ranked by: `advantage`, `length` (abs(A) * sqrt(tokens)), `confidence` "
            "(abs(A) * sqrt(sum (1 - p)^2), needs the sampler's log-probabilities), `uniform` (all alike: the control "
            "that shows what a score is worth), or `auto`: the score of the "
            "method's paper, and for `dppo` `confidence` where rollouts come with log-probabilities (vLLM, "
            "rollout_func), otherwise `length`, or `advantage` where the loss is a mean over tokens (grpo)."
        },
    )
    completion_budget: str = field(
        default=LEFT_OUT,
        metadata={
            "help": "What completion_prune_rate is a share of: `rows` (completions) or `tokens` (long completions then "
            "cost more). Default: the method's own, or `rows`."
        },
    )
    sampling_design: str = field(
        default=LEFT_OUT,
        metadata={
            "help": "How completions are drawn given their probabilities: `pivotal`, `systematic` or `poisson`. "
            "Prompts are always drawn with a fixed size. Default: the method's own, or `pivotal`."
        },
    )
    history_half_life: float | None = field(
        default=None,
        metadata={
            "help": "Generations after which half of a prompt's remembered signal has faded to the prior, > 0. "
            "Default: those of three epochs, since a prompt comes back once an epoch."
        },
    )
    difficulty_features: str | None = field(
        default=None,
        metadata={
            "help": "What predicts how well a prompt will be answered before its first visit, for methods with a "
            "baseline from history: `length` (of the prompt) and `column:NAME` (a column of numbers), with commas "
            "between. Default: nothing, all prompts start from the mean over all. docs/difficulty.md."
        },
    )
    reward_range: list[float] | None = field(
        default=None,
        metadata={
            "help": "Lowest and highest reward that `difficulty_features` predict, of every reward function or of each "
            "in turn. A reward outside stops the run. Default: 0 and 1."
        },
    )
    max_tokens_per_row: int | None = field(
        default=None,
        metadata={
            "help": "Tokens of one forward pass, >= 1: what bounds memory, whatever per_device_train_batch_size is. "
            "Default: per_device_train_batch_size times the longest sequence of the batch, which is what TRL itself "
            "would forward at once. How to choose it: docs/packing.md."
        },
    )
    layout: str = field(
        default="rows",
        metadata={
            "help": "How kept completions are forwarded. `rows`: dense, nothing padded, shared prompts once; a model "
            "that rows cannot serve is padded, and the run says so. `packed`: the same without sharing prompts. "
            "`auto`: `rows`, and padded too if the self-check at the start fails, which otherwise stops the run. "
            "`padded`: length-sorted padding."
        },
    )
    reward_time_limit: float | None = field(
        default=None,
        metadata={"help": "Seconds a reward function may take for one batch before the run stops with an error, > 0."},
    )
    record_completions: int = field(
        default=16,
        metadata={
            "help": "Most completions that a logged step writes to completions.jsonl, >= 0, in whole groups (one group "
            "at least where it is not 0)."
        },
    )
    accept_bias: bool = field(
        default=False,
        metadata={"help": "Must be set to train with a method whose expected gradient is not the full batch's."},
    )
    accept_missing: bool = field(
        default=False,
        metadata={
            "help": "Must be set to resume from a checkpoint without its optimizer, scheduler or random numbers, with "
            "new ones: the run is then another one."
        },
    )

    def __post_init__(self) -> None:
        for name in RATES:
            setattr(self, name, read_rate(getattr(self, name)))
        raise_problems("DPPOConfig", [*value_problems(self, DPPOConfig.__annotations__), *range_problems(self)])
        self.generation_batch_given = self.generation_batch_size is not None  # TRL fills it in for this process count
        self._fill_in()
        with self._groups_of_one():
            super().__post_init__()
        unsupported = partial(unsupported_options, self, generation_batch_given=self.generation_batch_given)
        raise_problems("DPPOConfig", field_problems(self) or unsupported())
        method = self.build_method()
        if method.selection_bias and not self.accept_bias:
            raise_problems(
                "DPPOConfig",
                [
                    f"method={self.method!r} is biased: {'; '.join(method.selection_bias)}. "
                    "Use method='dppo', or set accept_bias=True to train with it on purpose."
                ],
            )

    @contextmanager
    def _groups_of_one(self) -> Iterator[None]:
        """TRL asks for two completions a prompt, which its own advantages need: a baseline from history does not.

        Raises:
            ConfigError: one completion a prompt, and advantages that would all be 0.
        """
        if self.num_generations != 1:
            yield
            return
        rule = METHODS[self.method].advantages if self.method in METHODS else None
        if rule is not None and not rule.from_history:
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
        self.method = DEFAULT_METHOD if self.method is None else self.method
        if self.scale_rewards in (True, False):  # as TRL reads it
            self.scale_rewards = "group" if self.scale_rewards else "none"
        given = {name: value for name in (*SETTINGS, *CONSTANTS) if (value := getattr(self, name)) is not None}
        defaults = {field.name: field.default for field in fields(GRPOConfig)}
        own = {}
        if self.method in METHODS:
            raise_problems("DPPOConfig", contradictions(self.method, given))
            own = fields_of(METHODS[self.method])
        for name in (*SETTINGS, *CONSTANTS):
            setattr(self, name, given.get(name, own.get(name, defaults[name])))
        base = METHODS.get(self.method, METHODS["grpo"])
        if self.completion_prune_rate is None:
            self.completion_prune_rate = base.completions.rate
        if self.prompt_prune_rate is None:
            self.prompt_prune_rate = base.prompts.rate
        drawn = base.completions if isinstance(base.completions, Pruning) else Pruning()
        if self.completion_budget is None:
            self.completion_budget = drawn.budget
        if self.sampling_design is None:
            self.sampling_design = drawn.design.name if drawn.design.unbiased else PIVOTAL.name

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
