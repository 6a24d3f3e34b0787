"""The estimator's one step, free of any engine: which prompts, which draws, which weights over which denominator."""

from dppo.step.loss import micro_batch_loss, other_terms
from dppo.step.plan import ONCE, DraftPlan, StepPlan, drafted, drawn, plan_step
from dppo.step.prompts import PromptSource
from dppo.step.records import RolledOut, StepPrompts, StepSizes, completions_of, drawn_block, whole_block
from dppo.step.rows import RowSource, row_metrics
from dppo.step.schedule import UpdateSchedule

__all__ = ["ONCE", "DraftPlan", "PromptSource", "RolledOut", "RowSource", "StepPlan", "StepPrompts", "StepSizes"]
__all__ += ["UpdateSchedule", "completions_of", "drafted", "drawn", "drawn_block", "micro_batch_loss", "other_terms"]
__all__ += ["plan_step", "row_metrics", "whole_block"]
