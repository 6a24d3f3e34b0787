"""CPPO, arXiv:2503.22342: completions of the largest abs(A) are kept. As in the paper, and as in its two codes."""

from dataclasses import replace
from fractions import Fraction

from torch import Tensor

from dppo.methods.method import Objective, Scheme
from dppo.methods.ranking import Ranking, one_each
from dppo.objective import BNPO, GRPO_MEAN
from dppo.pruning import KEPT_MEAN, UNWEIGHTED, absolute_advantage


def all_but_dropped(completions: int, dropped: Fraction) -> int:
    """``completions - floor(completions * dropped)``: rounds what is dropped; ``kept_share``, what is kept."""
    return completions - int(completions * dropped)


def kept_tokens(keep_N: Tensor, tokens_N: Tensor, group_N: Tensor) -> Tensor:
    """(N,) weights that turn a sum over the step's tokens into the mean over groups of means over their kept tokens."""
    number_N = group_N.unique(return_inverse=True)[1]
    tokens_Q = number_N.bincount(tokens_N * keep_N)
    return keep_N.double() * (tokens_N.sum() / max(len(tokens_Q), 1) / tokens_Q.clamp_min(1)[number_N])


_SMALL = "completions with a small score are never kept ({}), so their gradient is missing from every step"
_LARGEST = Ranking(score=absolute_advantage, reasons=(_SMALL.format("the largest"), KEPT_MEAN.bias))

CPPO = Scheme(
    name="cppo",
    paper="arXiv:2503.22342, CPPO: Accelerating the Training of Group Relative Policy Optimization-Based Reasoning "
    "Models",
    completions=_LARGEST,
    deviations=(
        "ties of abs(A) go to the lowest index, where the paper leaves them open",
        "completions are not allocated anew: no further prompts fill the free places",
        "one completion of a group is kept at any rate, where the paper's floor may be 0",
        "beta is 0 here and 0.04 in the paper",
    ),
)

_AS_CODE = (
    "ties of abs(A) go to the lowest index, where the code leaves them to topk",
    "counts are exact, where the code rounds 1 - P in binary",
    "a step has its usual number of prompts; the code grows it by 1 / (1 - P)",
    "beta is 0 here and 0.04 in the code",
)

CPPO_TRL = replace(
    CPPO,
    name="cppo_trl",
    paper="arXiv:2503.22342, CPPO, as in its code for TRL",
    completions=replace(
        _LARGEST,
        compete="process",
        count=all_but_dropped,
        weigh=kept_tokens,
        reasons=(
            _SMALL.format("all but the smallest"),
            UNWEIGHTED.bias,
            "sums are divided by the tokens that are kept, a number that goes with the result",
        ),
    ),
    deviations=_AS_CODE,
)
CPPO_TRL_LOSS = Objective(name="cppo_trl", paper=CPPO_TRL.paper, normaliser=BNPO)

CPPO_VERL = replace(
    CPPO,
    name="cppo_verl",
    paper="arXiv:2503.22342, CPPO, as in its code for verl",
    completions=replace(
        _LARGEST, compete="step", weigh=one_each, reasons=(_SMALL.format("the largest"), UNWEIGHTED.bias)
    ),
    deviations=(
        "the policy term has the mean within each completion that the code is configured for, where the code takes a "
        "mean over the tokens of a micro-batch",
        "eps of the standard deviation is 1e-4, in the code 1e-6; no dual clip",
        "the sum over the kept completions is divided by all completions, as in the code while the batch is not grown",
        *_AS_CODE,
    ),
)
CPPO_VERL_LOSS = Objective(name="cppo_verl", paper=CPPO_VERL.paper, normaliser=GRPO_MEAN)
