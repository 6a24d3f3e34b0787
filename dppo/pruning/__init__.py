"""Probabilities, draws and weights, from scores and histories. No models."""

from dppo.moment_samples import MomentSamples
from dppo.pruning.ceiling import COMPLETION_AUTO, PROMPT_AUTO, Auto, ceiling_of
from dppo.pruning.designs import DESIGNS, DETERMINISTIC, KEPT_MEAN, PIVOTAL, POISSON, SYSTEMATIC, UNWEIGHTED, Design
from dppo.pruning.history import PromptHistory
from dppo.pruning.level import SCHEDULES, Pruning, Schedule, Selection, constant, stop
from dppo.pruning.prior import PromptPrior, PromptValues
from dppo.pruning.probabilities import RULES, Budget, Rule, proportional, threshold, uniform
from dppo.pruning.prompts import GroupSizes, PromptPruning, PromptStream
from dppo.pruning.recorded import RecordedScores
from dppo.pruning.rounds import RoundRequest, Rounds, Skipping
from dppo.pruning.scores import (
    SCORES,
    Score,
    absolute_advantage,
    advantage_with_length,
    advantage_with_uncertainty,
    uncertainty,
    uniform_score,
)
from dppo.pruning.tokens import SampledTokens, TokenDraw, TokenPruning, all_alike, best_cuts, random_prefix

__all__ = ["COMPLETION_AUTO", "DESIGNS", "DETERMINISTIC", "KEPT_MEAN", "PIVOTAL", "POISSON", "PROMPT_AUTO", "RULES"]
__all__ += ["SCHEDULES", "SCORES", "SYSTEMATIC", "UNWEIGHTED", "Auto", "Budget", "Design", "GroupSizes"]
__all__ += ["MomentSamples", "PromptHistory", "PromptPrior", "PromptPruning", "PromptStream", "PromptValues", "Pruning"]
__all__ += ["RecordedScores", "RoundRequest", "Rounds", "Rule", "SampledTokens", "Schedule", "Score", "Selection"]
__all__ += ["Skipping", "TokenDraw", "TokenPruning", "absolute_advantage", "advantage_with_length"]
__all__ += ["advantage_with_uncertainty", "all_alike", "best_cuts", "ceiling_of", "constant", "proportional"]
__all__ += ["random_prefix", "stop", "threshold", "uncertainty", "uniform", "uniform_score"]
