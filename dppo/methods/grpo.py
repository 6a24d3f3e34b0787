"""GRPO, arXiv:2402.03300: advantages within groups, nothing pruned but what has no gradient. The base of the others."""

from dppo.methods.method import Method
from dppo.pruning import Pruning, advantage_with_length

GRPO = Method(
    name="grpo",
    paper="arXiv:2402.03300, DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    completions=Pruning(score=advantage_with_length),
    deviations=(
        "the standard deviation has ddof 1 and eps 1e-4, as in TRL, where the paper gives neither",
        "beta is 0 here and 0.04 in the paper",
    ),
)
