"""DPPO, arXiv:2603.04135: prompts pruned before rollout and completions after, reweighted so that nothing is bent."""

from dataclasses import replace

from dppo.methods.dapo import DAPO_LOSS
from dppo.methods.grpo import GRPO
from dppo.methods.gspo import GSPO
from dppo.methods.method import Method
from dppo.pruning import (
    DETERMINISTIC,
    KEPT_MEAN,
    PromptPruning,
    Pruning,
    absolute_advantage,
    advantage_with_length,
    threshold,
)

_PAPER = "arXiv:2603.04135, Unbiased Dynamic Pruning for Efficient Group-Based Policy Optimization"
_OWN_HISTORY = "what history predicts about a prompt is our statistic"
_PAPERS_RULE = Pruning(rate=0.5, score=absolute_advantage, rule=threshold)
_PAPERS_PROMPTS = PromptPruning(rule=threshold)

DPPO_THRESHOLD = replace(
    GRPO,
    name="dppo_threshold",
    paper=_PAPER,
    completions=_PAPERS_RULE,
    prompts=_PAPERS_PROMPTS,
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
    prompts=replace(_PAPERS_PROMPTS, design=DETERMINISTIC),
    deviations=(
        "Algorithm 1 as we read it: the completions of lowest score are always the ones pruned, weights "
        "as if it were random",
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


def on_top_of(base: Method, pruning: Method = DPPO) -> Method:
    """``base`` with the pruning of another method at both levels: its loss, advantages and normaliser stay.

    The method is called after both, ``dppo_dapo`` for example. Rates are those of ``pruning``.

    Source: DPPO, arXiv:2603.04135, section 5, on top of GRPO, DAPO and GSPO.
    """
    return replace(
        base,
        name=f"{pruning.name}_{base.name.removesuffix('_loss')}",
        paper=f"{pruning.paper}, on top of {base.paper}",
        completions=pruning.completions,
        prompts=pruning.prompts,
        schedule=pruning.schedule,
        statistics=pruning.statistics,
        deviations=(*base.deviations, *pruning.deviations),
    )


DPPO_DAPO, DPPO_GSPO = on_top_of(DAPO_LOSS), on_top_of(GSPO)
DPPO_THRESHOLD_DAPO, DPPO_THRESHOLD_GSPO = on_top_of(DAPO_LOSS, DPPO_THRESHOLD), on_top_of(GSPO, DPPO_THRESHOLD)
