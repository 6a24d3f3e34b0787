"""The table of settings, one class for each kind of trainer; ``same`` takes a setting over from the first one.

Fields, checks, help, the reference and what a checkpoint remembers come from here. Only the standard library is
imported, so that help comes at once.
"""

import inspect
import textwrap
from collections.abc import Collection
from dataclasses import Field, dataclass, field, fields
from typing import Any

AUTO = "auto"
DEFAULT_METHOD = "dppo"
"""Method of a run that names none; its objective is then that of TRL's defaults."""
FULL_SHARE = 0.875
"""Share of a run that InfoBatch prunes in (its delta)."""
LEFT_OUT: Any = None
"""Default of fields that the method fills in: None in a configuration, never in a ``DPPOConfig``."""

DRAWS, BATCH, UPDATE = "draws", "batch", "update"
"""Effects of a setting that changes on resume: the draws and advantages of the next generation; also the generation in
use, which is rolled out again; every later update."""


@dataclass(frozen=True)
class Setting:
    """Range, choices, example and effect of a setting."""

    range: str = ""
    """Interval of its numbers, such as ``[0, 1)``; None, where the type allows it, is in every range."""
    choices: Collection[str] = ()
    """Its words. A setting that names a part, such as a method, is checked against the parts there are."""
    example: Any = None
    """A value that works, for errors; None for the default."""
    remembered: str = DRAWS
    """Effect of a change on resume, which the resumed run reports; empty for a setting that may change silently."""


TABLE: dict[Field[Any], Setting] = {}
"""By field, and not in its metadata, which TRL's parser hands to ``argparse``."""


def setting(default: Any, text: str, **told: Any) -> Any:
    """One setting of a dataclass, with its text for help; ``told`` are fields of its ``Setting``."""
    made = field(default=default, metadata={"help": text})
    TABLE[made] = Setting(**told)
    return made


RATE: dict[str, Any] = {"range": "[0, 1)", "choices": (AUTO,), "example": 0.5}
NO_TRACE = (
    *("batch_eval", "bf16_full_eval", "fp16_full_eval", "dataloader_", "dataset_num_proc", "ddp_", "debug"),
    *("disable_tqdm", "do_", "enable_jit", "eval_", "greater_is", "hub_", "include_", "load_best", "local_rank"),
    *("log_", "logging_", "metric_for", "num_completions_to_print", "num_generations_eval", "output_dir"),
    *("per_device_eval", "precompute_", "prediction_loss", "project", "push_to_hub", "report_to", "restore_callback"),
    *("resume_from", "run_name", "save_", "skip_memory", "torch_empty", "trackio_", "vllm_enable_sleep", "vllm_gpu"),
    *("vllm_group_port", "vllm_server", "gradient_checkpointing", "activation_", "token_budget"),
)
"""Beginnings of names of fields of TRL and transformers that decide what a run writes and measures, not what it learns:
a resumed run may have others. All other fields are remembered, those of later versions too."""


@dataclass
class DrawSettings:
    """Settings of a method's draws, the same for every trainer that rolls completions out."""

    method: str = setting(
        LEFT_OUT,
        "How completions and prompts are pruned. `dppo` (the default): probability proportional to the score; "
        "`dppo_history`: the same with a baseline from each prompt's history, for 1, 2 or 4 completions a prompt; "
        "`grpo`: nothing is pruned. All others are on a page (dppo docs methods), such as `infobatch` (prompts), "
        "`cppo`, `pods`, `dapo`, `greso` (biased) and `a_star_po`. Names with an objective of their own, such as "
        "`dr_grpo` or `dppo_gspo`, fill in TRL's fields where they are left out. `package.module:name` is a method of "
        "your own: it is complete, and a setting that contradicts it is refused (dppo docs extending).",
        remembered=BATCH,
    )
    completion_prune_rate: float | str | None = setting(
        LEFT_OUT,
        "Share of the completions with a gradient that is not trained on, in [0, 1). Those without one (zero "
        "advantage, beta=0) are always skipped: that is exact. `auto`: chosen in each step by the scores, 0 if nothing "
        "is gained. Default: `auto` if the method draws as `dppo` does, 0.5 for others that prune completions, else 0.",
        **RATE,
    )
    prompt_prune_rate: float | str | None = setting(
        LEFT_OUT,
        "Share of the candidate prompts with a history that is not rolled out, in [0, 1). New prompts are always "
        "rolled out, so nothing is pruned in the first epoch. `auto`: chosen from earlier visits, 0 if nothing is "
        "gained. Default: the method's, 0 for all but `infobatch`, which has 0.5.",
        **RATE,
    )
    token_prune_rate: float | str | None = setting(
        LEFT_OUT,
        "Mean share of the completion tokens behind a random cut, in [0, 1): neither forwarded nor trained on. A cut "
        "at 0 drops a completion, so completion_prune_rate is 0 if left out. Needs the sampler's log-probabilities "
        "(vLLM, rollout_func) and a loss of one token at a time. `auto`: chosen in each step, 0 if nothing is gained. "
        "Default: the method's own, 0 for all but `nat_rpc`.",
        **RATE,
    )
    head_prune_rate: float | None = setting(
        LEFT_OUT,
        "Share of the forwarded completion tokens that skip the head of the model and carry no loss, in [0, 1). Saves "
        "the vocabulary's part of the compute. Needs what token_prune_rate needs. Refused above 0 on verl, whose "
        "engine computes the head for every token of a row. Default: the method's own, 0 for all but `nat_urs`.",
        range="[0, 1)",
        example=0.85,
    )
    prompt_mode: str = setting(
        "thin",
        "`thin`: a block is the usual number of prompts and fewer are rolled out, so steps are cheaper. `fill`: blocks "
        "are longer and rollout batches stay full, so a run sees more prompts (`candidates/epoch` counts its epochs).",
        choices=("thin", "fill"),
    )
    completion_score: str = setting(
        AUTO,
        "Score of a completion: `advantage`, `length` (abs(A) * sqrt(tokens)), `uncertainty` (abs(A) * sqrt(sum (1 - "
        "p)^2), needs the sampler's log-probabilities), `uniform` (a baseline), or `auto`: that of the method's paper, "
        "and for `dppo` `uncertainty` if rollouts have log-probabilities (vLLM, rollout_func), else `length`, or "
        "`advantage` if the loss is a mean over each completion (grpo).",
    )
    completion_budget: str = setting(
        LEFT_OUT,
        "Unit of completion_prune_rate: `rows` (completions) or `tokens` (long completions then cost more). Default: "
        "the method's own, or `rows`.",
        choices=("rows", "tokens"),
    )
    sampling_design: str = setting(
        LEFT_OUT,
        "How completions are drawn given their probabilities: `pivotal`, `systematic` or `poisson`. Prompts are always "
        "drawn with a fixed size. Default: the method's own, or `pivotal`.",
    )
    prune_floor: float | None = setting(
        None,
        "Smallest probability of keeping a prompt or completion, or of reaching a token or the head, in (0, 1 - rate]; "
        "no weight exceeds one over it per level. With `auto` at most 0.45. Default: 0.2, with `auto` 0.1 of "
        "completions and 0.3 of prompts, 0.05 of tokens, or half of what is kept if that is smaller. A completion "
        "that has nothing to lose by its score has 0.02, if it is drawn as `dppo` does.",
        range="(0, 1]",
    )
    prune_schedule: str = setting(
        AUTO,
        "How the rates change over the run: `constant`, `stop` (0 after prune_until), `fade` (linear to 0 from "
        "prune_until to the end), or `auto`: the method's own, `stop` for `infobatch` and `constant` for all others.",
    )
    prune_until: float = setting(
        FULL_SHARE, "Share of the run, in [0, 1], at full rates if prune_schedule is not `constant`.", range="[0, 1]"
    )
    rollout_cost: float | None = setting(
        None,
        "Cost of a generated token over one more that is scored and trained on, >= 0. `auto` drops fewer completions "
        "and tokens if rollouts are dear. Default: 1; `DPPOTrainer` measures it in the first generations, on one "
        "process, rounds it to a power of two and keeps it in checkpoints. With a number, choices depend on no clock.",
        range="[0, inf)",
        example=1.0,
    )
    history_half_life: float | None = setting(
        None,
        "Generations until half of a prompt's signal has faded to the prior, > 0. Default: those of three epochs.",
        range="(0, inf]",
    )
    accept_bias: bool = setting(
        False, "Must be set to train with a method whose expected gradient is not the full batch's.", remembered=""
    )


def of_trl(text: str, default: str, **more: Any) -> Any:
    """A setting of TRL's that a method fills in."""
    return setting(LEFT_OUT, f"As in TRL: {text}. Default: the method's own, or {default}.", **more)


@dataclass
class OwnSettings(DrawSettings):
    """Fields that ``DPPOConfig`` adds to TRL's ``GRPOConfig``, and fields of TRL's that a method fills in."""

    loss_type: str = of_trl("all of its losses are served", "`dapo`", remembered=BATCH)
    importance_sampling_level: str = of_trl("`token` or `sequence`", "`token`", remembered=UPDATE)
    scale_rewards: str = of_trl("`group`, `batch` or `none`", "`group`")
    multi_objective_aggregation: str = of_trl(
        "`sum_then_normalize`, `normalize_then_sum`", "the first", choices=("sum_then_normalize", "normalize_then_sum")
    )
    epsilon: float = of_trl("lower clip", "0.2", range="[0, inf)", remembered=UPDATE)
    beta: float = of_trl("coefficient of the KL term, >= 0", "0", range="[0, inf)", remembered=BATCH)
    entropy_coef: float = of_trl("coefficient of the entropy bonus", "0", remembered=BATCH)
    advantage_power: float = setting(
        0.0,
        "p > -1 in A * abs(A)^p, which replaces the advantage A. Above 0 rare outcomes count more: another objective.",
        range="(-1, inf)",
    )
    max_rounds: int | None = setting(
        None,
        "Most rounds of rollouts per generation if the method has rounds, >= 0; 0 is no limit. There `dapo` saves the "
        "run and stops, `greso` trains on the groups there are. Default: the method's, 10.",
        range="[0, inf)",
    )
    round_factor: float | None = setting(
        None,
        "Prompts of a round over those of a generation, > 0, if the method has rounds. Default: the method's, 1 for "
        "`dapo` (3 in its paper), 1.5 for `greso`, whose later rounds are smaller.",
        range="(0, inf)",
    )
    prompt_prior: dict | str | None = setting(  # noqa: RUF009
        None,
        "Pass rates of prompts before their first visit, from a column of the dataset: `{column: solve_rate, "
        "completions: 4}` counts each as much as 4 completions of the run, so that prompts are pruned in the first "
        "epoch. Unbiased even if they are wrong; misleading ones are turned off. Default: none. dppo docs savings.",
    )
    prompt_values: str | None = setting(
        None,
        "File that `examples/prompt_values.py` writes and training reads: what the model did on each prompt before "
        "training. `a_star_po` needs it; a baseline from history has it as a prompt's prior. Default: none.",
    )
    max_tokens_per_row: int | None = setting(
        None,
        "Tokens of one forward pass, >= 1: what bounds memory. Default: per_device_train_batch_size times the longest "
        "sequence of the batch, as in TRL. On a GPU 8 to 16 thousand are good: dppo docs packing.",
        range="[1, inf)",
        remembered="",
    )
    layout: str = setting(
        "rows",
        "How kept sequences are forwarded. `rows`: dense, nothing padded, shared prompts once; a model that rows "
        "cannot serve is padded, and the run says so. `packed`: the same without sharing prompts. `auto`: `rows`, and "
        "padded if the self-check at the start fails. `padded`: length-sorted padding.",
        choices=("rows", "packed", "auto", "padded"),
        remembered="",
    )
    reward_time_limit: float | None = setting(
        None,
        "Seconds a reward function may take for one batch before the run stops with an error, > 0. Default: no limit.",
        range="(0, inf)",
        remembered="",
    )
    log_metrics: str = setting(
        "main",
        "Metrics of pruning in the log, beside TRL's: `main`, the first ten of dppo docs metrics, or `all`.",
        choices=("main", "all"),
        remembered="",
    )
    accept_missing: bool = setting(
        False,
        "Must be set to resume from a checkpoint that has lost its optimizer, scheduler, random numbers, history or "
        "generation in use, with new ones: the run is then another one.",
        remembered="",
    )


def same(name: str, **other: Any) -> Any:
    """A setting of ``OwnSettings`` as another trainer has it: ``other`` is the ``default`` or ``text`` that differs."""
    given = OwnSettings.__dataclass_fields__[name]
    return setting(**{"default": given.default, "text": given.metadata["help"], **vars(TABLE[given]), **other})


@dataclass
class RowSettings:
    """Fields that trainers on the rows of a dataset add to TRL's arguments."""

    method: str = same(
        "method",
        default=DEFAULT_METHOD,
        text="How rows are pruned: `dppo` (probability proportional to the recorded score), `uniform` (a baseline), "
        "`infobatch` (once an epoch, rows below the mean score, the last eighth of the run unpruned), or "
        "`infobatch_kept` (the same, averaged over what is kept: biased). `package.module:name` is a `RowMethod` of "
        "your own, which is complete (dppo docs extending).",
    )
    row_prune_rate: float = setting(
        LEFT_OUT,
        "Share of the rows with a recorded score that is not trained on, in [0, 1): of their tokens for `dppo` and "
        "`uniform`, of the rows below the mean for `infobatch`. Rows without a score are always trained on, so nothing "
        "is pruned in the first epoch. Default: the method's, 0.5; of a streamed dataset, and with a router loss and "
        "no `accept_bias`, 0.",
        range="[0, 1)",
        example=0.5,
    )
    row_score: str = setting(
        AUTO,
        "What is recorded of a visit: `norm` (about the norm of the row's gradient), `loss`, or `auto`: the method's "
        "own, `norm` for `dppo` and `loss` for `infobatch`.",
        choices=(AUTO, "norm", "loss"),
    )
    prune_floor: float | None = same(
        "prune_floor",
        text="Smallest probability of keeping a row, in (0, 1 - rate]; no weight exceeds one over it. Default: 0.2, or "
        "half of 1 - rate if that is smaller.",
    )
    sampling_design: str = same(
        "sampling_design", default="pivotal", text="How rows are drawn given probabilities: `pivotal`, `systematic`."
    )
    prune_schedule: str = same("prune_schedule")
    prune_until: float = same("prune_until")
    recorded_scores: str | None = setting(
        None,
        "Scores of an earlier run (`dppo_rows.npz` in its checkpoints), to prune the first epoch too. Default: none.",
        remembered="",
    )
    max_tokens_per_row: int | None = same("max_tokens_per_row")
    layout: str = same("layout")
    log_metrics: str = same("log_metrics")
    accept_bias: bool = same("accept_bias")
    accept_missing: bool = same("accept_missing")


@dataclass
class AsyncSettings(DrawSettings):
    """Fields that ``DPPOAsyncConfig`` adds to TRL's ``AsyncGRPOConfig``."""

    method: str = same(
        "method",
        text="How completions and prompts are pruned: `dppo` (the default), `dppo_threshold`, `infobatch`, `cppo`, or "
        "`grpo`: nothing is pruned. The objective is that of TRL's trainer, so methods with one of their own are "
        "refused. `package.module:name` is a method of your own: its pruning is used (dppo docs extending).",
    )
    loss_type: str = setting(
        "dapo",
        "What a step's loss is divided by: `dapo`, its tokens as rolled out, which is TRL's; or `dr_grpo`, its "
        "completions times max_completion_length, which stays exact if prompts are pruned.",
        choices=("dapo", "dr_grpo"),
        remembered=UPDATE,
    )
    shuffle_dataset: bool = setting(
        True,
        "As in TRL's `GRPOConfig`: prompts are in a new order in each epoch. `false`: in the order of the dataset, as "
        "in TRL's asynchronous trainer.",
    )
    log_metrics: str = same("log_metrics")
    accept_missing: bool = same("accept_missing")


@dataclass(kw_only=True)
class VerlSettings(DrawSettings):
    """Options of pruning on verl, by the names they have in ``DPPOConfig``."""

    method: str = same(
        "method",
        text="How completions and prompts are pruned: `dppo` (the default), `dppo_threshold`, `infobatch`, `cppo`, "
        "`dppo_history`, ..., or `grpo`: nothing is pruned. The objective is that of verl's options, so methods with "
        "one of their own are refused, but for the baseline of `dppo_history`. `package.module:name` is a method of "
        "your own: its pruning is used (dppo docs extending).",
    )
    seed: int = setting(0, "Of the order of prompts and of all draws, >= 0.", range="[0, inf)")
    layout: str = setting(
        "packed",
        "How kept rows are forwarded. `packed`: by verl's own engine, each with its prompt. `rows`: by an FSDP engine "
        "that has the prompt of a group once in each forward pass; it refuses models that it cannot serve.",
        choices=("packed", "rows"),
        remembered="",
    )


def with_default(text: str, default: Any) -> str:
    """A field's text with its default, unless the text names it."""
    if "default" in text.lower():
        return text
    value = f"{default}".lower() if default is None or isinstance(default, bool) else default
    return f"{text} (default: {'none' if value == '' else value})"


def described(kind: type, own: type) -> str:
    """The docstring of a dataclass with the texts of the fields of ``own``: itself, or one of its bases."""
    lines = [inspect.cleandoc(kind.__doc__ or ""), "", "Attributes:"]
    for each in fields(own):
        annotation = each.type.__name__ if isinstance(each.type, type) else str(each.type)
        text = f"{each.name} ({annotation}): {with_default(each.metadata['help'], each.default)}"
        lines += textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="        ", break_on_hyphens=False)
    return "\n".join(lines)
