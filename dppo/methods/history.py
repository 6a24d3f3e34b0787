"""A baseline from each prompt's history: groups of one, two or four completions, whose sizes may follow it too."""

from dataclasses import replace

from dppo.methods.dppo import DPPO
from dppo.methods.grpo import GRPO
from dppo.objective import HISTORY_CENTRED, HISTORY_SCALED
from dppo.pruning import GroupSizes, PromptPruning

_PAPERS = "arXiv:2509.13232, Single-stream Policy Optimization; arXiv:2511.03710 (shrinkage baselines)"
_OTHERS = (
    "the siblings' mean and the history's are mixed by their precisions, where SPO has one completion a prompt and no "
    "siblings",
    "the history's counts decay with each visit and not by the policy's divergence",
    "advantages are not normalised over the batch, nor prompts sampled by priority, as in SPO",
)

GRPO_HISTORY = replace(
    GRPO,
    name="grpo_history",
    paper=_PAPERS,
    advantages=HISTORY_CENTRED,
    fixes=frozenset({"advantages"}),
    deviations=_OTHERS,
)
"""Nothing pruned: what a baseline from history is worth by itself."""

DPPO_HISTORY = replace(
    DPPO,
    name="dppo_history",
    paper=f"{DPPO.paper}, with the baseline of {_PAPERS}",
    advantages=HISTORY_CENTRED,
    fixes=frozenset({"advantages"}),
    prompts=PromptPruning(),
    deviations=(
        "advantages are not divided by a deviation: the gradient is that of the mean reward",
        *_OTHERS,
        *DPPO.deviations,
    ),
)

DPPO_HISTORY_SCALED = replace(
    DPPO_HISTORY,
    name="dppo_history_scaled",
    advantages=HISTORY_SCALED,
    deviations=(
        "the deviation that advantages are divided by comes from history, another objective than the group's own",
        *DPPO_HISTORY.deviations[1:],
    ),
)

DPPO_HISTORY_SIZES = replace(
    DPPO_HISTORY,
    name="dppo_history_sizes",
    paper=f"{DPPO_HISTORY.paper}; group sizes after VIP, arXiv:2602.01601",
    sizes=GroupSizes(),
    deviations=(
        DPPO_HISTORY.deviations[0],
        "sizes go by the variance that history counted, over the tokens, and part of them evenly, where VIP has a "
        "Gaussian process predict it",
        *DPPO_HISTORY.deviations[1:],
    ),
)
