"""Dr. GRPO, arXiv:2503.20783: no division by the group's deviation, nor by the length of a completion."""

from dataclasses import replace

from dppo.methods.grpo import GRPO
from dppo.objective import CENTRED
from dppo.objective import DR_GRPO as CONSTANT

DR_GRPO = replace(
    GRPO,
    name="dr_grpo",
    paper="arXiv:2503.20783, Understanding R1-Zero-Like Training: A Critical Perspective",
    advantages=CENTRED,
    normaliser=CONSTANT,
    fixes=frozenset({"advantages", "normaliser"}),
    deviations=(),
)
