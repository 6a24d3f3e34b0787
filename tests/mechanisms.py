"""One method of each way in which methods differ for what trains them; loops run the others among the slow tests."""

import pytest

DIFFERENT = frozenset(
    {
        "grpo",
        "dapo",  # rounds
        "gspo",  # a ratio of whole completions
        "pods",  # advantages of the kept
        "infobatch",  # prompts alone
        "greso",  # rounds that skip
        "nat_rpc",  # tokens
        "dppo",
        "dppo_unweighted",  # biased by its weights
        "dppo_gdpo",  # several reward functions
        "dppo_divergence_ppo_kl",  # the policy that sampled
        "grpo_history",  # a baseline from history
        "dppo_history_sizes",  # groups of any size
    }
)


def one_of_each(names):
    """The names as parameters; those whose mechanism has another representative are slow."""
    return [name if name in DIFFERENT else pytest.param(name, marks=pytest.mark.slow) for name in names]
