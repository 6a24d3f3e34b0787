"""InfoBatch, arXiv:2303.04947, on what it was made for: the rows of a dataset, drawn once an epoch."""

from dataclasses import replace

from dppo.methods.rows import RowMethod
from dppo.pruning import PromptPruning, stop, threshold

INFOBATCH_ROWS = RowMethod(
    name="infobatch",
    paper="arXiv:2303.04947, InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning",
    rows=PromptPruning(rate=0.5, rule=threshold),
    score="loss",
    per_epoch=True,
    schedule=stop,
    deviations=(
        "steps are as many as without pruning, each with fewer rows, where the paper fills fewer steps; the rate stops "
        "after a share of the steps, where the paper counts epochs",
        "a step is a mean over all its rows, which is unbiased; the paper averages over what is kept: infobatch_kept",
        "the rate is moved to keep a whole number of rows, and weights are one over what is kept then",
    ),
)
INFOBATCH_KEPT_ROWS = replace(
    INFOBATCH_ROWS,
    name="infobatch_kept",
    over_kept=True,
    deviations=(INFOBATCH_ROWS.deviations[0], INFOBATCH_ROWS.deviations[2]),
)
"""As in the authors' code, ``(weight * loss).mean()`` over the rows kept: biased, and it says so."""
