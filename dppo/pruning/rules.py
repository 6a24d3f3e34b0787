"""All rules by name, and which of them are biased whatever they are drawn with."""

from dppo.pruning.probabilities import Rule, proportional, threshold, uniform
from dppo.pruning.ranking import all_but_smallest, largest, max_variance

RULES: dict[str, Rule] = {
    rule.__name__: rule for rule in (proportional, threshold, uniform, largest, all_but_smallest, max_variance)
}

BIASED_RULES: dict[Rule, str] = {
    largest: "rows with a small score are never kept (largest), so their gradient is missing from every step",
    all_but_smallest: "rows with a small score are never kept (all_but_smallest), so their gradient is missing from "
    "every step",
    max_variance: "rows with a middling reward are never kept (max_variance), so their gradient is missing from every "
    "step",
}
"""Why a rule is biased under every design. A rule that is not listed gives every row a probability above 0."""
