"""Methods as values. Rates are starting points: ``DPPO.with_rates(prompt=0.3, completion=0.5)``."""

from dataclasses import replace
from functools import partial

from dppo.methods.method import Method
from dppo.objective import CENTRED, DAPO_TOKENS, clipped_surrogate, gspo
from dppo.objective import DR_GRPO as DR_GRPO_CONSTANT
from dppo.pruning import (
    DETERMINISTIC,
    PIVOTAL,
    Pruning,
    absolute_advantage,
    advantage_with_length,
    kept_mean,
    largest,
    proportional,
    threshold,
)

GRPO = Method(
    name="grpo",
    paper="arXiv:2402.03300, DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    completions=Pruning(score=advantage_with_length),
    deviations=(
        "the standard deviation has ddof 1 and eps 1e-4, as in TRL, where the paper gives neither",
        "beta is 0 here and 0.04 in the paper",
    ),
)

DR_GRPO = replace(
    GRPO,
    name="dr_grpo",
    paper="arXiv:2503.20783, Understanding R1-Zero-Like Training: A Critical Perspective",
    advantages=CENTRED,
    normaliser=DR_GRPO_CONSTANT,
    deviations=(),
)

DAPO_LOSS = replace(
    GRPO,
    name="dapo",
    paper="arXiv:2503.14476, DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    token_loss=partial(clipped_surrogate, clip_low=0.2, clip_high=0.28),
    normaliser=DAPO_TOKENS,
    deviations=(
        "only the loss: no dynamic sampling, which is biased, and no length penalty, which belongs to the reward",
    ),
)

GSPO = replace(
    GRPO,
    name="gspo",
    paper="arXiv:2507.18071, Group Sequence Policy Optimization",
    token_loss=partial(gspo, clip_low=3e-4, clip_high=4e-4),
    deviations=("the standard deviation has ddof 1 and eps 1e-4, as in TRL",),
)

CPPO = replace(
    GRPO,
    name="cppo",
    paper="arXiv:2503.22342, CPPO: Accelerating the Training of Group Relative Policy Optimization-Based Reasoning "
    "Models",
    completions=Pruning(rate=0.5, score=absolute_advantage, rule=largest, design=DETERMINISTIC, weighting=kept_mean),
    deviations=(
        "ties of abs(A) go to the lowest index, where the paper leaves them open",
        "completions with advantage 0 are left out before the largest are taken",
        "completions are not allocated anew: no further prompts fill the free places",
        "beta is 0 here and 0.04 in the paper",
    ),
)

_DPPO_PAPER = "arXiv:2603.04135, Unbiased Dynamic Pruning for Efficient Group-Based Policy Optimization"
_OWN_HISTORY = "what history predicts about a prompt is our statistic"

DPPO_THRESHOLD = replace(
    GRPO,
    name="dppo_threshold",
    paper=_DPPO_PAPER,
    completions=Pruning(rate=0.5, score=absolute_advantage, rule=threshold, design=PIVOTAL),
    prompts=Pruning(rule=threshold, design=PIVOTAL),
    deviations=(
        "draws are random with a fixed size, where Algorithm 1 prunes a fixed fraction and is biased",
        "weights are one over the probability over a denominator fixed before pruning, not a mean over what is kept",
        _OWN_HISTORY,
    ),
)

DPPO = replace(
    DPPO_THRESHOLD,
    name="dppo",
    completions=Pruning(rate=0.5, score=advantage_with_length, rule=proportional, design=PIVOTAL, floor=0.1),
    prompts=Pruning(rule=proportional, design=PIVOTAL, floor=0.1),
    deviations=(
        "probabilities are proportional to the expected gradient norm instead of a threshold at the mean",
        *DPPO_THRESHOLD.deviations,
    ),
)

DPPO_DETERMINISTIC = replace(
    DPPO_THRESHOLD,
    name="dppo_deterministic",
    completions=replace(DPPO_THRESHOLD.completions, design=DETERMINISTIC),
    prompts=replace(DPPO_THRESHOLD.prompts, design=DETERMINISTIC),
    deviations=(
        "Algorithm 1 as we read it: the rows of lowest score are always the ones pruned, weights as if it were random",
        _OWN_HISTORY,
    ),
)

METHODS = {
    method.name: method for method in (GRPO, DR_GRPO, DAPO_LOSS, GSPO, CPPO, DPPO_THRESHOLD, DPPO, DPPO_DETERMINISTIC)
}
"""Every preset by its name."""
