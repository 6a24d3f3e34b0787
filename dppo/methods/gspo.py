"""GSPO, arXiv:2507.18071: ratios of whole completions, clipped much closer."""

from functools import partial

from dppo.methods.method import Objective
from dppo.objective import GRPO_MEAN, clipped_surrogate, sequence_ratio

GSPO = Objective(
    name="gspo",
    paper="arXiv:2507.18071, Group Sequence Policy Optimization",
    token_loss=partial(clipped_surrogate, ratio=sequence_ratio, clip_low=3e-4, clip_high=4e-4),
    normaliser=GRPO_MEAN,
    deviations=("the standard deviation has ddof 1 and eps 1e-4, as in TRL",),
)
