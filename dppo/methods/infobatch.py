"""InfoBatch, arXiv:2303.04947: rows or prompts below the mean score are pruned at random, except in the last epochs."""

from dataclasses import replace

from dppo.methods.method import Scheme
from dppo.methods.rows import RowMethod
from dppo.pruning import POISSON, PromptPruning, stop, threshold

_PAPER = "arXiv:2303.04947, InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning"

INFOBATCH = Scheme(
    name="infobatch",
    paper=_PAPER,
    prompts=PromptPruning(rate=0.5, rule=threshold),
    schedule=stop,
    deviations=(
        "prompts are scored by the signal that history expects, where the paper has the loss of a sample",
        "the mean is that of the step's candidates, where the paper has that of the dataset",
        "a step is scaled as one on all its candidates (per step); the paper averages over what is kept, which makes "
        "fewer steps larger by the same factor (per epoch)",
        "a prompt's first rollout takes the place of the epoch without pruning",
        "the rate is moved to keep a whole number of prompts, with prompt_mode fill up to the floor, and weights are "
        "one over what is kept then",
    ),
)

INFOBATCH_ROWS = RowMethod(
    name="infobatch",
    paper=_PAPER,
    rows=PromptPruning(rate=0.5, rule=threshold, design=POISSON),
    score="loss",
    per_epoch=True,
    schedule=stop,
    deviations=(
        "there are as many steps as without pruning, each with fewer rows; the paper has fewer, full steps. The rate "
        "stops after a share of the steps; the paper counts epochs",
        "a step is a mean over all its rows, which is unbiased; the paper averages over the rows kept: infobatch_kept",
        "the rate is moved to expect a whole number of rows, and weights are one over the probability at that rate",
    ),
)
INFOBATCH_KEPT_ROWS = replace(
    INFOBATCH_ROWS,
    name="infobatch_kept",
    over_kept=True,
    deviations=(INFOBATCH_ROWS.deviations[0], INFOBATCH_ROWS.deviations[2]),
)
"""As in the authors' code, ``(weight * loss).mean()`` over the rows kept. It is biased."""
