"""The settings of a run that are this library's own, with their texts: what ``DPPOConfig`` has beside TRL's.

The texts are here and nowhere else: ``dppo train --help``, ``help(DPPOConfig)`` and the reference's page are made of
them. Nothing else is imported here, so that help comes at once.
"""

import inspect
import textwrap
from dataclasses import dataclass, field, fields
from typing import Any

AUTO = "auto"
FULL_SHARE = 0.875
"""Share of a run that InfoBatch prunes in (its delta)."""
LEFT_OUT: Any = None
"""Default of fields that the method fills in: None in a configuration, never in a ``DPPOConfig``."""


@dataclass
class OwnSettings:
    """What ``DPPOConfig`` adds to TRL's ``GRPOConfig``, and fields of TRL's that a method fills in."""

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
            "`grpo_history` (the same, nothing pruned), `a_star_po` (regression on an advantage against a value of "
            "each prompt from before training), or `grpo` (nothing is pruned). Names with an objective of "
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
            "the scores, before the draw, 0 where nothing is to be had. Default: `auto` where the method "
            "draws as `dppo` does, 0.5 for others that prune completions, 0 for the rest."
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
    prompt_values: str | None = field(
        default=None,
        metadata={
            "help": "File that `dppo values` writes and, where it exists, training reads: what the model did on each "
            "prompt before training. `a_star_po` needs it; a baseline from history has it as a prompt's prior until "
            "the first visit. Default: none."
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
        metadata={
            "help": "Seconds a reward function may take for one batch before the run stops with an error, > 0. "
            "Default: no limit."
        },
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


def with_default(text: str, default: Any) -> str:
    """A field's text with its default, unless the text speaks of it.

    Args:
        text: of the field.
        default: what takes effect where the field is left out.
    """
    if "default" in text.lower():
        return text
    value = f"{default}".lower() if default is None or isinstance(default, bool) else default
    return f"{text} (default: {'none' if value == '' else value})"


def described(kind: type, own: type) -> str:
    """The docstring of a class with the texts of its fields.

    Args:
        kind: a dataclass with a docstring.
        own: the dataclass among its bases, or itself, whose fields are listed.
    """
    lines = [inspect.cleandoc(kind.__doc__ or ""), "", "Attributes:"]
    for each in fields(own):
        annotation = each.type.__name__ if isinstance(each.type, type) else str(each.type)
        text = f"{each.name} ({annotation}): {with_default(each.metadata['help'], each.default)}"
        lines += textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="        ", break_on_hyphens=False)
    return "\n".join(lines)
