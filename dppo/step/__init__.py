"""The estimator's one step, free of any engine: which prompts, which draws, which weights over which denominator.

An engine asks a ``PromptSource`` for prompts, rolls them out, and hands the groups to ``plan_step``. What comes back
says what to forward, by which weight each loss is multiplied, and what the history learns.
"""

from dppo.step.loss import micro_batch_loss, other_terms
from dppo.step.schedule import UpdateSchedule
from dppo.step.plan import ONCE, DraftPlan, StepPlan, drafted, drawn, plan_step
from dppo.step.prompts import PromptSource
from dppo.step.records import StepPrompts, StepSizes, drawn_block, whole_block
from dppo.step.rolled_out import RolledOut, completions_of, signals
from dppo.step.rows import RowSource, row_metrics

__all__ = [
    "ONCE",
    "DraftPlan",
    "PromptSource",
    "RolledOut",
    "RowSource",
    "StepPlan",
    "StepPrompts",
    "StepSizes",
    "UpdateSchedule",
    "completions_of",
    "drafted",
    "drawn",
    "drawn_block",
    "micro_batch_loss",
    "other_terms",
    "plan_step",
    "row_metrics",
    "signals",
    "whole_block",
]
