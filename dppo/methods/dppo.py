"""DPPO, arXiv:2603.04135: prompts pruned before rollout and completions after, reweighted so that nothing is bent."""

from dataclasses import replace

from dppo.methods.method import Scheme
from dppo.pruning import DETERMINISTIC, KEPT_MEAN, GroupSizes, PromptPruning, Pruning, threshold
from dppo.pruning.scores import absolute_advantage, advantage_with_length

_OWN_HISTORY = "what history predicts about a prompt is our statistic"
_PAPERS_RULE = Pruning(rate=0.5, score=absolute_advantage, rule=threshold)

DPPO_THRESHOLD = Scheme(
    name="dppo_threshold",
    paper="arXiv:2603.04135, Unbiased Dynamic Pruning for Efficient Group-Based Policy Optimization",
    completions=_PAPERS_RULE,
    prompts=PromptPruning(rule=threshold),
    deviations=(
        "draws are random with a fixed size, where Algorithm 1 prunes a fixed fraction and is biased",
        "weights are one over the probability over a denominator fixed before pruning, not a mean over what is kept",
        _OWN_HISTORY,
    ),
)

_OUR_RULE = Pruning(rate=0.5, score=advantage_with_length)
DPPO = replace(
    DPPO_THRESHOLD,
    name="dppo",
    completions=_OUR_RULE,
    prompts=PromptPruning(),
    deviations=(
        "probabilities are proportional to the expected gradient norm instead of a threshold at the mean",
        *DPPO_THRESHOLD.deviations,
    ),
)

DPPO_DETERMINISTIC = replace(
    DPPO_THRESHOLD,
    name="dppo_deterministic",
    completions=replace(_PAPERS_RULE, design=DETERMINISTIC),
    prompts=PromptPruning(rule=threshold, design=DETERMINISTIC),
    deviations=(
        "Algorithm 1 as we read it: the completions of lowest score are always the ones pruned, weights as if it were "
        "random",
        _OWN_HISTORY,
    ),
)

DPPO_UNWEIGHTED = replace(
    DPPO,
    name="dppo_unweighted",
    completions=replace(_OUR_RULE, weighting=KEPT_MEAN),
    prompts=PromptPruning(weighting=KEPT_MEAN),
    deviations=("the control that shows what weights are worth: a plain mean over what is kept", *DPPO.deviations),
)

DPPO_SIZES = replace(
    DPPO,
    name="dppo_sizes",
    paper=f"{DPPO.paper}; group sizes after VIP, arXiv:2602.01601",
    sizes=GroupSizes(),
    deviations=(
        "sizes go by the variance that history counted, over the tokens, and part of them evenly, where VIP has a "
        "Gaussian process predict it",
        *DPPO.deviations,
    ),
)
