"""GSPO, arXiv:2507.18071: ratios of whole completions, clipped much closer."""

from dataclasses import replace
from functools import partial

from dppo.methods.grpo import GRPO
from dppo.objective import clipped_surrogate, sequence_ratio

GSPO = replace(
    GRPO,
    name="gspo",
    paper="arXiv:2507.18071, Group Sequence Policy Optimization",
    token_loss=partial(clipped_surrogate, ratio=sequence_ratio, clip_low=3e-4, clip_high=4e-4),
    fixes=frozenset({"token_loss", "normaliser"}),
    deviations=("the standard deviation has ddof 1 and eps 1e-4, as in TRL",),
)
