"""Which rows are kept, with which probability, and at which weight. Knows scores and histories, never models."""

from dppo.pruning.designs import DESIGNS, DETERMINISTIC, PIVOTAL, POISSON, SYSTEMATIC, Design
from dppo.pruning.history import PromptHistory
from dppo.pruning.probabilities import (
    BIASED_RULES,
    RULES,
    Rule,
    inclusion_probabilities,
    largest,
    proportional,
    threshold,
    uniform,
)
from dppo.pruning.prune import Pruning
from dppo.pruning.scores import (
    SCORES,
    Score,
    absolute_advantage,
    advantage_with_confidence,
    advantage_with_length,
    confidence,
    per_token,
    uniform_score,
)
from dppo.pruning.stream import PromptStream, fill_block, thin_block
from dppo.pruning.weights import (
    BIASED_WEIGHTINGS,
    WEIGHTINGS,
    Weighting,
    added_variance_estimate,
    effective_sample_size,
    inverse_probability,
    kept_mean,
    largest_weight,
    relative_added_variance,
    unweighted,
)

__all__ = [
    "BIASED_RULES",
    "BIASED_WEIGHTINGS",
    "DESIGNS",
    "DETERMINISTIC",
    "PIVOTAL",
    "POISSON",
    "RULES",
    "SCORES",
    "SYSTEMATIC",
    "WEIGHTINGS",
    "Design",
    "PromptHistory",
    "PromptStream",
    "Pruning",
    "Rule",
    "Score",
    "Weighting",
    "absolute_advantage",
    "added_variance_estimate",
    "advantage_with_confidence",
    "advantage_with_length",
    "confidence",
    "effective_sample_size",
    "fill_block",
    "inclusion_probabilities",
    "inverse_probability",
    "kept_mean",
    "largest",
    "largest_weight",
    "per_token",
    "proportional",
    "relative_added_variance",
    "thin_block",
    "threshold",
    "uniform",
    "uniform_score",
    "unweighted",
]
