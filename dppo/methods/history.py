"""A baseline from each prompt's history: groups of one, two or four completions."""

from dataclasses import replace

from dppo.methods.method import Objective
from dppo.objective import HISTORY_CENTRED, HISTORY_SCALED

_OTHERS = (
    "the siblings' mean and the history's are mixed by their precisions, where SPO has one completion a prompt and no "
    "siblings",
    "the history's counts decay with each visit and not by the policy's divergence",
    "advantages are not normalised over the batch, nor prompts sampled by priority, as in SPO",
)

HISTORY = Objective(
    name="history",
    paper="arXiv:2509.13232, Single-stream Policy Optimization; arXiv:2511.03710 (shrinkage baselines)",
    advantages=HISTORY_CENTRED,
    deviations=("advantages are not divided by a deviation: the gradient is that of the mean reward", *_OTHERS),
)
SCALED_HISTORY = replace(
    HISTORY,
    name="history_scaled",
    advantages=HISTORY_SCALED,
    deviations=(
        "the deviation that advantages are divided by comes from history, another objective than the group's own",
        *_OTHERS,
    ),
)
