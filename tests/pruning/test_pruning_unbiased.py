"""The mean weight of every unit is exactly 1, over all outcomes of a draw, wherever no bias is declared."""

import pytest
import torch
from pruning_enumeration import mean_weight

from dppo.pruning import (
    DESIGNS,
    KEPT_MEAN,
    RULES,
    WEIGHTINGS,
    PromptPruning,
    Pruning,
    uniform,
)
from dppo.types import Candidates, Completions

EXACT = 1e-12
ADVANTAGE = torch.tensor([1.5, -0.5, -0.5, 0.0, 2.0], dtype=torch.float64)
COMPLETIONS = Completions(
    advantage_N=ADVANTAGE,
    tokens_N=torch.tensor([5, 1, 8, 3, 2]),
    group_N=torch.tensor([0, 0, 0, 1, 1]),
    live_N=ADVANTAGE != 0,
)
CANDIDATES = Candidates(
    row_P=torch.arange(5),
    signal_P=torch.tensor([0.1, 2.0, 1.0, 0.5, 0.4], dtype=torch.float64),
    tokens_P=torch.tensor([9.0, 5.0, 10.0, 20.0, 8.0], dtype=torch.float64),
    seen_P=torch.tensor([True, True, True, False, True]),
)
LEVELS = {
    "completions": (Pruning, COMPLETIONS, COMPLETIONS.live_N.double()),
    "prompts": (PromptPruning, CANDIDATES, torch.ones(5, dtype=torch.float64)),
}
"""What draws, from what, and the mean weight that is right."""


def worst_gap(level: str, **settings) -> float:
    """Largest gap between the exact mean of a weight and what it should be."""
    kind, rows, wanted = LEVELS[level]
    return (mean_weight(kind(**settings), rows) - wanted).abs().max().item()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS)
@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("budget", ["rows", "tokens"])
def test_a_pruning_is_biased_exactly_where_it_says_so(level, rule, design, weighting, budget):
    settings = {"rule": rule, "design": design, "weighting": weighting, "budget": budget}
    gap = worst_gap(level, rate=0.4, **settings)
    if not LEVELS[level][0](rate=0.4, **settings).bias:
        assert gap < EXACT
    elif not (rule is uniform and weighting is KEPT_MEAN):  # a mean over rows that are all as likely can be right
        assert gap > 0.01
    assert worst_gap(level, rate=0.0, **settings) == 0 and not LEVELS[level][0](rate=0.0, **settings).bias
