"""GRPO, arXiv:2402.03300: advantages within groups. The base of the others."""

from dppo.methods.method import Objective

GRPO = Objective(
    name="grpo",
    paper="arXiv:2402.03300, DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    deviations=(
        "the standard deviation has ddof 1 and eps 1e-4, as in TRL, where the paper gives neither",
        "beta is 0 here and 0.04 in the paper",
    ),
)
"""Advantages within groups. Every part is the run's choice."""
