"""Methods as values. Rates are starting points: ``DPPO.with_rates(prompt=0.3, completion=0.5)``."""

from dataclasses import replace
from functools import partial

from dppo.methods.method import Method
from dppo.objective import BNPO, CENTRED, DAPO_TOKENS, clipped_surrogate, gspo, kept_rows
from dppo.objective import DR_GRPO as DR_GRPO_CONSTANT
from dppo.pruning import (
    DETERMINISTIC,
    PIVOTAL,
    Pruning,
    Rounds,
    Skipping,
    above_lowest,
    absolute_advantage,
    adaptive,
    advantage_with_length,
    all_but_smallest,
    by_mean,
    by_value,
    deviating,
    kept_mean,
    kept_tokens,
    largest,
    max_variance,
    mixed,
    proportional,
    stop,
    threshold,
    unweighted,
    whole_processes,
    whole_prompts,
    whole_step,
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
    name="dapo_loss",
    paper="arXiv:2503.14476, DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    token_loss=partial(clipped_surrogate, clip_low=0.2, clip_high=0.28),
    normaliser=DAPO_TOKENS,
    deviations=(
        "only the loss: no dynamic sampling, which is biased, and no length penalty, which belongs to the reward",
        "a trainer of TRL clips as epsilon and epsilon_high say, 0.2 and 0.2 by default; the paper at 0.2 and 0.28",
    ),
)

DAPO = replace(
    DAPO_LOSS,
    name="dapo",
    rounds=Rounds(counts=deviating),
    deviations=(
        "a round has as many prompts as a step wants, in the paper three times as many",
        "groups count by the reward they are trained with, in the code by accuracy alone",
        "the length penalty belongs to the reward: dppo.problems.overlong_penalty",
    ),
)

_GRESO_PAPER = (
    "arXiv:2506.02177, Act Only When It Pays: Efficient Reinforcement Learning for LLM Reasoning via Selective Rollouts"
)
_AS_GRESO_CODE = (
    "a step that lacks groups after 10 rounds trains on those there are; the code goes on until it expects a round to "
    "be the last",
    "a round in which no group counts is followed by one of the usual size, where the code divides by 0",
    "the smallest round is a quarter of a step, 64 of 256 in the code; a prompt at a time is taken, in the code 32",
    "rounds are raised to whole groups on every process, where the code leaves prompts out",
    "runs and exploration learn once per step, and draws come from the run's seed",
    "the loss is a mean within each completion, in the code over the tokens of a micro-batch; eps is 1e-4, there 1e-6",
)

_GRESO_ROUNDS = Rounds(counts=mixed, size=adaptive, factor=1.5, at_limit="train", skipping=Skipping())

GRESO = replace(
    GRPO,
    name="greso",
    paper=_GRESO_PAPER,
    rounds=_GRESO_ROUNDS,
    deviations=(
        "a prompt's run is one of groups without variance, as in the paper, where the code looks at mean rewards",
        "an easy group is nearer to the run's highest reward than to its lowest",
        *_AS_GRESO_CODE,
    ),
)

GRESO_COMPAT = replace(
    GRESO,
    name="greso_compat",
    paper=f"{_GRESO_PAPER}, as in its code",
    rounds=replace(_GRESO_ROUNDS, skipping=Skipping(streak=by_mean, tally=by_value)),
    deviations=("groups have any size, where the code adjusts its exploration by groups of 8", *_AS_GRESO_CODE),
)

GSPO = replace(
    GRPO,
    name="gspo",
    paper="arXiv:2507.18071, Group Sequence Policy Optimization",
    token_loss=partial(gspo, clip_low=3e-4, clip_high=4e-4),
    deviations=(
        "the standard deviation has ddof 1 and eps 1e-4, as in TRL",
        "a trainer of TRL clips as epsilon and epsilon_high say, 0.2 by default; the paper at 3e-4 and 4e-4",
    ),
)

CPPO = replace(
    GRPO,
    name="cppo",
    paper="arXiv:2503.22342, CPPO: Accelerating the Training of Group Relative Policy Optimization-Based Reasoning "
    "Models",
    completions=Pruning(
        rate=0.5,
        score=absolute_advantage,
        rule=largest,
        design=DETERMINISTIC,
        weighting=kept_mean,
        scope=whole_prompts,
    ),
    deviations=(
        "ties of abs(A) go to the lowest index, where the paper leaves them open",
        "completions are not allocated anew: no further prompts fill the free places",
        "beta is 0 here and 0.04 in the paper",
    ),
)

_AS_CPPO_CODE = (
    "ties of abs(A) go to the lowest index, where the code leaves them to topk",
    "counts are exact, where the code rounds 1 - P in binary",
    "a step has its usual number of prompts; the code grows it by 1 / (1 - P), see dppo.pruning.allocate",
    "beta is 0 here and 0.04 in the code",
)

CPPO_TRL = replace(
    CPPO,
    name="cppo_trl",
    paper="arXiv:2503.22342, CPPO, as in its code for TRL",
    completions=replace(
        CPPO.completions, rule=all_but_smallest, scope=whole_processes, weighting=unweighted, rescaling=kept_tokens
    ),
    normaliser=BNPO,
    deviations=_AS_CPPO_CODE,
)

CPPO_VERL = replace(
    CPPO,
    name="cppo_verl",
    paper="arXiv:2503.22342, CPPO, as in its code for verl",
    completions=replace(CPPO.completions, scope=whole_step, weighting=unweighted),
    deviations=(
        "the policy term has the mean within each completion that the code is configured for, where the code takes a "
        "mean over the tokens of a micro-batch",
        "eps of the standard deviation is 1e-4, in the code 1e-6; no dual clip",
        "the sum over the kept rows is divided by all rows, as in the code while the batch is not grown",
        *_AS_CPPO_CODE,
    ),
)

PODS = replace(
    GRPO,
    name="pods",
    paper="arXiv:2504.13818, Not All Rollouts are Useful: Down-Sampling Rollouts in LLM Reinforcement Learning",
    completions=Pruning(
        rate=0.5,
        score=above_lowest,
        rule=max_variance,
        design=DETERMINISTIC,
        weighting=kept_mean,
        scope=whole_prompts,
    ),
    statistics=kept_rows,
    deviations=(
        "advantages come from the down-sampled group, as we understand the paper",
        "the number kept is given as a rate, and is at least 2",
        "of subsets with the same variance the one with the fewest high rewards is taken, of equal rewards the first",
    ),
)

INFOBATCH = replace(
    GRPO,
    name="infobatch",
    paper="arXiv:2303.04947, InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning",
    prompts=Pruning(rate=0.5, rule=threshold, design=PIVOTAL, schedule=stop),
    deviations=(
        "prompts are scored by the signal that history expects, where the paper has the loss of a sample",
        "the mean is that of the step's candidates, where the paper has that of the dataset",
        "a step is scaled as one on all its candidates (per step); the paper averages over what is kept, which makes "
        "fewer steps larger by the same factor (per epoch)",
        "a prompt's first rollout takes the place of the epoch without pruning",
        "the rate is moved to keep a whole number of prompts, and weights are one over what is kept then",
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

DPPO_UNWEIGHTED = replace(
    DPPO,
    name="dppo_unweighted",
    completions=replace(DPPO.completions, weighting=kept_mean),
    prompts=replace(DPPO.prompts, weighting=kept_mean),
    deviations=("the control that shows what weights are worth: a plain mean over what is kept", *DPPO.deviations),
)


def on_top_of(base: Method, pruning: Method = DPPO) -> Method:
    """``base`` with the pruning of another method at both levels: its loss, advantages and normaliser stay.

    Args:
        base: gives the objective, as ``GRPO``, ``DAPO_LOSS`` or ``GSPO``.
        pruning: gives what is dropped, as ``DPPO`` or ``DPPO_THRESHOLD``.

    Returns:
        A method called after both, ``dppo_dapo`` for example. Rates are those of ``pruning``.

    Source: DPPO, arXiv:2603.04135, section 5, on top of GRPO, DAPO and GSPO.
    """
    return replace(
        base,
        name=f"{pruning.name}_{base.name.removesuffix('_loss')}",
        paper=f"{pruning.paper}, on top of {base.paper}",
        completions=pruning.completions,
        prompts=pruning.prompts,
        statistics=pruning.statistics,
        deviations=(*base.deviations, *pruning.deviations),
    )


DPPO_DAPO, DPPO_GSPO = on_top_of(DAPO_LOSS), on_top_of(GSPO)
DPPO_THRESHOLD_DAPO, DPPO_THRESHOLD_GSPO = on_top_of(DAPO_LOSS, DPPO_THRESHOLD), on_top_of(GSPO, DPPO_THRESHOLD)

METHODS = {
    method.name: method
    for method in (
        *(GRPO, DR_GRPO, DAPO, DAPO_LOSS, GSPO),
        *(CPPO, CPPO_TRL, CPPO_VERL, PODS, INFOBATCH),
        *(GRESO, GRESO_COMPAT),
        *(DPPO_THRESHOLD, DPPO, DPPO_DETERMINISTIC, DPPO_UNWEIGHTED),
        *(DPPO_DAPO, DPPO_GSPO, DPPO_THRESHOLD_DAPO, DPPO_THRESHOLD_GSPO),
    )
}
"""Every preset by its name."""
