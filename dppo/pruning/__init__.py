"""Probabilities, draws and weights, from scores and histories. No models."""

from dppo.moment_samples import MomentSamples
from dppo.pruning.ceiling import (
    COMPLETION_AUTO,
    PROMPT_AUTO,
    Auto,
    Ceiling,
    ceiling_of,
    choose,
    selection_ceiling,
)
from dppo.pruning.designs import (
    DESIGNS,
    DETERMINISTIC,
    INVERSE_PROBABILITY,
    KEPT_MEAN,
    PIVOTAL,
    POISSON,
    SYSTEMATIC,
    UNWEIGHTED,
    WEIGHTINGS,
    Design,
    Weighting,
    effective_sample_size,
    relative_added_variance,
)
from dppo.pruning.history import PromptHistory
from dppo.pruning.level import SCHEDULES, Pruning, Schedule, Selection, constant, fade, stop
from dppo.pruning.prior import PromptPrior, PromptValues
from dppo.pruning.probabilities import (
    RULES,
    Budget,
    Rule,
    inclusion_probabilities,
    proportional,
    threshold,
    uniform,
)
from dppo.pruning.prompts import GroupSizes, PromptPruning, PromptStream
from dppo.pruning.recorded import RecordedScores, mean_loss
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
from dppo.pruning.tokens import (
    TOKEN_AUTO,
    SampledTokens,
    TokenDraw,
    TokenPruning,
    all_alike,
    best_cuts,
    by_uncertainty,
    random_prefix,
)

__all__ = ["COMPLETION_AUTO", "DESIGNS", "DETERMINISTIC", "INVERSE_PROBABILITY", "KEPT_MEAN", "PIVOTAL", "POISSON"]
__all__ += ["PROMPT_AUTO", "RULES", "SCHEDULES", "SCORES", "SYSTEMATIC", "TOKEN_AUTO", "UNWEIGHTED", "WEIGHTINGS"]
__all__ += ["Auto", "Budget", "Ceiling", "Design", "GroupSizes", "MomentSamples", "PromptHistory", "PromptPrior"]
__all__ += ["PromptPruning", "PromptStream", "PromptValues", "Pruning", "RecordedScores", "RoundRequest", "Rounds"]
__all__ += ["Rule", "SampledTokens", "Schedule", "Score", "Selection", "Skipping", "TokenDraw", "TokenPruning"]
__all__ += ["Weighting", "absolute_advantage", "advantage_with_length", "advantage_with_uncertainty", "all_alike"]
__all__ += ["best_cuts", "by_uncertainty", "ceiling_of", "choose", "constant", "effective_sample_size"]
__all__ += ["fade", "inclusion_probabilities", "mean_loss", "proportional"]
__all__ += ["random_prefix", "relative_added_variance", "selection_ceiling", "stop"]
__all__ += ["threshold", "uncertainty", "uniform", "uniform_score"]
