"""The mean weight of every unit is exactly 1, over all outcomes of a draw, wherever no bias is declared."""

import pytest
import torch
from pruned_units import CANDIDATES, COMPLETIONS, EXACT
from pruning_enumeration import mean_weight

from dppo.pruning import DESIGNS, KEPT_MEAN, RULES, PromptPruning, Pruning, uniform
from dppo.pruning.designs import WEIGHTINGS

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
